package relay

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pgoutbox/outbox"
)

// publish has a batch published in one call. If that panics, the outcome of all its messages is unknown, and they are
// published again by smaller calls, one after the other. A message that panics alone has failed. What comes behind a
// failure is answered as skipped: the next call of the stripe has it.
//
// limit is how large a call of the stripe may be: half of the last one that panicked, and doubled by each that didn't.
// So a broker that always panics gets every message alone, and not the rest of the batch with each.
func (r *Relay) publish(ctx context.Context, batch []*outbox.Message, limit *int) (errs []error) {
	for from := 0; from < len(batch); {
		n := min(*limit, len(batch)-from)
		answers, panicked := r.call(ctx, batch[from:from+n])
		if panicked == nil && n == len(batch) {
			return answers
		}
		if errs == nil {
			errs = slices.Repeat([]error{outbox.ErrSkipped}, len(batch))
		}
		part := errs[from : from+n]
		switch {
		case panicked == nil:
			clear(part)
			copy(part, answers)
			if slices.ContainsFunc(part, func(err error) bool { return err != nil }) {
				return errs
			}
			from += n
			*limit = max(*limit, 2*n)
		case n == 1:
			part[0] = panicked
			return errs
		default:
			*limit = n / 2
		}
	}
	return errs
}

// call is one call to the broker. It answers for every message, or has panicked.
func (r *Relay) call(ctx context.Context, batch []*outbox.Message) (errs []error, panicked error) {
	panicked = try("Broker.Publish", func() { errs = r.broker.Publish(ctx, batch) })
	if errs != nil && len(errs) != len(batch) {
		err := fmt.Errorf("broker answered %d of %d messages: the adapter breaks its contract", len(errs), len(batch))
		errs = slices.Repeat([]error{outbox.Unavailable(err)}, len(batch))
	}
	return errs, panicked
}

// publishAll begins calls, or has them wait for the look at the broker that is due.
func (l *loop) publishAll(calls []*call) {
	r := &l.recognition
	for _, k := range calls {
		if l.calls[k.stripe].IsZero() {
			l.calls[k.stripe] = time.Now()
		}
		if !r.allowsCalls() {
			r.waiting = append(r.waiting, k)
			continue
		}
		l.do("Broker.Publish", func() func() { return l.publish(k) })
	}
}

func (l *loop) publish(k *call) func() {
	started := time.Now()
	errs := l.relay.publish(l.work, k.Batch, &l.callLimits[k.stripe])
	ended := time.Now()
	l.relay.observe(func() { l.relay.cfg.Observer.Published(k.Batch, errs, k.age(ended), ended.Sub(started)) })
	return func() {
		delete(l.calls, k.stripe)
		l.ping.answered(time.Now())
		if slices.ContainsFunc(errs, outbox.IsUnavailable) {
			l.recognition.forget()
		}
		l.logFailures(k, errs)
		l.core.onPublished(time.Now(), k, errs)
	}
}

// age notes how long each message has been due. No age is negative, though the clocks may differ.
func (k *call) age(now time.Time) []time.Duration {
	k.ages = k.ages[:0]
	for _, m := range k.Batch {
		due := m.CreatedAt
		if m.DeliverAt.After(due) {
			due = m.DeliverAt
		}
		k.ages = append(k.ages, max(now.Sub(due), 0))
	}
	return k.ages
}
