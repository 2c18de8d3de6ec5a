package health

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/brokers"
	"github.com/pgoutbox/outbox/internal/shell"
)

func (r *Report) readBrokers(ctx context.Context, tx pgx.Tx) error {
	list, err := brokers.Read(ctx, tx)
	if err != nil {
		return err
	}
	for _, b := range list {
		// Of a destination that nothing else is known of, nothing waits.
		if i := slices.IndexFunc(r.Destinations, func(d Destination) bool { return d.Name == b.Destination }); i >= 0 {
			known := &Broker{Identity: b.Identity, Relay: b.Relay, RecordedAt: b.RecordedAt}
			if len(b.Refused) > 0 {
				known.Refused, known.RefusedBy, known.RefusedAt = b.Refused, b.RefusedBy, b.RefusedAt
			}
			r.Destinations[i].Broker = known
		}
	}
	return nil
}

// refusesFor is how long a refusal counts as going on: a relay tries again every few seconds.
const refusesFor = 30 * time.Second

// misdirected returns the finding that a relay has another broker than the destination, if a relay refuses at present.
func (r *Report) misdirected(d *Destination) (f Finding, ok bool) {
	b := d.Broker
	if b == nil || len(b.Refused) == 0 || r.At.Sub(b.RefusedAt) > refusesFor {
		return f, false
	}
	return Finding{State: StateBroken, Cause: fmt.Sprintf("relay %s has another broker than this destination and sends nothing to it: "+
		"it has %s, and the destination is delivered to %s, as relay %s recorded",
		b.RefusedBy, brokers.Text(b.Refused), brokers.Text(b.Identity), b.Relay),
		Advice: "correct the broker in the configuration of " + b.RefusedBy + "; only if the destination is to move to that broker",
		Next:   "outbox destinations move " + shell.Word(d.Name)}, true
}

// otherBroker finds a group whose relay refuses its broker, also between two attempts.
func otherBroker(r *Report, d *Destination, g *Group) (f Finding, ok bool) {
	if !g.refuses(d.Broker) {
		return f, false
	}
	f, ok = r.misdirected(d)
	f.Since = g.StateSince
	return f, ok
}

// refuses reports whether the group is not delivered because its relay may have refused its broker.
func (g *Group) refuses(b *Broker) bool {
	return !g.Live || g.State == "broken" || b != nil && len(b.Refused) > 0 && g.Owner == b.RefusedBy
}

// otherBrokerBeside finds a relay that refuses its broker while other relays deliver everything.
func otherBrokerBeside(r *Report, d *Destination) (f Finding, ok bool) {
	if slices.ContainsFunc(d.Groups, func(g Group) bool { return g.refuses(d.Broker) }) {
		return f, false
	}
	f, ok = r.misdirected(d)
	f.State = StateAtRisk
	return f, ok
}
