package verbs

import (
	"context"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/admin/sheet"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/destinations"
	"github.com/pgoutbox/outbox/admin/health"
)

func destinationsList() Verb {
	return reads(Verb{
		Name:  "destinations ls",
		Short: "List destinations with their cursors",
	}, func(ctx context.Context, db admin.DB, _ struct{}) ([]health.Destination, error) {
		r, err := health.Status(ctx, db)
		if err != nil {
			return nil, err
		}
		return r.Destinations, nil
	}, func(_ struct{}, all []health.Destination) sheet.Parts {
		return DestinationParts(&health.Report{At: time.Now(), Destinations: all})
	})
}

// DestinationsMove are the parameters of "destinations move".
type DestinationsMove struct {
	Destination string `json:"destination" arg:"NAME" required:"true" help:"the destination that moves to another broker"`
	Intent
}

func destinationsMove() Verb {
	return changes(Verb{
		Name:  "destinations move",
		Cost:  "What the old broker has got isn't sent again",
		Lists: true,
		Short: "Let a destination deliver to another broker than before",
		Long: `A relay refuses to deliver to another broker than the one that its destination was delivered to: a second relay
with a wrong address sends nothing there. If the destination is to move, as to a new cluster, give its relays
the new broker first. They refuse it, and "outbox status" tells which one it is. This command then accepts that
broker, and they deliver within seconds. If no relay has refused one, the next relay's is accepted.

It is refused while a relay delivers to the old broker. Nothing is sent again: what the old broker has got, the
new one doesn't get; "outbox replay" can send it. Messages that are held, and dead letters that are requeued, go
to the new broker.`,
		Example: `  outbox destinations move kafka --dry-run
  outbox destinations move kafka --reason "the new cluster"`,
	}, func(ctx context.Context, db admin.DB, action admin.Action, p DestinationsMove) (destinations.Moved, error) {
		return destinations.Move(ctx, db, p.Destination, action)
	}, texts[DestinationsMove, destinations.Moved]{
		done: func(m destinations.Moved) string { return "moved " + m.Destination + " to " + newBroker(m) },
		preview: func(m destinations.Moved) sheet.Parts {
			return sheet.Parts{sheet.Facts(sheet.Of("Destination", m.Destination, "From", strings.Join(m.From, ", "), "To", newBroker(m)))}
		},
	})
}

func newBroker(m destinations.Moved) string {
	if len(m.To) == 0 {
		return "the broker that the next relay has"
	}
	return strings.Join(m.To, ", ")
}

// DestinationsDrop are the parameters of "destinations drop".
type DestinationsDrop struct {
	Destination string `json:"destination" arg:"NAME" required:"true" help:"the destination to drop"`
	Intent
}

func destinationsDrop() Verb {
	return changes(Verb{
		Name:  "destinations drop",
		Cost:  "It does not come back",
		Lists: true,
		Short: "Remove a destination with its cursor, held messages and dead letters",
		Long: `A destination that no relay serves any more keeps the outbox from being emptied. Dropping it removes its
cursor, its held messages and its dead letters; what it has not delivered, it never will. It is refused
while a relay delivers to it, and while one that delivered to it last still has its session, as a frozen one.

A destination that comes back under the name later begins with everything that is still in the outbox.`,
		Example: `  outbox destinations drop old-kafka --dry-run
  outbox destinations drop old-kafka --reason "moved to the new cluster"`,
	}, func(ctx context.Context, db admin.DB, action admin.Action, p DestinationsDrop) (destinations.Dropped, error) {
		return destinations.Drop(ctx, db, p.Destination, action)
	}, texts[DestinationsDrop, destinations.Dropped]{
		done: func(d destinations.Dropped) string { return "dropped " + d.Destination },
		preview: func(d destinations.Dropped) sheet.Parts {
			return sheet.Parts{sheet.Facts(sheet.Of("Destination", d.Destination, "Cursors", d.Cursors, "Undelivered", d.Pending,
				"Held", d.Holds, "Dead", d.DeadLetters))}
		},
	})
}
