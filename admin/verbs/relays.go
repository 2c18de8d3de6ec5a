package verbs

import (
	"context"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/health"
)

func relays() Verb {
	return reads(Verb{
		Name:  "relays",
		Short: "List relays, what they deliver, and which are gone",
	}, func(ctx context.Context, db admin.DB, _ struct{}) ([]health.Relay, error) {
		r, err := health.Status(ctx, db)
		if err != nil {
			return nil, err
		}
		return r.Relays, nil
	})
}
