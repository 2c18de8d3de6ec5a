package http

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/webhook"
)

// call is one Publish. Messages of a key form a chain, and no two requests carry messages of the same one:
// the next leaves when the one before it is accepted. With batches, one request takes as much of a chain as
// it has room for, and the receiver keeps the order within it.
type call struct {
	broker *Broker
	batch  []*outbox.Message
	next   []int32    // the next message of the same key, -1 at the end
	ready  chan int32 // may be sent; room for all; closed when every message is settled

	mu        sync.Mutex
	errs      []error // nil while nothing has failed
	unsettled int
	abandoned error // nothing more is sent in this call
}

func newCall(b *Broker, batch []*outbox.Message) *call {
	c := &call{broker: b, batch: batch, next: make([]int32, len(batch)), ready: make(chan int32, len(batch)), unsettled: len(batch)}
	last := make(map[string]int32, len(batch))
	for i, m := range batch {
		c.next[i] = -1
		key := m.OrderingKey()
		before, follows := last[key]
		if key != "" {
			last[key] = int32(i)
		}
		if key != "" && follows {
			c.next[before] = int32(i)
		} else {
			c.ready <- int32(i)
		}
	}
	return c
}

// work sends until every message of the call is settled.
func (c *call) work(ctx context.Context) {
	var at rounds
	defer at.close()
	for i := range c.ready {
		if err := c.mayNotSend(ctx); err != nil {
			c.settle(i, err)
			continue
		}
		select {
		case c.broker.slots <- struct{}{}:
			c.deliver(ctx, &at, i)
			<-c.broker.slots
		case <-ctx.Done():
			c.settle(i, outbox.Unavailable(fmt.Errorf("http: not sent: %w", context.Cause(ctx))))
		}
	}
}

// mayNotSend returns why a message that could go must not.
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

