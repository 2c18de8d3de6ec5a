package verbs

import (
	"context"

	"github.com/pgoutbox/outbox/admin/sheet"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/health"
)

func relaysList() Verb {
	return reads(Verb{
		Name:  "relays",
		Short: "List relays, what they deliver, and which are gone",
	}, func(ctx context.Context, db admin.DB, _ struct{}) ([]health.Relay, error) {
		r, err := health.Status(ctx, db)
		if err != nil {
			return nil, err
		}
		return r.Relays, nil
	}, func(_ struct{}, relays []health.Relay) sheet.Parts { return sheet.Parts{relayTable(relays)} })
}

func relayTable(relays []health.Relay) sheet.Table {
	const empty = "no relay has ever run on this database: start one by outbox relay"
	return sheet.List("Relays", empty, relays, func(r health.Relay) sheet.Row {
		state, to := sheet.Mark{State: health.StateFlowing, Word: "live"}, any("stands by")
		if !r.Live {
			state = sheet.Mark{State: health.StateLagging, Word: "silent"}
		}
		if len(r.Owns) > 0 {
			to = sheet.Destinations(r.Owns)
		}
		return sheet.Of("Relay", r.Name, "State", state, "Heartbeat", r.HeartbeatAt, "Started", r.StartedAt, "Host", r.Host,
			"Process", sheet.ID(r.PID), "Version", r.Version, "Delivers to", to)
	})
}
