package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/admin/find"
	"github.com/pgoutbox/outbox/admin/jobs"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/broker/jsonl"
	"github.com/pgoutbox/outbox/cmd/internal/exit"
	"github.com/pgoutbox/outbox/cmd/internal/output"
	"github.com/pgoutbox/outbox/internal/printed"
)

func (a *app) archiveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "archive",
		Short: "Read the archive that a destination writes, without a database",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return exit.Usagef("name a command: ls, show or verify") },
	}
	cmd.AddCommand(a.archiveList(), a.archiveShow(), a.archiveVerify())
	return cmd
}

func (a *app) archiveList() *cobra.Command {
	var out output.Format
	cmd := &cobra.Command{
		Use:     "ls DIR...",
		Short:   "List the files of archives, with the range of their messages",
		Example: "  outbox archive ls /var/lib/outbox/archive",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, dirs []string) error {
			files, err := filesOf(dirs)
			if err != nil {
				return err
			}
			switch out {
			case output.AsJSON:
				return output.JSON(a.Stdout, files)
			case output.AsJSONL:
				return output.JSONL(a.Stdout, files)
			}
			t := output.NewTable(a.Stdout, "FILE", "OLDEST", "NEWEST", "POSITIONS", "MESSAGES", "SIZE")
			for _, f := range files {
				t.Row(f.Path, f.Oldest.Local().Format(time.DateTime), f.Newest.Local().Format(time.DateTime),
					fmt.Sprintf("%d-%d", f.First, f.Last), printed.Number(f.Count), printed.Bytes(f.Bytes))
			}
			return t.Flush()
		},
	}
	output.FormatFlag(cmd, &out, output.AsTable, output.AsJSON, output.AsJSONL)
	return cmd
}

// filesOf lists the files of several archives.
func filesOf(dirs []string) ([]jsonl.ArchiveFile, error) {
	all := []jsonl.ArchiveFile{}
	for _, dir := range dirs {
		files, err := jsonl.Files(dir)
		if err != nil {
			return nil, err
		}
		all = append(all, files...)
	}
	return all, nil
}

// timeFlag reads the value of a flag, if there is one.
func timeFlag(flag, text string, into *time.Time) (err error) {
	if text == "" {
		return nil
	}
	if *into, err = verbs.ParseTime(text); err != nil {
		return exit.Usagef("--%s is %q: want %s", flag, text, verbs.TimeForm)
	}
	return nil
}

// archivedIn reads what files have now: what is added to them later is left out.
func archivedIn(files []jsonl.ArchiveFile) iter.Seq2[*outbox.Message, error] {
	return func(yield func(*outbox.Message, error) bool) {
		for _, f := range files {
			n := int64(0)
			for m, err := range f.Messages() {
				if !yield(m, err) || err != nil {
					return
				}
				if n++; n == f.Count {
					break
				}
			}
		}
	}
}

// fromArchive returns the messages of archives, for a replay.
func fromArchive(dirs []string) (*jobs.Archived, error) {
	files, err := filesOf(dirs)
	if err != nil {
		return nil, err
	}
	from := &jobs.Archived{Messages: archivedIn(files)}
	for _, dir := range dirs {
		path, err := filepath.Abs(dir)
		if err != nil {
			return nil, err
		}
		from.Names = append(from.Names, path)
	}
	return from, nil
}

