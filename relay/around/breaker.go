package around

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/relay"
)

// Breaker returns a broker that treats a series of failures as an outage: once messages of threshold different ids have
// failed since inner last accepted one, failures are answered as unavailable. The relay then stalls the destination,
// probes it with one call at a time, and spends no attempts. The first accepted message ends the outage. Refusals
// (permanent errors) and what is marked by outbox.OfMessage don't count and are passed on, because each is about one
// message. A single message that keeps failing is no outage either. threshold must be positive. Closing the broker
// closes inner.
func Breaker(inner relay.Broker, threshold int) relay.Broker {
	return wrap(&breaker{inner: inner, threshold: threshold, failing: map[outbox.ID]struct{}{}}, inner)
}

type breaker struct {
	inner     relay.Broker
	threshold int

	mu      sync.Mutex
	failing map[outbox.ID]struct{} // ids that failed since the last acceptance; at most threshold
}

func (b *breaker) Publish(ctx context.Context, batch []*outbox.Message) []error {
	errs := b.inner.Publish(ctx, batch)
	if !b.outage(batch, errs) {
		return errs
	}
	for i, err := range errs {
		if counts(err) {
			errs[i] = outbox.Unavailable(fmt.Errorf("%d different messages in a row have failed, so the destination counts as down: %w",
				b.threshold, err))
		}
	}
	return errs
}

// outage takes the outcome of a call and reports whether its failures count as an outage.
func (b *breaker) outage(batch []*outbox.Message, errs []error) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if errs == nil {
		if len(batch) > 0 {
			clear(b.failing)
		}
		return false
	}
	for _, err := range errs {
		if err == nil {
			clear(b.failing)
			return false
		}
	}
	for i, err := range errs {
		if counts(err) && len(b.failing) < b.threshold {
			b.failing[batch[i].ID] = struct{}{}
		}
	}
	return len(b.failing) >= b.threshold
}

// counts reports whether an error is one that a retry may cure, that counts as an attempt, and that may be about the
// destination.
func counts(err error) bool {
	return err != nil && !outbox.IsPermanent(err) && !outbox.IsUnavailable(err) &&
		!outbox.IsTopicUnavailable(err) && !outbox.IsOfMessage(err) && !errors.Is(err, outbox.ErrSkipped)
}
