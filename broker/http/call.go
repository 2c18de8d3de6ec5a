package http

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/inorder"
	"github.com/pgoutbox/outbox/broker/internal/search"
	"github.com/pgoutbox/outbox/internal/printed"
	"github.com/pgoutbox/outbox/webhook"
)

// call is one Publish. The messages of a key form a chain, and no two requests carry messages of the same chain at a
// time: the next one is sent when the previous one is accepted. With batches, one request takes as much of a chain as
// fits, and the receiver keeps the order within it.
type call struct {
	broker *Broker
	ready  chan int32 // messages that may be sent; has room for all; closed when every message is settled

	gathering sync.Mutex // held by the worker that takes what is ready: the others leave it some for its batch

	mu sync.Mutex
	*inorder.Batch
	abandoned error // why nothing more is sent in this call
	spent     search.Budget
}

func newCall(b *Broker, batch []*outbox.Message) *call {
	c := &call{broker: b, Batch: b.batches.Begin(batch), ready: make(chan int32, len(batch))}
	c.hand()
	return c
}

// hand passes messages that may be sent to the workers. c.mu is held, or the call is new.
func (c *call) hand() {
	for i, ok := c.Next(); ok; i, ok = c.Next() {
		c.Take(i)
		c.ready <- i
	}
}

// work sends until every message of the call is settled.
func (c *call) work(ctx context.Context) {
	var at rounds
	defer at.close()
	for {
		group, more := c.next()
		if !more {
			return
		}
		if err := c.mayNotSend(ctx); err != nil {
			c.settleAll(group, err)
			continue
		}
		select {
		case c.broker.slots <- struct{}{}:
			c.deliver(ctx, &at, group)
			<-c.broker.slots
		case <-ctx.Done():
			c.settleAll(group, outbox.Unavailable(fmt.Errorf("http: not sent: %w", context.Cause(ctx))))
		}
	}
}

// next waits for what may be sent, and returns as much of it as fits into a request, which may be nothing. more is
// false when every message of the call is settled.
func (c *call) next() (group []int32, more bool) {
	c.gathering.Lock()
	defer c.gathering.Unlock()
	i, more := <-c.ready
	if !more {
		return nil, false
	}
	return c.gather(i), true
}

// mayNotSend returns why nothing may be sent at present.
func (c *call) mayNotSend(ctx context.Context) error {
	if ctx.Err() != nil {
		return outbox.Unavailable(fmt.Errorf("http: not sent: %w", context.Cause(ctx)))
	}
	c.mu.Lock()
	abandoned := c.abandoned
	c.mu.Unlock()
	if abandoned != nil {
		return abandoned
	}
	return c.broker.refuses()
}

// gather returns the messages of one batch that begins with message i: messages that are ready, and their successors,
// as far as they fit. It settles messages that can't be sent at all.
func (c *call) gather(i int32) []int32 {
	cfg := &c.broker.cfg
	var group []int32
	bytes := 0
	room := func() bool { return len(group) == 0 || len(group) < cfg.Batch && bytes < cfg.BatchBytes }
	for {
		for head := i; i >= 0 && room(); i = c.After(i) {
			if err := cfg.tooLarge(c.Messages[i]); err != nil {
				if i == head {
					c.settle(i, err) // its key has no earlier message
				}
				break
			}
			c.take(i)
			group = append(group, i)
			bytes += len(c.Messages[i].Payload)
		}
		if !room() {
			return group
		}
		select {
		case n, open := <-c.ready:
			if !open {
				return group
			}
			i = n
		default:
			return group
		}
	}
}

// deliver sends a group in one request, and settles it.
func (c *call) deliver(ctx context.Context, at *rounds, group []int32) {
	switch {
	case len(group) == 0:
	case c.broker.cfg.Batch > 1:
		c.several(ctx, at, group)
	default:
		c.settle(group[0], c.single(ctx, at, c.Messages[group[0]]))
	}
}

// single sends m in a request of its own.
func (c *call) single(ctx context.Context, at *rounds, m *outbox.Message) error {
	b := c.broker
	u, err := b.endpoint.url(m)
	if err != nil {
		return err
	}
	r := request{url: u, header: at.header(ctx), id: m.ID.String()}
	if err := b.cfg.fill(&r, m); err != nil {
		return err
	}
	a, err := b.post(ctx, at, r)
	if err != nil {
		return err
	}
	if success(a.status) {
		return nil
	}
	return b.judge(a, "topic "+strconv.Quote(printed.Short(m.Topic)))
}

// several sends group in one request and settles its messages. If the receiver refuses the request as a whole, possibly
// because of one message, it is halved until that message is found.
func (c *call) several(ctx context.Context, at *rounds, group []int32) {
	b := c.broker
	batch := make([]*outbox.Message, len(group))
	for n, i := range group {
		batch[n] = c.Messages[i]
	}
	var body bytes.Buffer
	if err := webhook.WriteBatch(&body, batch); err != nil {
		if len(group) == 1 {
			c.settle(group[0], outbox.Permanent(err))
		} else {
			c.halves(ctx, at, group)
		}
		return
	}
	header := at.header(ctx)
	header["Content-Type"] = []string{webhook.BatchType}
	a, err := b.post(ctx, at, request{
		url: b.endpoint.fixed, header: header, id: webhook.BatchID(batch), body: body.Bytes(), results: len(group),
	})
	if err == nil && a.status == http.StatusMultiStatus {
		for n, err := range b.results(a, len(group)) {
			c.settle(group[n], err)
		}
		return
	}
	if err == nil {
		err = b.judge(a, fmt.Sprintf("a batch of %d", len(group)))
	}
	if err == nil || outbox.IsUnavailable(err) || len(group) == 1 {
		c.settleAll(group, err)
		return
	}
	c.halves(ctx, at, group)
}

// halves sends group in two requests, if the call may look on.
func (c *call) halves(ctx context.Context, at *rounds, group []int32) {
	if !c.spent.Spend(2) {
		c.settleAll(group, search.ErrUndecided)
		return
	}
	half := len(group) / 2
	c.several(ctx, at, group[:half])
	rest := c.unsettled(group[half:])
	if err := c.mayNotSend(ctx); err != nil {
		c.settleAll(rest, err)
	} else if len(rest) > 0 {
		c.several(ctx, at, rest)
	}
}

// unsettled returns the messages of group whose keys have no earlier failure.
func (c *call) unsettled(group []int32) []int32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(group, c.Settled)
}

func (c *call) take(i int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Take(i)
}

func (c *call) settleAll(group []int32, err error) {
	for _, i := range group {
		c.settle(i, err)
	}
}

// settle notes the outcome of message i, and passes on the messages that may be sent because of it. It closes the
// channel after the last outcome: nothing more can become ready.
func (c *call) settle(i int32, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Settled(i) {
		return
	}
	if c.abandoned == nil && outbox.IsUnavailable(err) {
		c.abandoned = outbox.Unavailable(outbox.RetryAfter(fmt.Errorf("http: not sent, because another message was not answered: %w",
			unmarked(err)), outbox.RetryDelay(err)))
	}
	c.Settle(i, err)
	if c.hand(); c.Left() == 0 {
		close(c.ready)
	}
}

// unmarked returns a broker's error without its mark.
func unmarked(err error) error {
	if inner := errors.Unwrap(err); inner != nil {
		return inner
	}
	return err
}
