package amazon

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/inorder"
)

// call is one Publish. It belongs to one goroutine; requests on their way report to done.
type call struct {
	*Broker
	*inorder.Batch

	names   []string         // of the target of each message
	faults  map[int32]error  // of messages whose target has no name
	missing map[string]error // of targets that weren't found, by name

	backlogs map[string]*backlog // by name
	turns    []*backlog          // those with something ready, each once
	done     chan request
}

// backlog is what is ready to be sent to one target, in this order.
type backlog struct {
	target *Target
	ready  []int32
}

// request is what is sent at once; errs are the outcomes.
type request struct {
	target  *Target
	entries []Entry
	indexes []int32
	errs    []error
}

func newCall(b *Broker, batch []*outbox.Message) *call {
	return &call{
		Broker:   b,
		Batch:    b.batches.Begin(batch),
		names:    make([]string, len(batch)),
		faults:   make(map[int32]error),
		backlogs: make(map[string]*backlog),
		done:     make(chan request, cap(b.slots)),
	}
}

// run publishes until every message is settled.
func (c *call) run(ctx context.Context) {
	c.address(ctx)
	interrupt := ctx.Done()
	for c.Left() > 0 {
		var slots chan<- struct{}
		if len(c.turns) > 0 {
			slots = c.slots
		}
		select { // what has failed decides whether more is sent
		case r := <-c.done:
			c.collect(r)
			continue
		default:
		}
		select {
		case <-interrupt:
			interrupt = nil
			c.abandon(cause(ctx))
		case r := <-c.done:
			c.collect(r)
		case slots <- struct{}{}:
			r := c.fill()
			if len(r.entries) == 0 {
				<-c.slots
				continue
			}
			go func() {
				r.errs = c.send(ctx, r.target, r.entries)
				c.done <- r
				<-c.slots
			}()
		}
	}
}

// address finds the target of every message, and makes the first of each key ready.
func (c *call) address(ctx context.Context) {
	var names []string
	for i, m := range c.Messages {
		name, err := c.settings.Names.Name(m)
		if err != nil {
			c.faults[int32(i)] = err
			continue
		}
		c.names[i] = name
		if c.backlogs[name] == nil {
			c.backlogs[name] = &backlog{}
			names = append(names, name)
		}
	}
	var found map[string]*Target
	found, c.missing = c.find(ctx, names)
	for name, target := range found {
		c.backlogs[name].target = target
	}
	c.enqueue()
}

// enqueue adds what may be sent to the backlogs, unless there is a reason not to send it.
func (c *call) enqueue() {
	for i, ok := c.Next(); ok; i, ok = c.Next() {
		c.Take(i)
		name := c.names[i]
		if reason := cmp.Or(c.faults[i], c.missing[name]); reason != nil {
			c.Settle(i, reason)
			continue
		}
		b := c.backlogs[name]
		if len(b.ready) == 0 {
			c.turns = append(c.turns, b)
		}
		b.ready = append(b.ready, i)
	}
}

// fill makes a request of what is ready for the target whose turn it is. It may be empty.
func (c *call) fill() request {
	b := c.turns[0]
	c.turns = c.turns[1:]
	r := request{target: b.target}
	bytes, taken := 0, 0
	for _, i := range b.ready {
		if len(r.entries) == RequestEntries {
			break
		}
		e, err := c.settings.Payload.encode(c.Messages[i], b.target, c.settings.Records)
		if err == nil {
			err = c.tooLarge(b.target, &e)
		}
		if err == nil && len(r.entries) > 0 && bytes+e.Size > b.target.Request {
			break
		}
		taken++
		if err != nil {
			c.Settle(i, err)
			continue
		}
		bytes += e.Size
		r.entries = append(r.entries, e)
		r.indexes = append(r.indexes, i)
	}
	if b.ready = b.ready[taken:]; len(b.ready) > 0 {
		c.turns = append(c.turns, b)
	}
	return r
}

// collect settles the messages of a request. When no answer came, or the service wants less, nothing
// more is sent.
func (c *call) collect(r request) {
	var stop error
	for n, i := range r.indexes {
		err := r.errs[n]
		if outbox.IsUnavailable(err) {
			stop = err
		}
		c.Settle(i, err)
	}
	if stop != nil {
		c.abandon(stop)
	}
	c.enqueue()
}

// abandon settles what is ready, and whatever would become so. What is on its way is waited for: its
// context ends it.
func (c *call) abandon(reason error) {
	stopped := errNotSent(reason)
	c.Stop(stopped)
	for _, b := range c.turns {
		for _, i := range b.ready {
			c.Settle(i, stopped)
		}
	}
	c.turns = nil
}

func errNotSent(reason error) error {
	return outbox.Unavailable(fmt.Errorf("not sent: %w", reason))
}

func cause(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return errors.New("given up")
}
