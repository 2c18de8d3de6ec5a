package pubsub

import (
	"context"
	"fmt"
	"sync"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/search"
)

// Bounds of a request that has more than one message. The service accepts ten times the bytes, but smaller requests run
// in parallel.
const (
	requestMessages = 1000
	requestBytes    = 1_000_000
)

// call is one Publish. Its lanes are worked off in parallel, each by one goroutine, which alone writes the outcomes of
// the lane's messages.
type call struct {
	*Broker
	batch []*outbox.Message
	errs  []error
	lanes []lane
	spent search.Budget
}

// lane is the messages of a key, in order, or messages without a key.
type lane struct {
	ordered bool
	indexes []int32
}

func newCall(b *Broker, batch []*outbox.Message) *call {
	c := &call{Broker: b, batch: batch, errs: make([]error, len(batch))}
	lanes := make(map[string]int)
	keyless := make(map[string]int) // by topic; the latest lane of it
	for i, m := range batch {
		key := m.OrderingKey()
		index, name := lanes, key
		if key == "" {
			index, name = keyless, m.Topic
		}
		at, found := index[name]
		if !found || key == "" && len(c.lanes[at].indexes) == requestMessages {
			at = len(c.lanes)
			index[name] = at
			c.lanes = append(c.lanes, lane{ordered: key != ""})
		}
		c.lanes[at].indexes = append(c.lanes[at].indexes, int32(i))
	}
	return c
}

// run publishes all lanes, and returns when nothing is in flight any more. The first lane without an answer stops the
// others.
func (c *call) run(ctx context.Context) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	next := make(chan lane)
	var workers sync.WaitGroup
	for range min(len(c.lanes), cap(c.slots)) {
		workers.Go(func() {
			for l := range next {
				if err := c.work(ctx, l); err != nil {
					stop(err)
				}
			}
		})
	}
	for _, l := range c.lanes {
		next <- l
	}
	close(next)
	workers.Wait()
}

// request is messages of one topic and one key, or of one topic and no key.
type request struct {
	topic    string
	indexes  []int32
	messages []*pubsubpb.PubsubMessage
}

// work publishes a lane. The returned error concerns all lanes.
func (c *call) work(ctx context.Context, l lane) error {
	rest := l.indexes
	for len(rest) > 0 {
		if ctx.Err() != nil {
			c.unsent(rest, context.Cause(ctx))
			return nil
		}
		r, refused := c.fill(rest)
		if refused != nil { // the first of rest can't be sent
			c.errs[rest[0]] = refused
			if rest = rest[1:]; l.ordered {
				c.skip(rest)
				return nil
			}
			continue
		}
		rest = rest[len(r.indexes):]
		accepted, down := c.publish(ctx, l, r)
		if down != nil {
			c.unsent(rest, down)
			return down
		}
		if !accepted && l.ordered {
			c.skip(rest)
			return nil
		}
	}
	return nil
}

// fill builds a request from the first of indexes, as many as fit, or returns why the first one can't be sent.
func (c *call) fill(indexes []int32) (request, error) {
	var r request
	size := 0
	for _, i := range indexes {
		m := c.batch[i]
		topic, err := topicOf(c.topic, m)
		var encoded *pubsubpb.PubsubMessage
		bytes := 0
		if err == nil {
			encoded, bytes, err = encode(m, topic, c.cfg.records)
		}
		if len(r.indexes) == 0 {
			if err != nil {
				return r, err
			}
			r.topic = topic
		} else if err != nil || topic != r.topic || size+bytes > requestBytes || len(r.indexes) == requestMessages {
			break
		}
		size += bytes
		r.indexes = append(r.indexes, i)
		r.messages = append(r.messages, encoded)
	}
	return r, nil
}

// publish sends r and notes its outcomes. It reports whether all were accepted, and returns an error that concerns all
// lanes. A request that is refused because of its content is divided.
func (c *call) publish(ctx context.Context, l lane, r request) (accepted bool, down error) {
	err := c.send(ctx, r)
	switch {
	case err == nil:
		return true, nil
	case outbox.IsUnavailable(err):
		for _, i := range r.indexes {
			c.errs[i] = err
		}
		return false, err
	case outbox.IsPermanent(err) && len(r.indexes) > 1:
		if !c.spent.Spend(2) {
			for _, i := range r.indexes {
				c.errs[i] = search.ErrUndecided
			}
			return false, nil
		}
		half := len(r.indexes) / 2
		first := request{r.topic, r.indexes[:half], r.messages[:half]}
		second := request{r.topic, r.indexes[half:], r.messages[half:]}
		ok, down := c.publish(ctx, l, first)
		switch {
		case down != nil:
			c.unsent(second.indexes, down)
			return false, down
		case !ok && l.ordered:
			c.skip(second.indexes)
			return false, nil
		}
		also, down := c.publish(ctx, l, second)
		return ok && also, down
	}
	c.errs[r.indexes[0]] = err
	if l.ordered {
		c.skip(r.indexes[1:])
		return false, nil
	}
	for _, i := range r.indexes[1:] {
		c.errs[i] = err
	}
	return false, nil
}

// send sends r once, and classifies the result.
func (c *call) send(ctx context.Context, r request) error {
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-ctx.Done():
		return notSent(context.Cause(ctx))
	}
	client, err := c.client(ctx)
	if err != nil {
		return err
	}
	request, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	input := &pubsubpb.PublishRequest{Topic: c.path(r.topic), Messages: r.messages}
	_, err = client.Publish(request, input)
	if isMissing(err) && c.cfg.CreateTopics {
		if err = c.create(request, client, r.topic); err == nil {
			_, err = client.Publish(request, input)
		}
	}
	if err != nil && request.Err() != nil && ctx.Err() == nil {
		c.discard(client)
		return outbox.Unavailable(fmt.Errorf("pubsub: no answer within %v (outcome unknown): %w", c.cfg.Timeout, err))
	}
	return c.classify(r.topic, err)
}

// unsent notes that messages were not sent, for a reason that concerns all.
func (c *call) unsent(indexes []int32, reason error) {
	err := notSent(reason)
	for _, i := range indexes {
		c.errs[i] = err
	}
}

func (c *call) skip(indexes []int32) {
	for _, i := range indexes {
		c.errs[i] = outbox.ErrSkipped
	}
}

func notSent(reason error) error {
	return outbox.Unavailable(fmt.Errorf("pubsub: not sent: %w", reason))
}
