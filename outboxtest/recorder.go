package outboxtest

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/pgoutbox/outbox"
)

// Recorder is an in-memory broker for tests with an in-process relay: it accepts and keeps everything. The zero
// Recorder is ready to use. Safe for concurrent use. For brokers that fail, see package relaytest.
type Recorder struct {
	mu       sync.Mutex
	accepted []outbox.Message
	changed  chan struct{} // closed when accepted grows; nil while there is no waiter
}

// Publish keeps copies of batch.
func (r *Recorder) Publish(ctx context.Context, batch []*outbox.Message) []error {
	if err := ctx.Err(); err != nil {
		errs := make([]error, len(batch))
		for i := range errs {
			errs[i] = outbox.Unavailable(err)
		}
		return errs
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range batch {
		r.accepted = append(r.accepted, clone(m))
	}
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
	return nil
}

// clone copies texts too, because a relay reuses the memory of its messages.
func clone(m *outbox.Message) outbox.Message {
	kept := *m
	for _, text := range []*string{&kept.Topic, &kept.Key, &kept.AggregateType, &kept.AggregateID, &kept.EventType, &kept.ContentType} {
		*text = strings.Clone(*text)
	}
	kept.Payload = bytes.Clone(m.Payload)
	kept.Headers = slices.Clone(m.Headers)
	for i, h := range kept.Headers {
		kept.Headers[i] = outbox.Header{Name: strings.Clone(h.Name), Value: strings.Clone(h.Value)}
	}
	return kept
}

// Close does nothing: accepted messages remain readable.
func (r *Recorder) Close() error { return nil }

// Messages returns copies of what was accepted, in that order.
func (r *Recorder) Messages() []outbox.Message {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.copies()
}

func (r *Recorder) copies() []outbox.Message {
	all := make([]outbox.Message, len(r.accepted))
	for i := range r.accepted {
		all[i] = clone(&r.accepted[i])
	}
	return all
}

// Wait returns the accepted messages as soon as there are at least n, or, if ctx ends before, ctx's error with the
// messages so far.
func (r *Recorder) Wait(ctx context.Context, n int) ([]outbox.Message, error) {
	for {
		r.mu.Lock()
		all := r.copies()
		if r.changed == nil {
			r.changed = make(chan struct{})
		}
		changed := r.changed
		r.mu.Unlock()
		if len(all) >= n {
			return all, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return all, fmt.Errorf("outboxtest: %d of %d messages were published: %w", len(all), n, context.Cause(ctx))
		}
	}
}
