package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/cmd/internal/connect"
)

func (a *app) deadCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "dead",
		Short: "Look at, requeue and discard messages that could not be delivered",
		Long: `A message becomes a dead letter when the broker refuses it for good or max_attempts have failed; its key goes
on without it. Under the policy "block" it keeps its key held instead: --blocked shows and acts on those.`,
	}, a.deadListCommand(), a.deadShowCommand(), a.deadActCommand("requeue"), a.deadActCommand("discard"))
}

// filter are the flags that select dead letters.
type filter struct {
	admin.Selection
	olderThan time.Duration
}

func (f *filter) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.Blocked, "blocked", false, "messages that keep their keys held, instead of dead letters")
	cmd.Flags().StringVar(&f.Destination, "destination", "", "of this destination")
	cmd.Flags().StringVar(&f.Topic, "topic", "", "of this topic")
	cmd.Flags().StringVar(&f.Key, "key", "", "with this ordering key")
	cmd.Flags().StringVar(&f.Reason, "cause", "", "set aside as invalid, refused or exhausted")
	cmd.Flags().DurationVar(&f.olderThan, "older-than", 0, "set aside longer ago than this")
	_ = cmd.RegisterFlagCompletionFunc("cause", cobra.FixedCompletions([]string{"invalid", "refused", "exhausted"}, cobra.ShellCompDirectiveNoFileComp))
}

// selection adds the ids to what the flags say.
func (f *filter) selection(ids []string) (admin.Selection, error) {
	s := f.Selection
	switch s.Reason {
	case "", "invalid", "refused", "exhausted":
	default:
		return s, usage("--cause is %q: want invalid, refused or exhausted", s.Reason)
	}
	if s.Blocked && s.Reason != "" {
		return s, usage("--blocked and --cause exclude each other: blocked messages are no dead letters yet")
	}
	if f.olderThan < 0 {
		return s, usage("--older-than is %v, it can't be negative", f.olderThan)
	}
	if f.olderThan > 0 {
		s.Before = time.Now().Add(-f.olderThan)
	}
	for _, text := range ids {
		if position, err := strconv.ParseInt(text, 10, 64); err == nil {
			s.Positions = append(s.Positions, position)
			continue
		}
		id, err := outbox.ParseID(text)
		if err != nil {
			return s, usage("%q is neither a message id such as 0190a4f8-3c5e-7cc3-98c4-dc0c0c07398f nor a position such as 1234", text)
		}
		s.MessageIDs = append(s.MessageIDs, id)
	}
	if len(s.Positions) > 0 && len(s.MessageIDs) > 0 {
		return s, usage("give either message ids or positions, not both")
	}
	return s, nil
}

func (a *app) deadListCommand() *cobra.Command {
	var f filter
	var out format
	var page admin.Page
	var after string
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List dead letters",
		Example: `  outbox dead ls --destination kafka --cause refused
  outbox dead ls --blocked
  outbox dead ls -o jsonl --payload | jq .error`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := f.selection(nil)
			if err != nil {
				return err
			}
			if page.Limit < 1 || page.Limit > 1000 {
				return usage("--limit is %d, it must be 1 to 1000", page.Limit)
			}
			if after != "" {
				if err := parseAfter(after, &page); err != nil {
					return usage("--after is %q: want DESTINATION:POSITION:MESSAGE_ID, of the last line of the page before", after)
				}
			}
			return a.deadList(cmd.Context(), s, page, out)
		},
	}
	f.flags(cmd)
	formatFlag(cmd, &out, asTable, asJSON, asJSONL)
	cmd.Flags().IntVar(&page.Limit, "limit", 100, "how many to list, 1 to 1000")
	cmd.Flags().StringVar(&after, "after", "", "go on after this DESTINATION:POSITION:MESSAGE_ID")
	cmd.Flags().BoolVar(&page.Payload, "payload", false, "with payloads (JSON output only)")
	return cmd
}

// parseAfter reads what follows the last line of a page. A destination may have colons in its name.
func parseAfter(after string, page *admin.Page) (err error) {
	rest, message := cutLast(after)
	destination, position := cutLast(rest)
	page.AfterDestination = destination
	if page.AfterPosition, err = strconv.ParseInt(position, 10, 64); err == nil {
		page.AfterMessageID, err = outbox.ParseID(message)
	}
	return err
}

func cutLast(s string) (before, after string) {
	i := strings.LastIndexByte(s, ':')
	return s[:max(i, 0)], s[i+1:]
}

func (a *app) deadList(ctx context.Context, s admin.Selection, page admin.Page, out format) error {
	if page.Payload && out == asTable {
		return usage("payloads don't fit into a table: add -o json or -o jsonl, or use: outbox dead show --payload ID")
	}
	conn, err := a.operate(ctx)
	if err != nil {
		return err
	}
	defer connect.Close(conn)
	letters, err := admin.DeadLetters(ctx, conn, s, page)
	if err != nil {
		return err
	}
	return printList(a, out, letters, func() error { return a.writeLetters(letters, s.Blocked, page.Limit) })
}

