package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/internal/sqlstate"
)

func (a *app) rebaseCommand() *cobra.Command {
	var c confirmation
	var destination string
	cmd := &cobra.Command{
		Use:   "rebase --destination NAME",
		Short: "Make cursors usable after a dump was restored or the cluster was replaced",
		Long: `A cursor says in transaction ids what was delivered. In another cluster (a restored dump, a logical replica
that was promoted, pg_upgrade) these mean something else, and relays refuse the cursor. Rebasing holds what
was not delivered, to be delivered at once, and moves the cursors behind everything that is there. What was
in flight is delivered again. All destinations that need it are rebased together.

It also sets the sequences of the ids behind every id that is there: logical replication doesn't carry them, and
TRUNCATE ... RESTART IDENTITY sets them back. What was written since comes behind what was there before.

Stop all writers and relays first. Run it as the owner of the outbox's tables.`,
		Example: `  outbox rebase --destination kafka --reason "restored the dump of Sunday"`,
		Args:    cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error {
			if destination == "" {
				return usage("no destination is named: give --destination; outbox status lists them")
			}
			return nil
		},
		RunE: a.on(a.operate, func(ctx context.Context, conn *pgx.Conn, _ []string) error {
			report, err := admin.Status(ctx, conn)
			if err != nil {
				return err
			}
			if !slices.ContainsFunc(report.Destinations, func(d admin.Destination) bool { return d.Name == destination && len(d.Groups) > 0 }) {
				return fmt.Errorf("%w: there is no destination %s: outbox destinations ls lists them", admin.ErrNotFound, destination)
			}
			if err := a.confirm(c, "Are all writers and relays stopped? Rebase destination "+clean(destination)+"?"); err != nil {
				return err
			}
			done, err := admin.Rebase(ctx, conn, destination, a.action(c))
			switch {
			case errors.Is(err, admin.ErrNothingToRebase):
				fmt.Fprintln(a.stderr, "nothing to do: the cursor is of this cluster")
			case sqlstate.Of(err) == "42501":
				return fmt.Errorf("%w: run it as the owner of the outbox's tables", err)
			case err != nil:
				return err
			}
			return a.printRebased(c.out, done)
		}),
	}
	cmd.Flags().StringVar(&destination, "destination", "", "destination to rebase")
	c.flags(cmd)
	return cmd
}

// rebased is a line of what "rebase" did.
type rebased struct {
	Destination string `json:"destination"`
	Held        int64  `json:"held"`
}

func (a *app) printRebased(out format, done []admin.Rebased) error {
	list := make([]rebased, 0, len(done))
	for _, d := range done {
		list = append(list, rebased(d))
	}
	if out == asJSON {
		return printJSON(a.stdout, list)
	}
	for _, d := range list {
		fmt.Fprintf(a.stdout, "rebased %s: %s to be delivered\n", clean(d.Destination), messages(d.Held))
	}
	return nil
}