func (a *app) archiveShow() *cobra.Command {
	var want find.MessageFilter
	var since, until, id string
	limit := 0
	var out output.Format
	cmd := &cobra.Command{
		Use:   "show DIR...",
		Short: "Print messages of archives as JSON lines",
		Long: `Messages are printed as they were archived, in the order of their delivery. A message that was delivered twice may be
there twice. Files whose range doesn't fit --since and --until are not opened.`,
		Example: `  outbox archive show /var/lib/outbox/archive --key customer-42
  outbox archive show /var/lib/outbox/archive --since 2026-05-01T12:00:00Z --until 2026-05-01T13:00:00Z`,
		Args: cobra.MinimumNArgs(1),
	}
	flags := cmd.Flags()
	flags.StringVar(&since, "since", "", "only messages created at this time or later: "+verbs.TimeForm)
	flags.StringVar(&until, "until", "", "only messages created before this time: "+verbs.TimeForm)
	flags.StringVar(&want.Topic, "topic", "", "only messages of this topic")
	flags.StringVar(&want.Key, "key", "", "only messages with this ordering key")
	flags.StringVar(&id, "id", "", "only the message with this id")
	flags.IntVar(&limit, "limit", 0, "how many to print at most; 0: all")
	output.FormatFlag(cmd, &out, output.AsJSONL) // as they were archived
	cmd.RunE = func(cmd *cobra.Command, dirs []string) error {
		if err := errors.Join(timeFlag("since", since, &want.Since), timeFlag("until", until, &want.Until)); err != nil {
			return err
		}
		if id != "" {
			parsed, err := outbox.ParseID(id)
			if err != nil {
				return exit.Usagef("--id: %w", err)
			}
			want.MessageIDs = []outbox.ID{parsed}
		}
		files, err := filesOf(dirs)
		if err != nil {
			return err
		}
		files = slices.DeleteFunc(files, func(f jsonl.ArchiveFile) bool {
			return f.Newest.Add(time.Second).Before(want.Since) || !want.Until.IsZero() && !f.Oldest.Before(want.Until)
		})
		lines, printed := jsonl.New(a.Stdout), 0
		for m, err := range archivedIn(files) {
			if err != nil {
				return err
			}
			if !want.Matches(m) {
				continue
			}
			if errs := lines.Publish(cmd.Context(), []*outbox.Message{m}); errs != nil {
				return errs[0]
			}
			if printed++; printed == limit {
				return nil
			}
		}
		return nil
	}
	return cmd
}

// soundness is what archive verify has found.
type soundness struct {
	Files    int      `json:"files"`
	Messages int64    `json:"messages"`
	Repeats  int64    `json:"repeats"`
	Late     int64    `json:"late"` // behind a later message of their key
	Faults   []string `json:"faults"`
}

func (a *app) archiveVerify() *cobra.Command {
	var out output.Format
	cmd := &cobra.Command{
		Use:   "verify DIR",
		Short: "Read a whole archive: checksums, lines, what the names say; repeats and late messages are counted",
		Long: `A repeat is a message that was delivered twice, which any destination may see after a crash. A late one is behind a
later message of its key, as a dead letter that was requeued is. The memory that this needs grows with the number of
messages, by some 50 bytes each.

Exit code 1: a file is damaged.`,
		Example: "  outbox archive verify /var/lib/outbox/archive",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, dirs []string) error {
			found, err := sound(cmd.Context(), dirs[0])
			if err != nil {
				return err
			}
			if out == output.AsJSON {
				err = output.JSON(a.Stdout, found)
			} else {
				for _, fault := range found.Faults {
					fmt.Fprintln(a.Stdout, fault)
				}
				_, err = fmt.Fprintf(a.Stdout, "%s, %s; %s are repeats, %s are late\n",
					printed.Many(found.Files, "file", "files"), printed.Many(found.Messages, "message", "messages"),
					printed.Number(found.Repeats), printed.Number(found.Late))
			}
			if err == nil && len(found.Faults) > 0 {
				err = fmt.Errorf("the archive has %d faults", len(found.Faults))
			}
			return err
		},
	}
	output.FormatFlag(cmd, &out, output.AsTable, output.AsJSON)
	return cmd
}

// sound reads an archive.
func sound(ctx context.Context, dir string) (found soundness, err error) {
	files, err := jsonl.Files(dir)
	if err != nil {
		return found, err
	}
	found.Files, found.Faults = len(files), []string{}
	seen := make(map[outbox.ID]bool)
	last := make(map[string]int64) // of each key
	for _, f := range files {
		n := int64(0)
		whole := true
		for m, err := range f.Messages() {
			if ctx.Err() != nil {
				return found, ctx.Err()
			}
			if err != nil {
				found.Faults, whole = append(found.Faults, err.Error()), false
				break
			}
			n++
			found.Messages++
			if seen[m.ID] {
				found.Repeats++
				continue
			}
			seen[m.ID] = true
			if at := m.CreatedAt.Truncate(time.Second); at.Before(f.Oldest) || at.After(f.Newest) ||
				m.Position < f.First || m.Position > f.Last {
				found.Faults = append(found.Faults, fmt.Sprintf("%s: message %s is not in the range that the name says", f.Path, m.ID))
			}
			key := m.OrderingKey()
			if key == "" {
				continue
			}
			if before, ok := last[key]; ok && m.Position < before {
				found.Late++
			} else {
				last[key] = m.Position
			}
		}
		if whole && n < f.Count { // more are added to an open one
			found.Faults = append(found.Faults, fmt.Sprintf("%s: has %d messages, should have %d", f.Path, n, f.Count))
		}
	}
	return found, nil
}