func (a *app) writeLetters(letters []admin.DeadLetter, blocked bool, limit int) error {
	if len(letters) == 0 {
		fmt.Fprintln(a.stderr, "none")
		return nil
	}
	columns := []string{"MESSAGE ID", "POSITION", "DESTINATION", "TOPIC", "KEY", "CAUSE", "ATTEMPTS", "AGE", "ERROR"}
	if blocked {
		columns[5] = "BEHIND"
	}
	t := newTable(a.stdout, columns...)
	now := time.Now()
	for _, l := range letters {
		cause := l.Reason
		if blocked {
			cause = fmt.Sprint(l.Behind)
		}
		t.row(l.MessageID, l.Position, l.Destination, l.Topic, short(l.Key, 40), cause, l.Attempts, ago(now, l.At), short(l.Error, 80))
	}
	if err := t.flush(); err != nil {
		return err
	}
	if len(letters) == limit {
		last := letters[len(letters)-1]
		fmt.Fprintf(a.stderr, "there may be more: add --after %s:%d:%s\n", last.Destination, last.Position, last.MessageID)
	}
	return nil
}

func (a *app) deadShowCommand() *cobra.Command {
	var f filter
	var out format
	var payload bool
	var s admin.Selection
	cmd := &cobra.Command{
		Use:   "show ID...",
		Short: "Show dead letters in full",
		Example: `  outbox dead show 0190a4f8-3c5e-7cc3-98c4-dc0c0c07398f
  outbox dead show --payload 1234`,
		Args: cobra.MinimumNArgs(1),
		PreRunE: func(_ *cobra.Command, ids []string) (err error) {
			s, err = f.selection(ids)
			return err
		},
		RunE: a.on(a.operate, func(ctx context.Context, conn *pgx.Conn, ids []string) error {
			letters, err := admin.DeadLetters(ctx, conn, s, admin.Page{Limit: 1000, Payload: payload})
			if err != nil {
				return err
			}
			if len(letters) == 0 {
				kind := "dead letter"
				if s.Blocked {
					kind = "blocked message"
				}
				return fmt.Errorf("%w: no %s has the id %s: list them with: outbox dead ls", admin.ErrNotFound, kind, strings.Join(ids, ", "))
			}
			return printList(a, out, letters, func() error {
				for i, l := range letters {
					if i > 0 {
						fmt.Fprintln(a.stdout)
					}
					if err := writeLetter(a.stdout, l, payload); err != nil {
						return err
					}
				}
				return nil
			})
		}),
	}
	f.flags(cmd)
	formatFlag(cmd, &out, asTable, asJSON, asJSONL)
	cmd.Flags().BoolVar(&payload, "payload", false, "with the payload")
	return cmd
}

func writeLetter(w io.Writer, l admin.DeadLetter, payload bool) error {
	t := newTable(w, "message id", l.MessageID.String())
	t.row("position", l.Position)
	t.row("destination", l.Destination)
	t.row("topic", l.Topic)
	t.row("key", l.Key)
	t.row("aggregate", strings.TrimSpace(l.AggregateType+" "+l.AggregateID))
	t.row("event type", l.EventType)
	t.row("content type", l.ContentType)
	t.row("headers", string(l.Headers))
	t.row("created at", l.CreatedAt.Local().Format(time.RFC3339Nano))
	t.row("cause", l.Reason)
	t.row("attempts", l.Attempts)
	t.row("set aside at", l.At.Local().Format(time.RFC3339Nano))
	t.row("error", l.Error)
	if l.Reason == "blocked" {
		t.row("behind it", l.Behind)
	}
	if payload {
		t.row("payload", payloadText(l.Payload))
	}
	return t.flush()
}

// payloadText is the payload itself if it is text, otherwise its bytes.
func payloadText(p []byte) string {
	if p == nil {
		return "NULL"
	}
	if utf8.Valid(p) {
		return string(p)
	}
	return fmt.Sprintf("%d bytes, in hexadecimal: %x", len(p), p)
}

