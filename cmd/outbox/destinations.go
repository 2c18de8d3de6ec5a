package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/admin"
)

func (a *app) destinationsCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "destinations",
		Short: "List destinations, and drop those that nobody needs any more",
	}, a.destinationsListCommand(), a.destinationsDropCommand())
}

func (a *app) destinationsListCommand() *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List destinations with their cursors",
		Args:    cobra.NoArgs,
		RunE: a.on(a.operate, func(ctx context.Context, conn *pgx.Conn, _ []string) error {
			r, err := admin.Status(ctx, conn)
			if err != nil {
				return err
			}
			return printList(a, out, r.Destinations, func() error {
				if len(r.Destinations) == 0 {
					fmt.Fprintln(a.stderr, "none: a destination appears when a relay first delivers to it")
					return nil
				}
				return writeDestinations(a.stdout, r)
			})
		}),
	}
	formatFlag(cmd, &out, asTable, asJSON, asJSONL)
	return cmd
}

func (a *app) destinationsDropCommand() *cobra.Command {
	var c confirmation
	cmd := &cobra.Command{
		Use:   "drop NAME",
		Short: "Remove a destination with its cursor, held messages and dead letters",
		Long: `A destination that no relay serves any more keeps the outbox from being emptied. Dropping it removes its
cursor, its held messages and its dead letters; what it has not delivered, it never will. It is refused
while a relay delivers to it.

A destination that comes back under the name later begins with everything that is still in the outbox.`,
		Example: `  outbox destinations drop old-kafka --dry-run
  outbox destinations drop old-kafka --reason "moved to the new cluster"`,
		Args: cobra.ExactArgs(1),
		RunE: a.on(a.operate, func(ctx context.Context, conn *pgx.Conn, args []string) error {
			action := a.action(c)
			action.DryRun = true
			preview, err := admin.DropDestination(ctx, conn, args[0], action)
			if err != nil {
				return err
			}
			if c.out == asTable {
				t := newTable(a.stdout, "DESTINATION", "CURSORS", "UNDELIVERED", "HELD", "DEAD")
				t.row(preview.Destination, preview.Cursors, preview.Pending, preview.Holds, preview.DeadLetters)
				if err := t.flush(); err != nil {
					return err
				}
			}
			done := preview
			if !c.dryRun {
				if err := a.confirm(c, fmt.Sprintf("Drop destination %s for ever?", clean(args[0]))); err != nil {
					return err
				}
				action.DryRun = false
				if done, err = admin.DropDestination(ctx, conn, args[0], action); err != nil {
					return err
				}
			}
			switch {
			case c.out == asJSON:
				return printJSON(a.stdout, done)
			case !c.dryRun:
				fmt.Fprintf(a.stdout, "dropped %s\n", clean(done.Destination))
			}
			return nil
		}),
	}
	c.flags(cmd)
	c.dryRunFlag(cmd)
	return cmd
}
