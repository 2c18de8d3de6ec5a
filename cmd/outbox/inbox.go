package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/connect"
	"github.com/pgoutbox/outbox/cmd/internal/exit"
	"github.com/pgoutbox/outbox/cmd/internal/output"
	"github.com/pgoutbox/outbox/inbox"
	"github.com/pgoutbox/outbox/schema"
)

// inboxDead are the verbs about dead letters once more, for those of one stored inbox.
func (a *app) inboxDead() (list []*cobra.Command) {
	for _, v := range verbs.All() {
		switch v.Name {
		case "dead ls":
			v.Short = "List messages of a stored inbox that could not be applied"
			list = append(list, ofConsumer(a.verb(v, a.specials()[v.Name]), "dead", cobra.ExactArgs(1)))
		case "dead requeue", "dead discard":
			list = append(list, ofConsumer(a.verb(v, a.specials()[v.Name]), lastWord(v.Name), cobra.MinimumNArgs(1)))
		}
	}
	return list
}

// ofConsumer makes a command about dead letters one about those of a stored inbox.
func ofConsumer(cmd *cobra.Command, name string, args cobra.PositionalArgs) *cobra.Command {
	run := cmd.RunE
	_, ids, _ := strings.Cut(cmd.Use, " ")
	cmd.Use = strings.TrimSpace(name + " CONSUMER " + strings.TrimPrefix(ids, "[NAME]"))
	cmd.Aliases = nil
	cmd.Example = fmt.Sprintf("  outbox inbox %s payments --cause exhausted", name)
	cmd.Args = args
	_ = cmd.Flags().MarkHidden("destination")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed("destination") {
			return exit.Usagef("--destination is given, and the consumer says it already")
		}
		if err := cmd.Flags().Set("destination", schema.InboxPrefix+args[0]); err != nil {
			return err
		}
		return run(cmd, args[1:])
	}
	return cmd
}

func (a *app) inboxRetainCommand() *cobra.Command {
	var every time.Duration
	var out output.Format
	cmd := &cobra.Command{
		Use:   "retain",
		Short: "Forget the records of what was applied long ago",
		Long: `Records stand in three tables by turns, and the oldest is emptied when the window has passed. Consumers do that
themselves with inbox.Retention; this is for those that don't, such as consumers in other languages. One look is enough
each time, from cron say; with --every it goes on until it is stopped. Any number of them may run, beside consumers too.`,
		Example: `  */10 * * * *  outbox inbox retain --database-url "$PAYMENTS_DATABASE_URL"
  outbox inbox retain --every 1m`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if every < 0 || cmd.Flags().Changed("every") && every < time.Second {
				return exit.Usagef("--every must be at least 1s")
			}
			for {
				err := a.retain(cmd.Context(), out)
				if every == 0 {
					return err
				}
				if err != nil && cmd.Context().Err() == nil {
					fmt.Fprintf(a.Stderr, "the records were not looked after, and will be in %v: %v\n", every, err)
				}
				select {
				case <-time.After(every):
				case <-cmd.Context().Done():
					return nil
				}
			}
		},
	}
	cmd.Flags().DurationVar(&every, "every", 0, "go on, with this pause between looks (default: one look)")
	output.FormatFlag(cmd, &out, output.AsTable, output.AsJSON)
	return cmd
}

// retain takes one look.
func (a *app) retain(ctx context.Context, out output.Format) error {
	conn, err := a.Operate(ctx)
	if err != nil {
		return err
	}
	defer connect.Close(conn)
	retention, err := inbox.NewRetention(conn, inbox.RetentionConfig{})
	if err != nil {
		return err
	}
	r := retention.Look(ctx)
	if r.Err != nil {
		return r.Err
	}
	if out == output.AsJSON {
		return output.JSON(a.Stdout, map[string]any{"turned": r.Turned, "emptied": r.Emptied, "held": r.Held})
	}
	text := "nothing is due"
	switch {
	case r.Emptied != "":
		text = "emptied " + r.Emptied
	case r.Turned:
		text = "records go to another table from now on"
	case r.Held != "":
		text = "records are kept: " + r.Held
	}
	_, err = fmt.Fprintln(a.Stdout, text)
	return err
}