func (a *app) deadActCommand(verb string) *cobra.Command {
	var f filter
	var c confirmation
	var limit int64
	act, short, long := admin.Requeue, "Deliver dead letters again", `Dead letters are sent again, in order among themselves, with no attempt counted. What was delivered after
them stays delivered: consumers that need a key's order see them late. With --blocked, messages that keep
their keys held are tried again, and what waits behind them follows.`
	if verb == "discard" {
		act, short, long = admin.Discard, "Delete dead letters for ever", `Dead letters are deleted. With --blocked, messages that keep their keys held are, and what waits behind
them is delivered.`
	}
	cmd := &cobra.Command{
		Use:   verb + " [ID...]",
		Short: short,
		Long: long + `

What is selected is counted first, and you are asked. Without a terminal, say --yes.`,
		Example: strings.ReplaceAll(`  outbox dead VERB 0190a4f8-3c5e-7cc3-98c4-dc0c0c07398f --reason "topic exists now"
  outbox dead VERB --destination kafka --cause refused --dry-run
  outbox dead VERB --blocked --key order-42
  outbox dead VERB --all --max 5000 --yes`, "VERB", verb),
		RunE: func(cmd *cobra.Command, ids []string) error {
			s, err := f.selection(ids)
			if err != nil {
				return err
			}
			if limit < 1 {
				return usage("--max is %d, it must be positive", limit)
			}
			if s.Everything() && !s.All {
				return usage("nothing is selected: give ids, --destination, --topic, --key, --cause or --older-than, or --all")
			}
			ctx := cmd.Context()
			conn, err := a.operate(ctx)
			if err != nil {
				return err
			}
			defer connect.Close(conn)
			action := a.action(c)
			action.DryRun = true
			preview, err := act(ctx, conn, s, limit, action)
			if err != nil {
				return err
			}
			if preview.Changed == 0 {
				fmt.Fprintln(a.stderr, "nothing matches")
				return a.outcome(c.out, preview)
			}
			if c.out == asTable {
				if err := writeOutcome(a.stdout, preview); err != nil {
					return err
				}
			}
			if c.dryRun {
				if c.out != asTable {
					return a.outcome(c.out, preview)
				}
				return nil
			}
			if err := a.confirm(c, fmt.Sprintf("%s %s?", title(verb), messages(preview.Changed))); err != nil {
				return err
			}
			action.DryRun = false
			// Not more than was shown.
			done, err := act(ctx, conn, s, preview.Changed, action)
			if err != nil {
				return err
			}
			if c.out != asTable {
				return a.outcome(c.out, done)
			}
			_, err = fmt.Fprintf(a.stdout, "%sed %s\n", strings.TrimSuffix(verb, "e"), messages(done.Changed))
			return err
		},
	}
	f.flags(cmd)
	cmd.Flags().BoolVar(&f.All, "all", false, "all of them")
	cmd.Flags().Int64Var(&limit, "max", 1000, "refuse to act on more")
	c.flags(cmd)
	c.dryRunFlag(cmd)
	return cmd
}

func messages(n int64) string {
	if n == 1 {
		return "1 message"
	}
	return fmt.Sprintf("%d messages", n)
}

func title(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

func (a *app) outcome(out format, o admin.Outcome) error {
	switch out {
	case asJSON:
		return printJSON(a.stdout, o)
	case asJSONL:
		return printJSONL(a.stdout, []admin.Outcome{o})
	}
	return nil
}

func writeOutcome(w io.Writer, o admin.Outcome) error {
	t := newTable(w, "MESSAGES", "DESTINATION", "TOPIC", "CAUSE")
	for _, g := range o.Groups {
		t.row(g.N, g.Destination, g.Topic, g.Reason)
	}
	return t.flush()
}

// confirmation are the flags of commands that change what can't be brought back.
type confirmation struct {
	yes    bool
	dryRun bool
	reason string
	actor  string
	out    format
}

// flags adds all but --dry-run; dryRunFlag adds that.
func (c *confirmation) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&c.yes, "yes", "y", false, "don't ask")
	cmd.Flags().StringVar(&c.reason, "reason", "", "why, for the audit")
	cmd.Flags().StringVar(&c.actor, "actor", "", "who, for the audit (default: you, at this host)")
	formatFlag(cmd, &c.out, asTable, asJSON)
}

func (c *confirmation) dryRunFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&c.dryRun, "dry-run", false, "show what would be done, and do nothing")
}

func (a *app) action(c confirmation) admin.Action {
	actor := c.actor
	if actor == "" {
		name := a.getenv("USER")
		if u, err := user.Current(); err == nil {
			name = u.Username
		}
		host, _ := os.Hostname()
		actor = strings.Trim(name+"@"+host, "@")
	}
	if actor == "" {
		actor = "unknown"
	}
	return admin.Action{Actor: actor, Reason: c.reason, DryRun: c.dryRun}
}

// confirm asks, unless told not to.
func (a *app) confirm(c confirmation, question string) error {
	if c.yes {
		return nil
	}
	if !isTerminal(a.stdin) {
		return usage("this is not a terminal, so you can't be asked: add --yes")
	}
	fmt.Fprintf(a.stderr, "%s [y/N] ", question)
	answer, _ := bufio.NewReader(a.stdin).ReadString('\n')
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return coded{errors.New("not confirmed: nothing was changed"), exitError}
}
