package console

import (
	"time"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/health"
)

// totals are sums over a database's destinations.
type totals struct {
	pending, held, dead admin.Count
	oldest              time.Time
}

func totalsOf(r *health.Report) (t totals) {
	add := func(sum *admin.Count, n admin.Count) { sum.N, sum.Estimated = sum.N+n.N, sum.Estimated || n.Estimated }
	for i := range r.Destinations {
		d := &r.Destinations[i]
		add(&t.pending, d.Pending)
		add(&t.held, d.Held.Messages)
		add(&t.dead, d.Dead.Messages)
		if !d.Oldest.IsZero() && (t.oldest.IsZero() || d.Oldest.Before(t.oldest)) {
			t.oldest = d.Oldest
		}
	}
	return t
}
