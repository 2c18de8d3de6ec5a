package nats

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/inorder"
	"github.com/pgoutbox/outbox/format"
)

// call is one Publish on one link. All but the last group of fields belongs to the goroutine that publishes.
//
// Order: the messages of a key form a chain, of which at most one is in flight. Nothing less keeps the order, because
// JetStream decides about each message alone: a stream at its limit refuses the first and, once a consumer has freed
// space, accepts the second.
type call struct {
	inorder.Batch

	inFlight, bytes int

	encoder *encoder
	subject subject

	wake chan struct{} // capacity 1

	// Guarded by link.mu.
	id      uint64
	answers []answer
	denied  []string // subjects

	spare []answer
}

// answer is the server's answer to a message; a nil err means accepted.
type answer struct {
	index int32
	err   error
}

func newCall(subject subject, stream string, records format.Encoder) *call {
	return &call{
		encoder: newEncoder(subject, stream, records),
		subject: subject,
		wake:    make(chan struct{}, 1),
	}
}

// begin starts a call with batch.
func (c *call) begin(batch []*outbox.Message) {
	c.Begin(batch)
	c.inFlight, c.bytes = 0, 0
}

// release drops references to the caller's data, and makes c ready for another begin.
func (c *call) release() {
	c.End()
	c.encoder.release()
	clear(c.answers)
	clear(c.denied)
	c.answers, c.denied = c.answers[:0], c.denied[:0]
	select {
	case <-c.wake:
	default:
	}
}

// signal tells the publishing goroutine that there are answers to collect.
func (c *call) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// run publishes on l until every message is settled.
func (c *call) run(ctx context.Context, l *link, cfg *Config) {
	release := l.Guard(ctx, "nats")
	defer release()

	silence := time.NewTimer(cfg.AckTimeout)
	defer silence.Stop()
	for c.Left() > 0 {
		if l.Alive() && ctx.Err() == nil {
			if err := c.send(ctx, l, cfg); err != nil {
				l.Sever(err)
			}
		}
		if c.Left() == 0 {
			return
		}
		select {
		case <-c.wake:
			if c.collect(l) {
				silence.Reset(cfg.AckTimeout)
			}
		case <-l.Dead:
			c.collect(l)
			c.Abandon(l.Cause())
		case <-ctx.Done():
			c.collect(l)
			c.Abandon(fmt.Errorf("nats: gave up waiting for acknowledgements: %w", context.Cause(ctx)))
		case <-silence.C:
			if c.collect(l) {
				silence.Reset(cfg.AckTimeout)
				continue
			}
			l.Sever(fmt.Errorf("nats: no acknowledgement within %v: the server hangs, the stream has no quorum or can't "+
				"write to its disk, or it is set not to acknowledge", cfg.AckTimeout))
		}
	}
}

// send publishes what is ready, as far as the window allows. An error means that the link is broken.
func (c *call) send(ctx context.Context, l *link, cfg *Config) error {
	messages, bytes := l.share(cfg.MaxInFlight), l.share(cfg.MaxInFlightBytes)
	for n := 0; ; n++ {
		i, ok := c.Next()
		if !ok {
			return nil
		}
		size := c.size(i)
		if c.inFlight > 0 && (c.inFlight >= messages || c.bytes+size > bytes) {
			return nil
		}
		if n%64 == 63 && ctx.Err() != nil {
			return nil
		}
		if _, there := l.stored[c.Messages[i].ID]; there {
			c.Settle(i, nil)
			continue
		}
		msg, err := c.encoder.encode(c.Messages[i])
		if err != nil {
			c.Settle(i, err)
			continue
		}
		msg.Reply = l.reply(c.id, i)
		switch err := l.nc.PublishMsg(msg); {
		case err == nil:
			c.take(i)
		case errors.Is(err, nats.ErrMaxPayload):
			c.Settle(i,
				outbox.Permanent(fmt.Errorf("nats: payload of %d bytes and headers of %d exceed the server's max_payload of %d bytes",
					len(msg.Data), msg.Size()-len(msg.Data)-len(msg.Subject)-len(msg.Reply), l.nc.MaxPayload())))
		case errors.Is(err, nats.ErrHeadersNotSupported):
			c.Settle(i, outbox.Unavailable(errors.New("nats: the server does not support headers; JetStream needs NATS 2.2 or later")))
		case errors.Is(err, nats.ErrBadHeaderMsg):
			c.Settle(i, outbox.Permanent(fmt.Errorf("nats: headers can't be sent: %w", err)))
		default:
			c.take(i) // a part of it may have been sent
			return connectionLost(err)
		}
	}
}

func (c *call) take(i int32) {
	c.Take(i)
	c.inFlight++
	c.bytes += c.size(i)
}

// size is what message i counts in the window.
func (c *call) size(i int32) int { return len(c.Messages[i].Payload) + 512 }

// collect settles the messages that were answered. It reports whether there were any.
func (c *call) collect(l *link) bool {
	l.mu.Lock()
	answers, denied := c.answers, c.denied
	c.answers, c.denied = c.spare[:0], nil
	l.mu.Unlock()
	for _, a := range answers {
		// A second answer to a message has no effect.
		if c.Taken(a.index) {
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
	for i, m := range c.Messages {
		if !c.Taken(int32(i)) {
			continue
		}
		if own, err := c.subject.expanded(m); err == nil && own == subject {
			c.answered(int32(i), outbox.TopicUnavailable(fmt.Errorf("nats: the user may not publish to %q: allow it in "+
				"the permissions of the user", subject)))
		}
	}
}

func (c *call) answered(i int32, err error) {
	c.inFlight--
	c.bytes -= c.size(i)
	c.Settle(i, err)
}
