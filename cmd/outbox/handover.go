package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/admin"
)

func (a *app) handoverCommand() *cobra.Command {
	var c confirmation
	var destination, to string
	var timeout time.Duration
	var abandon bool
	cmd := &cobra.Command{
		Use:   "handover --destination NAME --to replication|snapshot",
		Short: "Have a running relay read the write-ahead log, or the table, from now on",
		Long: `A destination whose relays are configured with replication: can be read by polling the table for a while, and
from the write-ahead log again, while messages flow: nothing is lost, repeated or out of order by it.

  --to snapshot     The table is polled; the replication slot is dropped. Relays that are configured without
                    replication: can take over then. Messages that were emitted without a row are not
                    delivered any more.
  --to replication  A new slot is made, which begins when the transactions that are open have ended; until
                    then the table is polled. Relays configured without replication: have to be replaced
                    first, by relays that have it; those hand over by themselves.

With --abandon, for when no relay can read the log any more (it must not be running): the slot is dropped and the
table is read from its cursor on. What was delivered in the last moments comes twice, and messages that were
emitted without a row and not read are lost.

The command ends when it is done. If it ends earlier, the relay goes on with it all the same.`,
		Example: `  outbox handover --destination kafka --to snapshot --reason "upgrade of PostgreSQL"
  outbox handover --destination kafka --to replication`,
		Args: cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error {
			if destination == "" {
				return usage("no destination is named: give --destination; outbox status lists them")
			}
			if to != admin.ByLog && to != admin.ByTable {
				return usage("--to is %q: it must be replication or snapshot", to)
			}
			if abandon && to != admin.ByTable {
				return usage("--abandon goes with --to snapshot")
			}
			return nil
		},
		RunE: a.on(a.operate, func(ctx context.Context, conn *pgx.Conn, _ []string) error {
			if to == admin.ByTable {
				if err := a.confirm(c, "Stop reading the write-ahead log for "+clean(destination)+", and drop its slot?"); err != nil {
					return err
				}
			}
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			began := time.Now()
			err := admin.Handover(ctx, conn, destination, to, admin.HandoverOptions{
				Abandon: abandon, Observe: func(waitsFor string) { fmt.Fprintln(a.stderr, "waiting:", clean(waitsFor)) },
			}, a.action(c))
			if errors.Is(err, context.DeadlineExceeded) {
				return fmt.Errorf("not done after %v: %w", timeout, err)
			}
			if err != nil {
				return err
			}
			if c.out == asJSON {
				return printJSON(a.stdout, handedOver{destination, to, time.Since(began).Seconds()})
			}
			fmt.Fprintf(a.stdout, "%s is read by %s\n", clean(destination), to)
			return nil
		}),
	}
	cmd.Flags().StringVar(&destination, "destination", "", "destination to hand over")
	cmd.Flags().StringVar(&to, "to", "", "what to read it by: replication or snapshot")
	cmd.Flags().BoolVar(&abandon, "abandon", false, "go over to the table without a relay, with duplicates and without what has no row")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "how long to wait for it")
	c.flags(cmd)
	return cmd
}

// handedOver is what "handover" did.
type handedOver struct {
	Destination string  `json:"destination"`
	To          string  `json:"to"`
	Seconds     float64 `json:"seconds"`
}