// gather returns what goes into one batch that begins with message i: what is ready, and what follows it, as far as
// there is room. It settles what is not to be sent at all.
func (c *call) gather(i int32) []int32 {
	cfg := &c.broker.cfg
	var group []int32
	bytes := 0
	room := func() bool { return len(group) == 0 || len(group) < cfg.Batch && bytes < cfg.BatchBytes }
	for {
		for head := i; i >= 0 && room(); i = c.next[i] {
			if err := cfg.tooLarge(c.batch[i]); err != nil {
				if i == head {
					c.settle(i, err) // nothing of its key is before it
				}
				break
			}
			group = append(group, i)
			bytes += len(c.batch[i].Payload)
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

// deliver sends message i, in batches with what goes into the same request, and settles what it has sent.
func (c *call) deliver(ctx context.Context, at *rounds, i int32) {
	cfg := &c.broker.cfg
	if cfg.Batch == 1 {
		err := cfg.tooLarge(c.batch[i])
		if err == nil {
			err = c.single(ctx, at, c.batch[i])
		}
		c.settle(i, err)
		return
	}
	if group := c.gather(i); len(group) > 0 {
		c.conclude(group, c.several(ctx, at, group))
	}
}

// single sends m by itself.
func (c *call) single(ctx context.Context, at *rounds, m *outbox.Message) error {
	b := c.broker
	u, err := b.target.url(m)
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
	return b.judge(a, "topic "+strconv.Quote(shorten(m.Topic)))
}

// several sends group in one request and returns an outcome for each message of it. When the receiver
// refuses the request as a whole, for what may be the fault of one message, it is halved until it is known
// of which.
func (c *call) several(ctx context.Context, at *rounds, group []int32) []error {
	b := c.broker
	batch := make([]*outbox.Message, len(group))
	for n, i := range group {
		batch[n] = c.batch[i]
	}
	var body bytes.Buffer
	if err := webhook.WriteBatch(&body, batch); err != nil {
		return repeat(outbox.Permanent(err), len(group))
	}
	header := at.header(ctx)
	header["Content-Type"] = []string{webhook.BatchType}
	a, err := b.post(ctx, at, request{
		url: b.target.fixed, header: header, id: webhook.BatchID(batch), body: body.Bytes(), results: len(group),
	})
	if err != nil {
		return repeat(err, len(group))
	}
	if a.status == http.StatusMultiStatus {
		return b.results(a, len(group))
	}
	err = b.judge(a, fmt.Sprintf("a batch of %d", len(group)))
	if err == nil || outbox.IsUnavailable(err) || len(group) == 1 {
		return repeat(err, len(group))
	}
	half := len(group) / 2
	first := c.several(ctx, at, group[:half])
	rest := c.withoutBroken(group, first)
	outcomes := first
	var second []error
	if err := c.mayNotSend(ctx); err != nil {
		second = repeat(err, len(rest))
	} else if len(rest) > 0 {
		second = c.several(ctx, at, rest)
	}
	for _, i := range group[half:] {
		if n := slices.Index(rest, i); n >= 0 {
			outcomes = append(outcomes, second[n])
		} else {
			outcomes = append(outcomes, outbox.ErrSkipped)
		}
	}
	return outcomes
}

// withoutBroken returns those of group that have no outcome yet and whose key hasn't failed.
func (c *call) withoutBroken(group []int32, outcomes []error) []int32 {
	broken := map[string]bool{}
	for n, err := range outcomes {
		if key := c.batch[group[n]].OrderingKey(); err != nil && key != "" {
			broken[key] = true
		}
	}
	var rest []int32
	for _, i := range group[len(outcomes):] {
		if !broken[c.batch[i].OrderingKey()] {
			rest = append(rest, i)
		}
	}
	return rest
}

func repeat(err error, n int) []error { return slices.Repeat([]error{err}, n) }

// conclude settles group by its outcomes. After the first failure of a key the others of it are skipped,
// whatever the receiver says of them.
func (c *call) conclude(group []int32, outcomes []error) {
	ends := map[string]int32{} // the last of each key in group
	failed := map[string]bool{}
	for n, i := range group {
		key := c.batch[i].OrderingKey()
		if key == "" {
			c.settle(i, outcomes[n])
			continue
		}
		if failed[key] {
			continue // settled with the first
		}
		ends[key] = i
		if err := outcomes[n]; err != nil {
			failed[key] = true
			delete(ends, key)
			c.settle(i, err)
			continue
		}
		c.accept(i)
	}
	for _, key := range slices.Sorted(maps.Keys(ends)) {
		c.goOn(ends[key])
	}
}

// settle notes the outcome of message i. If it was accepted the next of its key may go, else those behind it
// are skipped.
func (c *call) settle(i int32, err error) {
	if err == nil {
		c.goOn(i)
		c.accept(i)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.errs == nil {
		c.errs = make([]error, len(c.batch))
	}
	c.errs[i] = err
	if c.abandoned == nil && outbox.IsUnavailable(err) {
		c.abandoned = outbox.Unavailable(outbox.RetryAfter(fmt.Errorf("http: not sent, because another message was not answered: %w", unmarked(err)), outbox.RetryDelay(err)))
	}
	c.settled()
	for n := c.next[i]; n >= 0; n = c.next[n] {
		c.errs[n] = outbox.ErrSkipped
		c.settled()
	}
}

// accept counts message i as settled.
func (c *call) accept(int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settled()
}

// goOn lets the message behind i go.
func (c *call) goOn(i int32) {
	if n := c.next[i]; n >= 0 {
		c.ready <- n
	}
}

// settled counts one message less. The channel is closed behind the last: nothing of it can be ready then.
func (c *call) settled() {
	if c.unsettled--; c.unsettled == 0 {
		close(c.ready)
	}
}

// unmarked returns what lies beneath the mark of a broker's error.
func unmarked(err error) error {
	if inner := errors.Unwrap(err); inner != nil {
		return inner
	}
	return err
}
