package amazon

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/inorder"
)

// call is one Publish. It belongs to one goroutine; requests in flight report to done.
type call struct {
	*Broker
	*inorder.Batch

	names   []string         // the target's name of each message
	faults  map[int32]error  // messages for which no target name can be made
	missing map[string]error // targets that weren't found, by name

	backlogs map[string]*backlog // by name
	turns    []*backlog          // those with ready entries, each once
	done     chan request
}

// backlog is the entries that are ready for one target, in this order.
type backlog struct {
	target *Target
	ready  []int32
}

// request is a set of entries that are sent at once; errs are the outcomes.
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
		select { // failures decide whether more is sent
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

// enqueue adds messages that may be sent to the backlogs, unless the call has stopped.
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

// fill builds a request for the next target that has ready entries. It may be empty.
func (c *call) fill() request {
	b := c.turns[0]
	c.turns = c.turns[1:]
	r := request{target: b.target}
	bytes, used := 0, 0
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
		used++
		if err != nil {
			c.Settle(i, err)
			continue
		}
		bytes += e.Size
		r.entries = append(r.entries, e)
		r.indexes = append(r.indexes, i)
	}
	if b.ready = b.ready[used:]; len(b.ready) > 0 {
		c.turns = append(c.turns, b)
	}
	return r
}

// collect settles the messages of a request. If no answer came, or the service throttles, the call sends nothing more.
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

// abandon settles all messages that are ready or would become ready. It waits for requests in flight; their context
// ends them.
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
