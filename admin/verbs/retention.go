package verbs

import (
	"context"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/health"
)

func retention() Verb {
	return reads(Verb{
		Name:  "retention",
		Short: "List the segments of the outbox, what is in them and who keeps them from being emptied",
		Long: `The outbox has eight segments, and each is written to for ten minutes in its turn. One whose turn is over is emptied
as soon as every destination has passed it: every relay looks after that, as often as retention.interval in its
configuration says (30 s), unless retention.enabled is false there. So what was delivered is gone within minutes; a
destination with an archive (broker: archive) keeps it for longer.

A segment that a destination needs waits for it: outbox status says what holds the destination up, and
outbox destinations drop removes one that nobody serves any more. How many messages there are is the server's estimate.`,
		Example: `  outbox retention
  outbox retention -o json`,
	}, func(ctx context.Context, db admin.DB, _ struct{}) ([]health.RetainedSegment, error) {
		return health.Retention(ctx, db)
	})
}
