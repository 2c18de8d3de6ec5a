package around

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/route"
)

// Step changes one message on its way. m is a copy: its strings, payload and headers may be replaced, but not written
// to. The header list is m's own, with room for as many more headers as Steps was told.
//
// An error is the answer for the message, marked as a broker would mark it; route.ErrDropped makes the answer accepted.
// After an unavailable error, no other message of the call is tried; they all get that answer. A panic is one of the
// broker's Publish. Steps are called from several goroutines at once.
type Step func(ctx context.Context, m *outbox.Message) error

// Routing is the step that applies rules.
func Routing(rules *route.Rules) Step {
	return func(_ context.Context, m *outbox.Message) error { return rules.Apply(m) }
}

// Steps returns a broker that passes every message through steps, in order, and publishes the results to inner. It
// doesn't change the caller's messages. headers is the most headers that the steps add to a message without allocating.
// Closing the broker closes inner.
func Steps(inner relay.Broker, headers int, steps ...Step) relay.Broker {
	return wrap(&stepping{inner: inner, steps: steps, room: headers}, inner)
}

type stepping struct {
	inner relay.Broker
	steps []Step
	room  int
	spare sync.Pool // of *passage
}

// passage is the memory of a call, which is used again.
type passage struct {
	outcomes
	copies  []outbox.Message
	headers []outbox.Header
	batch   []*outbox.Message
	from    []int // for each message of batch, its index in the caller's
}

func (s *stepping) Publish(ctx context.Context, batch []*outbox.Message) []error {
	p, _ := s.spare.Get().(*passage)
	if p == nil {
		p = &passage{}
	}
	defer func() {
		p.release()
		s.spare.Put(p)
	}()
	p.prepare(batch, s.room)
	for i, m := range batch {
		if p.skips(m) {
			p.fail(i, len(batch), m, outbox.ErrSkipped)
			continue
		}
		dropped, err := s.pass(ctx, p, m)
		if outbox.IsUnavailable(err) {
			p.failRest(i, batch, err)
			break
		}
		switch {
		case err != nil:
			p.fail(i, len(batch), m, err)
		case !dropped:
			p.batch = append(p.batch, &p.copies[len(p.copies)-1])
			p.from = append(p.from, i)
		}
	}
	s.publish(ctx, p, batch)
	return p.errs
}

// pass copies m and applies the steps to the copy.
func (s *stepping) pass(ctx context.Context, p *passage, m *outbox.Message) (dropped bool, err error) {
	p.copies = append(p.copies, *m)
	c := &p.copies[len(p.copies)-1]
	if s.room > 0 || len(m.Headers) > 0 {
		from, to := len(p.headers), len(p.headers)+len(m.Headers)
		p.headers = append(p.headers, m.Headers...)
		p.headers = p.headers[:to+s.room]
		c.Headers = p.headers[from:to:len(p.headers)]
	}
	for _, step := range s.steps {
		if err := step(ctx, c); err != nil {
			return errors.Is(err, route.ErrDropped), unlessDropped(err)
		}
	}
	return false, nil
}

func unlessDropped(err error) error {
	if errors.Is(err, route.ErrDropped) {
		return nil
	}
	return err
}

func (s *stepping) publish(ctx context.Context, p *passage, batch []*outbox.Message) {
	if len(p.batch) == 0 {
		return
	}
	errs := s.inner.Publish(ctx, p.batch)
	if errs == nil {
		return
	}
	if len(errs) != len(p.batch) {
		errs = slices.Repeat(
			[]error{outbox.Unavailable(errors.New("the adapter breaks its contract: it didn't answer for every message"))}, len(p.batch))
	}
	for k, err := range errs {
		if i := p.from[k]; err != nil {
			p.fail(i, len(batch), batch[i], err)
		}
	}
}

// prepare makes room for all copies and headers, because pointers to them are kept.
func (p *passage) prepare(batch []*outbox.Message, room int) {
	headers := 0
	for _, m := range batch {
		headers += len(m.Headers) + room
	}
	p.copies = slices.Grow(p.copies[:0], len(batch))
	p.headers = slices.Grow(p.headers[:0], headers)
	p.batch = slices.Grow(p.batch[:0], len(batch))
	p.from = slices.Grow(p.from[:0], len(batch))
}

// release drops references to the caller's data. The errors now belong to the caller.
func (p *passage) release() {
	clear(p.copies)
	clear(p.headers)
	clear(p.batch)
	p.copies, p.headers, p.batch, p.from = p.copies[:0], p.headers[:0], p.batch[:0], p.from[:0]
	p.outcomes = outcomes{}
}
