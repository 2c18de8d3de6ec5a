package verbs

import (
	"context"

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
	})
}

// DestinationsDrop are the parameters of "destinations drop".
type DestinationsDrop struct {
	Destination string `json:"destination" arg:"NAME" required:"true" help:"the destination to drop"`
	Intent
}

func destinationsDrop() Verb {
	return changes(Verb{
		Name:  "destinations drop",
		Short: "Remove a destination with its cursor, held messages and dead letters",
		Long: `A destination that no relay serves any more keeps the outbox from being emptied. Dropping it removes its
cursor, its held messages and its dead letters; what it has not delivered, it never will. It is refused
while a relay delivers to it, and while one that delivered to it last still has its session, as a frozen one.

A destination that comes back under the name later begins with everything that is still in the outbox.`,
		Example: `  outbox destinations drop old-kafka --dry-run
  outbox destinations drop old-kafka --reason "moved to the new cluster"`,
	}, func(ctx context.Context, db admin.DB, action admin.Action, p DestinationsDrop) (destinations.Dropped, error) {
		return destinations.Drop(ctx, db, p.Destination, action)
	})
}
