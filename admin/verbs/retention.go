package verbs

import (
	"context"
	"fmt"

	"github.com/pgoutbox/outbox/admin/sheet"
	"github.com/pgoutbox/outbox/internal/printed"

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
	}, func(_ struct{}, segments []health.RetainedSegment) sheet.Parts {
		var total, needed int64
		for _, s := range segments {
			if total += s.Bytes; len(s.NeededBy) > 0 {
				needed += s.Bytes
			}
		}
		return sheet.Parts{sheet.Hint(fmt.Sprintf("The outbox has %s, of which %s are needed by somebody",
			printed.Bytes(total), printed.Bytes(needed))),
			sheet.List("Segments", "", segments, func(s health.RetainedSegment) sheet.Row {
				return sheet.Of("Segment", sheet.Code(s.Name), "Size", sheet.Bytes(s.Bytes),
					"Messages", admin.Count{N: s.Messages, Estimated: true},
					"Oldest", sheet.Clock(s.Oldest), "Needed by", sheet.Destinations(s.NeededBy), "Emptied", s.Emptied())
			})}
	})
}
