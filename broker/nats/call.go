package nats

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/socket"
	"github.com/pgoutbox/outbox/format"
)

// call is one Publish on one link. All but the last group of fields belongs to the goroutine that
// publishes.
//
// Order: messages of a key form a chain, of which at most one is in flight. It is the only way to keep
// the order, because JetStream judges every message by itself: a stream at its limit refuses the first
// and, a consumer having freed space, accepts the second.
type call struct {
	batch []*outbox.Message
	errs  []error // nil while nothing has failed

	next  []int32 // the next message of the same key, -1 at the end
	state []state
	last  map[string]int32 // the end of each key's chain, while chains are made

	ready []int32 // may be sent, in this order, from sent on
	sent  int

	inFlight, bytes int
	unsettled       int

	encoder *encoder
	subject subject

	wake chan struct{} // capacity 1

	// Guarded by link.mu.
	id      uint64
	answers []answer
	denied  []string // subjects

	spare []answer
}

type state uint8

const (
	waiting state = iota
	inFlight
	settled
)

// answer is what the server said about a message; a nil err means accepted.
type answer struct {
	index int32
	err   error
}

func newCall(subject subject, stream string, records format.Encoder) *call {
	return &call{
		last:    make(map[string]int32),
		encoder: newEncoder(subject, stream, records),
		subject: subject,
		wake:    make(chan struct{}, 1),
	}
}

// begin takes batch in and chains the messages of each key.
func (c *call) begin(batch []*outbox.Message) {
	n := len(batch)
	c.batch, c.errs, c.unsettled = batch, nil, n
	c.sent, c.inFlight, c.bytes = 0, 0, 0
	c.next = grow(c.next, n)
	c.state = grow(c.state, n)
	c.ready = grow(c.ready, n)[:0]
	for i, m := range batch {
		c.next[i], c.state[i] = -1, waiting
		key := m.OrderingKey()
		if key == "" {
			c.ready = append(c.ready, int32(i))
			continue
		}
		if before, follows := c.last[key]; follows {
			c.next[before] = int32(i)
		} else {
			c.ready = append(c.ready, int32(i))
		}
		c.last[key] = int32(i)
	}
	clear(c.last)
}

// release forgets all that belongs to the caller, and makes c ready for another begin.
func (c *call) release() {
	c.batch, c.errs = nil, nil
	c.encoder.release()
	clear(c.answers)
	clear(c.denied)
	c.answers, c.denied = c.answers[:0], c.denied[:0]
	select {
	case <-c.wake:
	default:
	}
}

func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// signal tells the publishing goroutine that there is something to collect.
func (c *call) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// grace is how long a call may take to notice that its context has ended.
const grace = 250 * time.Millisecond

// run publishes on l until every message is settled.
func (c *call) run(ctx context.Context, l *link, cfg *Config) {
	release := socket.Guard(ctx, grace, func(cause error) { l.sever(fmt.Errorf("nats: a write was stuck: %w", cause)) })
	defer release()

	silence := time.NewTimer(cfg.AckTimeout)
	defer silence.Stop()
	for c.unsettled > 0 {
		if l.alive() && ctx.Err() == nil {
			if err := c.send(ctx, l, cfg); err != nil {
				l.sever(err)
			}
		}
		if c.unsettled == 0 {
			return
		}
		select {
		case <-c.wake:
			if c.collect(l) {
				silence.Reset(cfg.AckTimeout)
			}
		case <-l.dead:
			c.collect(l)
			c.abandon(l.cause)
		case <-ctx.Done():
			c.collect(l)
			c.abandon(fmt.Errorf("nats: gave up waiting for acknowledgements: %w", context.Cause(ctx)))
		case <-silence.C:
			if c.collect(l) {
				silence.Reset(cfg.AckTimeout)
				continue
			}
			l.sever(fmt.Errorf("nats: no acknowledgement within %v: the server hangs, the stream has no quorum or can't write to its disk, or it is set not to acknowledge", cfg.AckTimeout))
		}
	}
}

