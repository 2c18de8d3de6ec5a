package around

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/relay"
)

// Pace returns a broker that publishes at most rate messages a second to inner, over all its calls, and at once never
// more than a tenth of a second's worth, or one. It splits a call with more messages into parts, one after the other; a
// message behind a failed one of its key is not sent with a later part. When ctx ends, messages that have not been sent
// are answered as unavailable. rate must be positive. Closing the broker closes inner.
func Pace(inner relay.Broker, rate int) relay.Broker {
	return wrap(newPacing(inner, rate, time.Now, sleep), inner)
}

func newPacing(inner relay.Broker, rate int, now func() time.Time, sleep func(context.Context, time.Duration) error) *pacing {
	p := &pacing{inner: inner, rate: rate, part: max(1, rate/10), now: now, sleep: sleep}
	p.interval = time.Second / time.Duration(rate)
	return p
}

type pacing struct {
	inner    relay.Broker
	rate     int
	part     int
	interval time.Duration
	now      func() time.Time
	sleep    func(context.Context, time.Duration) error

	mu   sync.Mutex
	next time.Time // when the message after those already let through is due
}

func (p *pacing) Publish(ctx context.Context, batch []*outbox.Message) []error {
	if len(batch) <= p.part {
		if err := p.wait(ctx, len(batch)); err != nil {
			return slices.Repeat([]error{p.held(err)}, len(batch))
		}
		return p.inner.Publish(ctx, batch)
	}
	return p.inParts(ctx, batch)
}

func (p *pacing) inParts(ctx context.Context, batch []*outbox.Message) []error {
	var o outcomes
	var part []*outbox.Message
	var from []int
	for i := 0; i < len(batch); {
		part, from = part[:0], from[:0]
		for ; i < len(batch) && len(part) < p.part; i++ {
			if m := batch[i]; o.skips(m) {
				o.fail(i, len(batch), m, outbox.ErrSkipped)
				continue
			}
			part, from = append(part, batch[i]), append(from, i)
		}
		if len(part) == 0 {
			break
		}
		if err := p.wait(ctx, len(part)); err != nil {
			o.failRest(from[0], batch, p.held(err))
			break
		}
		var down error
		for k, err := range p.inner.Publish(ctx, part) {
			if err != nil {
				o.fail(from[k], len(batch), part[k], err)
			}
			if outbox.IsUnavailable(err) {
				down = err
			}
		}
		if down != nil {
			o.failRest(i, batch, outbox.Unavailable(fmt.Errorf("not sent, because an earlier message of the call got no answer: %w", down)))
			break
		}
	}
	return o.errs
}

func (p *pacing) held(err error) error {
	return outbox.Unavailable(fmt.Errorf("not sent: the call ended while the rate limit of %d messages a second held it back: %w",
		p.rate, err))
}

// wait returns when n messages may be sent. Waiting calls are served in turn. A call that gives up returns its share.
func (p *pacing) wait(ctx context.Context, n int) error {
	cost := time.Duration(n) * p.interval
	p.mu.Lock()
	now := p.now()
	if p.next.Before(now) {
		p.next = now
	}
	at := p.next
	p.next = p.next.Add(cost)
	p.mu.Unlock()
	if pause := at.Sub(now); pause > 0 {
		if err := p.sleep(ctx, pause); err != nil {
			p.mu.Lock()
			p.next = p.next.Add(-cost)
			p.mu.Unlock()
			return err
		}
	}
	return ctx.Err()
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
