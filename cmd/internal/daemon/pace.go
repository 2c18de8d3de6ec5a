package daemon

import (
	"context"
	"fmt"
	"slices"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/cmd/internal/bounds"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/relay"
)

// paced bounds what a destination with a rate limit, or of a database with a quota and some parts, reads ahead: a batch
// is a tenth of a second's worth, so that a call doesn't last, and everything in flight can be sent in half of the time
// that a shutdown waits.
func paced(d config.Destination, quota config.Quota, parts int) relay.Config {
	c := d.Engine()
	half := (d.DrainTimeout / 2).Seconds()
	rate := c.Rate
	if of := float64(quota.Messages) / float64(max(parts, 1)); of > 0 && (rate == 0 || of < rate) {
		rate = of
	}
	if rate > 0 {
		c.Batch = min(c.Batch, max(1, int(rate/10)))
		c.MaxInFlight = max(2*c.Batch, min(c.MaxInFlight, int(rate*half)))
	}
	if of := float64(quota.Bytes) / float64(max(parts, 1)); of > 0 {
		c.MaxInFlightBytes = min(c.MaxInFlightBytes, max(1024, int(of*half)))
	}
	return c
}

// quota is a broker whose calls wait until their database may send so much.
type quota struct {
	relay.Broker
	quota *bounds.Quota
}

var _ relay.Wrapper = (*quota)(nil)

func withQuota(b relay.Broker, q *bounds.Quota) relay.Broker {
	if q == nil {
		return b
	}
	return &quota{b, q}
}

// Unwrap returns the broker.
func (b *quota) Unwrap() relay.Broker { return b.Broker }

func (b *quota) Publish(ctx context.Context, batch []*outbox.Message) []error {
	size := bounds.Amount{Messages: int64(len(batch))}
	for _, m := range batch {
		size.Bytes += int64(len(m.Payload))
	}
	if err := b.quota.Take(ctx, size); err != nil {
		err = outbox.Unavailable(fmt.Errorf("gave up waiting for the database's quota: %w", err))
		return slices.Repeat([]error{err}, len(batch))
	}
	return b.Broker.Publish(ctx, batch)
}