// send publishes what is ready, as far as the window allows. An error means that the link is broken.
func (c *call) send(ctx context.Context, l *link, cfg *Config) error {
	if c.sent == len(c.ready) {
		return nil
	}
	messages, bytes := l.share(cfg.MaxInFlight), l.share(cfg.MaxInFlightBytes)
	for n := 0; c.sent < len(c.ready); n++ {
		i := c.ready[c.sent]
		size := c.size(i)
		if c.inFlight > 0 && (c.inFlight >= messages || c.bytes+size > bytes) {
			return nil
		}
		if n%64 == 63 && ctx.Err() != nil {
			return nil
		}
		c.sent++
		if _, there := l.stored[c.batch[i].ID]; there {
			c.settle(i, nil)
			continue
		}
		msg, err := c.encoder.encode(c.batch[i])
		if err != nil {
			c.settle(i, err)
			continue
		}
		msg.Reply = l.reply(c.id, i)
		switch err := l.nc.PublishMsg(msg); {
		case err == nil:
			c.state[i] = inFlight
			c.inFlight++
			c.bytes += size
		case errors.Is(err, nats.ErrMaxPayload):
			c.settle(i, outbox.Permanent(fmt.Errorf("nats: payload of %d bytes and headers of %d exceed the server's max_payload of %d bytes",
				len(msg.Data), msg.Size()-len(msg.Data)-len(msg.Subject)-len(msg.Reply), l.nc.MaxPayload())))
		case errors.Is(err, nats.ErrHeadersNotSupported):
			c.settle(i, outbox.Unavailable(errors.New("nats: the server does not support headers; JetStream needs NATS 2.2 or later")))
		case errors.Is(err, nats.ErrBadHeaderMsg):
			c.settle(i, outbox.Permanent(fmt.Errorf("nats: headers can't be sent: %w", err)))
		default:
			// Part of the message may be on its way.
			c.state[i] = inFlight
			c.inFlight++
			c.bytes += size
			return connectionLost(err)
		}
	}
	return nil
}

// size is what message i counts in the window.
func (c *call) size(i int32) int { return len(c.batch[i].Payload) + 512 }

// collect settles the messages that were answered. It reports whether there were any.
func (c *call) collect(l *link) bool {
	l.mu.Lock()
	answers, denied := c.answers, c.denied
	c.answers, c.denied = c.spare[:0], nil
	l.mu.Unlock()
	for _, a := range answers {
		// A second answer to the same message, from whomever, changes nothing.
		if int(a.index) < len(c.state) && c.state[a.index] == inFlight {
			c.answered(a.index, a.err)
		}
	}
	for _, subject := range denied {
		c.deny(subject)
	}
	clear(answers)
	c.spare = answers[:0]
	return len(answers)+len(denied) > 0
}

// deny fails the messages in flight on a subject on which the user may not publish.
func (c *call) deny(subject string) {
	for i, m := range c.batch {
		if c.state[i] != inFlight {
			continue
		}
		if own, err := c.subject.of(m); err == nil && own == subject {
			c.answered(int32(i), fmt.Errorf("nats: the user may not publish to %q: allow it in the permissions of the user", subject))
		}
	}
}

func (c *call) answered(i int32, err error) {
	c.inFlight--
	c.bytes -= c.size(i)
	c.settle(i, err)
}

// settle notes the outcome of message i. If it was accepted the next of its key may go, else those
// behind it are skipped.
func (c *call) settle(i int32, err error) {
	c.state[i] = settled
	c.unsettled--
	next := c.next[i]
	if err == nil {
		if next >= 0 {
			c.ready = append(c.ready, next)
		}
		return
	}
	c.fail(i, err)
	for ; next >= 0; next = c.next[next] {
		c.state[next] = settled
		c.unsettled--
		c.fail(next, outbox.ErrSkipped)
	}
}

func (c *call) fail(i int32, err error) {
	if c.errs == nil {
		c.errs = make([]error, len(c.batch))
	}
	c.errs[i] = err
}

// abandon ends the call: what is in flight has an unknown outcome, the rest was not sent.
func (c *call) abandon(cause error) {
	unknown := outbox.Unavailable(fmt.Errorf("%w (outcome unknown)", cause))
	unsent := outbox.Unavailable(fmt.Errorf("%w (not sent)", cause))
	for i := range c.batch {
		switch c.state[i] {
		case inFlight:
			c.answered(int32(i), unknown)
		case waiting:
			// The first of its key that is left; settle skips those behind it.
			c.settle(int32(i), unsent)
		}
	}
}
