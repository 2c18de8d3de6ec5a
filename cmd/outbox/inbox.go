package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/cmd/internal/connect"
	"github.com/pgoutbox/outbox/inbox"
	"github.com/pgoutbox/outbox/schema"
)

func (a *app) inboxCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "inbox",
		Short: "Look after what consumers record and store in a database",
		Long: `Consumers that use package inbox record what they have applied, and may store messages to be applied later.
Messages of a stored inbox that can't be applied become dead letters of the destination "inbox:CONSUMER".`,
	},
		a.inboxStatusCommand(),
		a.inboxWindowCommand(),
		a.inboxRetainCommand(),
		ofConsumer(a.deadListCommand(), "dead", cobra.ExactArgs(1)),
		ofConsumer(a.deadActCommand("requeue"), "requeue", cobra.MinimumNArgs(1)),
		ofConsumer(a.deadActCommand("discard"), "discard", cobra.MinimumNArgs(1)),
	)
}

// ofConsumer makes a command about dead letters one about those of a stored inbox.
func ofConsumer(cmd *cobra.Command, verb string, args cobra.PositionalArgs) *cobra.Command {
	run := cmd.RunE
	ids := " [ID...]"
	if verb == "dead" {
		cmd.Short, ids = "List messages of a stored inbox that could not be applied", ""
	}
	cmd.Use = verb + " CONSUMER" + ids
	cmd.Aliases = nil
	cmd.Example = fmt.Sprintf("  outbox inbox %s payments --cause exhausted", verb)
	cmd.Args = args
	_ = cmd.Flags().MarkHidden("destination")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed("destination") {
			return usage("--destination is given, and the consumer says it already")
		}
		if err := cmd.Flags().Set("destination", schema.InboxPrefix+args[0]); err != nil {
			return err
		}
		return run(cmd, args[1:])
	}
	return cmd
}

func (a *app) inboxStatusCommand() *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show for how long records are kept, and every consumer with what waits for it",
		Args:  cobra.NoArgs,
		RunE: a.on(a.operate, func(ctx context.Context, conn *pgx.Conn, _ []string) error {
			i, err := admin.InboxStatus(ctx, conn)
			if err != nil {
				return err
			}
			if out == asJSON {
				return printJSON(a.stdout, i)
			}
			return writeInbox(a.stdout, i)
		}),
	}
	formatFlag(cmd, &out, asTable, asJSON)
	return cmd
}

func (a *app) inboxRetainCommand() *cobra.Command {
	var every time.Duration
	var out format
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
				return usage("--every must be at least 1s")
			}
			for {
				err := a.retain(cmd.Context(), out)
				if every == 0 {
					return err
				}
				if err != nil && cmd.Context().Err() == nil {
					fmt.Fprintf(a.stderr, "the records were not looked after, and will be in %v: %v\n", every, err)
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
	formatFlag(cmd, &out, asTable, asJSON)
	return cmd
}

// retain takes one look.
func (a *app) retain(ctx context.Context, out format) error {
	conn, err := a.operate(ctx)
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
	if out == asJSON {
		return printJSON(a.stdout, map[string]any{"turned": r.Turned, "emptied": r.Emptied, "held": r.Held})
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
	_, err = fmt.Fprintln(a.stdout, text)
	return err
}

func writeInbox(w io.Writer, i *admin.Inbox) error {
	now := time.Now()
	state := "closed " + ago(now, i.Closed) + " ago"
	if i.Closed.IsZero() {
		state = "still written to by an open transaction, or no retention has run since"
	}
	fmt.Fprintf(w, "records are kept for at least %s; current table since %s; the one before: %s\n", span(i.Window), ago(now, i.Turned), state)
	if i.Due {
		fmt.Fprintln(w, "the oldest records could be forgotten: no retention runs (inbox.Retention in a consumer, or: outbox inbox retain)")
	}
	fmt.Fprintln(w)
	t := newTable(w, "TABLE", "ROLE", "SIZE")
	for _, table := range i.Tables {
		t.row(table.Name, table.Role, bytesText(table.Bytes))
	}
	if err := t.flush(); err != nil {
		return err
	}
	if len(i.Consumers) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	t = newTable(w, "CONSUMER", "KEYS", "GAPS", "STORED", "HELD", "DEAD")
	for _, c := range i.Consumers {
		stored := "-"
		if c.Stored {
			stored = c.Pending.String()
		}
		t.row(c.Name, c.Keys, c.Gaps, stored, c.Held, c.Dead)
	}
	return t.flush()
}

func (a *app) inboxWindowCommand() *cobra.Command {
	var c confirmation
	var window time.Duration
	cmd := &cobra.Command{
		Use:   "window DURATION",
		Short: "Say for how long records are kept at least",
		Long: `A message that comes again within the window has no effect. Make it longer than brokers keep what isn't
acknowledged, and than anybody goes back in a topic. The tables hold up to two windows.`,
		Example: `  outbox inbox window 336h --reason "topics are kept for ten days"`,
		Args:    cobra.ExactArgs(1),
		PreRunE: func(_ *cobra.Command, args []string) (err error) {
			if window, err = time.ParseDuration(args[0]); err != nil {
				return usage("%q is no duration such as 168h", args[0])
			}
			return nil
		},
		RunE: a.on(a.operate, func(ctx context.Context, conn *pgx.Conn, _ []string) error {
			if err := a.confirm(c, fmt.Sprintf("Keep records for %s?", span(window))); err != nil {
				return err
			}
			if err := admin.SetInboxWindow(ctx, conn, window, a.action(c)); err != nil {
				return err
			}
			if c.out == asJSON {
				return printJSON(a.stdout, map[string]any{"window_ns": window})
			}
			_, err := fmt.Fprintf(a.stdout, "records are kept for at least %s\n", span(window))
			return err
		}),
	}
	c.flags(cmd)
	return cmd
}
