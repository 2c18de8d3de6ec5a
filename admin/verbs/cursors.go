package verbs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pgoutbox/outbox/internal/printed"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/destinations"
	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/internal/sqlstate"
)

// Rebase are the parameters of "rebase".
type Rebase struct {
	Destination string `json:"destination" required:"true" help:"the destination to rebase; outbox status lists them"`
	Intent
}

func rebase() Verb {
	return changes(Verb{
		Name:  "rebase",
		Cost:  "All writers and relays have to be stopped",
		Short: "Make cursors usable after a dump was restored or the cluster was replaced",
		Long: `A cursor says in transaction ids what was delivered. In another cluster (a restored dump, a logical replica
that was promoted, pg_upgrade) these mean something else, and relays refuse the cursor. Rebasing holds what
was not delivered, to be delivered at once, and moves the cursors behind everything that is there. What was
in flight is delivered again. All destinations that need it are rebased together.

It also sets the sequences of the ids behind every id that is there: logical replication doesn't carry them, and
TRUNCATE ... RESTART IDENTITY sets them back. What was written since comes behind what was there before.

Stop all writers and relays first. Run it as the owner of the outbox's tables.`,
		Example: `  outbox rebase --destination kafka --reason "restored the dump of Sunday"`,
		Wide:    true,
		Timeout: 6 * time.Hour, // it rewrites what is there
	}, func(ctx context.Context, db admin.DB, action admin.Action, p Rebase) ([]destinations.Rebased, error) {
		report, err := health.Status(ctx, db)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(report.Destinations,
			func(d health.Destination) bool { return d.Name == p.Destination && len(d.Groups) > 0 }) {
			return nil, fmt.Errorf("%w: there is no destination %s: outbox destinations ls lists them", admin.ErrNotFound, p.Destination)
		}
		done, err := destinations.Rebase(ctx, db, p.Destination, action)
		switch {
		case errors.Is(err, destinations.ErrNothingToRebase):
			return nil, nil
		case sqlstate.Of(err) == "42501":
			err = fmt.Errorf("%w: run it as the owner of the outbox's tables", err)
		}
		return done, err
	}, texts[Rebase, []destinations.Rebased]{done: func(done []destinations.Rebased) string {
		if len(done) == 0 {
			return "nothing to do: the cursor is of this cluster"
		}
		return lines(done, func(d destinations.Rebased) string {
			return "rebased " + d.Destination + ": " + printed.Many(d.Held, "message", "messages") + " to be delivered"
		})
	}})
}

// Handover are the parameters of "handover".
type Handover struct {
	Destination string   `json:"destination" required:"true" help:"the destination to hand over; outbox status lists them"`
	To          string   `json:"to" required:"true" enum:"replication,snapshot" help:"what to read it by: replication or snapshot"`
	Abandon     bool     `json:"abandon,omitempty" help:"go over to the table without a relay, with duplicates and without what has no row"`
	Timeout     Duration `json:"timeout,omitempty" default:"5m" min:"1s" help:"how long to wait for it"`
	Intent

	// Observe, if not nil, is told once a second what is still waited for.
	Observe func(waitsFor string) `json:"-"`
}

func (p *Handover) check() error {
	if p.Abandon && p.To != destinations.ByTable {
		return fault("abandon", "goes with --to snapshot")
	}
	return nil
}

// HandedOver is what "handover" did.
type HandedOver struct {
	Destination string  `json:"destination"`
	To          string  `json:"to"`
	Seconds     float64 `json:"seconds"`
}

func handover() Verb {
	return changes(Verb{
		Name:  "handover",
		Cost:  "A slot that is read no more is dropped",
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
		Timeout: 24 * time.Hour, // its own parameter is what counts
	}, func(whole context.Context, db admin.DB, action admin.Action, p Handover) (HandedOver, error) {
		ctx, cancel := context.WithTimeout(whole, time.Duration(p.Timeout))
		defer cancel()
		began := time.Now()
		options := destinations.HandoverOptions{Abandon: p.Abandon, Observe: p.Observe}
		err := destinations.Handover(ctx, db, p.Destination, p.To, options, action)
		if ctx.Err() != nil && whole.Err() == nil {
			err = fmt.Errorf("not done after %v: %v", p.Timeout, err) // not %w: the database may be well
		}
		return HandedOver{p.Destination, p.To, time.Since(began).Seconds()}, err
	}, texts[Handover, HandedOver]{
		done: func(h HandedOver) string { return h.Destination + " is read by " + h.To },
		asks: func(p Handover) bool { return p.To != destinations.ByLog }, // nothing is lost by it
	})
}
