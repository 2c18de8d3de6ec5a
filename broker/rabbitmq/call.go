package rabbitmq

import (
	"context"
	"fmt"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/inorder"
	"github.com/pgoutbox/outbox/internal/printed"
	"github.com/rabbitmq/amqp091-go"
)

// call is one Publish on one channel. It belongs to the goroutine that publishes.
//
// Order: the messages of a key form a chain, of which at most one is in flight. Nothing less keeps the order: a queue
// decides about each message alone, and a full one refuses the first and, once a consumer has made room, accepts the
// second. The same goes for a message that is returned because nothing is bound to its routing key yet.
type call struct {
	inorder.Batch

	flight []flying // sent and not settled, in the order of sending, from landed on
	landed int
	bytes  int
	alone  bool // the message in flight may close the channel, so it is sent alone

	returned map[int32]error
	encoder  *encoder
}

// flying is a message in flight.
type flying struct {
	index        int32
	body         int // bytes
	confirmation *amqp091.DeferredConfirmation
}

func newCall(e *encoder) *call {
	return &call{returned: make(map[int32]error), encoder: e}
}

// begin starts a call with batch.
func (c *call) begin(batch []*outbox.Message) {
	c.Begin(batch)
	c.flight, c.landed, c.bytes, c.alone = c.flight[:0], 0, 0, false
}

// release drops references to the caller's data, and makes c ready for another begin.
func (c *call) release() {
	c.End()
	clear(c.flight[:cap(c.flight)])
	clear(c.returned)
	c.encoder.release()
}

// clean reports whether nothing is in flight that the channel could still report on.
func (c *call) clean() bool { return c.landed == len(c.flight) }

// run publishes on ch until every message is settled.
func (c *call) run(ctx context.Context, l *link, ch *channel, cfg *Config) {
	release := l.Guard(ctx, "rabbitmq")
	defer release()

	silence := time.NewTimer(cfg.AckTimeout)
	defer silence.Stop()
	for c.Left() > 0 {
		if l.Usable() && ctx.Err() == nil {
			c.send(ctx, l, ch, cfg)
		}
		if c.Left() == 0 {
			return
		}
		if c.landed == len(c.flight) { // nothing can be sent, or the last message has just failed
			switch {
			case !l.Usable():
				<-l.Dead
				c.Abandon(l.Cause())
			case ctx.Err() != nil:
				c.Abandon(gaveUp(ctx))
			case ch.ch.IsClosed():
				c.Abandon(c.closed(l, ch))
			default:
				if err := l.blockedFault(); err != nil {
					c.Abandon(err)
				}
			}
			continue
		}
		select {
		case <-c.flight[c.landed].confirmation.Done():
			if !c.collect(l, ch) {
				c.Abandon(c.closed(l, ch))
			}
			silence.Reset(cfg.AckTimeout)
		case <-l.Dead:
			c.collect(l, ch)
			c.Abandon(l.Cause())
		case <-ctx.Done():
			c.collect(l, ch)
			c.Abandon(gaveUp(ctx))
		case <-silence.C:
			if err := l.blockedFault(); err != nil {
				// The connection stays: the server will take what was sent when the alarm is over, and sending it again
				// over a new connection would only add repeats.
				c.Abandon(err)
				continue
			}
			l.Sever(fmt.Errorf("rabbitmq: no confirmation within %v: the server hangs, a queue has no quorum, or can't write to its disk",
				cfg.AckTimeout))
		}
	}
}

func gaveUp(ctx context.Context) error {
	return fmt.Errorf("rabbitmq: gave up waiting for confirmations: %w", context.Cause(ctx))
}

// send publishes what is ready, as far as the window allows.
func (c *call) send(ctx context.Context, l *link, ch *channel, cfg *Config) {
	for n := 0; ; n++ {
		i, ok := c.Next()
		if !ok {
			return
		}
		size := c.size(i)
		sent := len(c.flight) - c.landed
		if sent > 0 && (c.alone || sent >= cfg.MaxInFlight || c.bytes+size > cfg.MaxInFlightBytes) {
			return
		}
		if n%64 == 0 && (ctx.Err() != nil || l.blockedFault() != nil) {
			return
		}
		r, err := c.encoder.encode(c.Messages[i], l.conn.Config.FrameSize)
		if err == nil {
			err = l.tooLarge(len(r.publishing.Body))
		}
		if err == nil {
			err = l.find(ctx, r.exchange)
		}
		if err == nil {
			refused, test := l.refusalOf(r.exchange, r.routingKey)
			if test && sent > 0 {
				return // until it can be sent alone
			}
			if c.alone = test; !test {
				err = refused
			}
		}
		if err != nil {
			c.Settle(i, err)
			continue
		}
		confirmation, err := ch.ch.PublishWithDeferredConfirm(r.exchange, r.routingKey, true, false, r.publishing)
		if err != nil {
			// A part of the message may have been sent.
			if !ch.ch.IsClosed() {
				l.Sever(fmt.Errorf("rabbitmq: connection lost: %w", err))
			}
			c.Settle(i, inorder.Unknown(err))
			return
		}
		c.Take(i)
		c.bytes += size
		c.flight = append(c.flight, flying{index: i, body: len(r.publishing.Body), confirmation: confirmation})
	}
}

// size is what message i counts in the window.
func (c *call) size(i int32) int { return len(c.Messages[i].Payload) + 512 }

// collect settles the messages that were confirmed, oldest first. It returns false when the channel is closed: then
// confirmations mean nothing, because the library invents the missing ones.
func (c *call) collect(l *link, ch *channel) bool {
	for c.landed < len(c.flight) {
		f := c.flight[c.landed]
		select {
		case <-f.confirmation.Done():
		default:
			return true
		}
		acked := f.confirmation.Acked()
		if !acked && ch.ch.IsClosed() {
			return false
		}
		// The server returns a message before it confirms it, so all returned messages are here by now.
		c.noteReturns(ch)
		c.landed++
		c.bytes -= c.size(f.index)
		switch err := c.returned[f.index]; {
		case err != nil:
			c.Settle(f.index, err)
		case !acked:
			c.Settle(f.index, outbox.Unavailable(fmt.Errorf("rabbitmq: a queue for routing key %q refused the message: "+
				"it is full, or has an internal fault", printed.Short(c.encoder.routingKey.Expand(c.Messages[f.index])))))
		default:
			if c.alone {
				m := c.Messages[f.index]
				l.allowed(c.encoder.exchange.Expand(m), c.encoder.routingKey.Expand(m))
			}
			c.Settle(f.index, nil)
		}
		if c.landed == len(c.flight) {
			c.flight, c.landed = c.flight[:0], 0
		}
	}
	return true
}

// noteReturns records the messages that the server could not route.
func (c *call) noteReturns(ch *channel) {
	for len(ch.returns) > 0 {
		returned, open := <-ch.returns
		if !open {
			return
		}
		id, err := outbox.ParseID(returned.MessageId)
		if err != nil {
			continue // not one of ours
		}
		for _, f := range c.flight[c.landed:] {
			if c.Messages[f.index].ID == id && c.returned[f.index] == nil {
				c.returned[f.index] = unroutable(&returned)
				break
			}
		}
	}
}
