package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/pgoutbox/outbox"
)

// Broker publishes to one Kafka cluster. Safe for concurrent use.
type Broker struct {
	cluster

	seats chan struct{} // one for each call that may run

	// Guarded by mu.
	idle   []*seat // the last element was used last
	closed bool
}

// New returns a Broker. It checks cfg and reports all its faults together. It doesn't connect; Ping and the first
// Publish do.
func New(cfg Config) (*Broker, error) {
	cfg, topic, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	b := &Broker{seats: make(chan struct{}, cfg.Clients)}
	if err := b.open(cfg, topic); err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	return b, nil
}

// Publish sends batch, by the contract of relay.Broker. At most Config.Clients calls publish at the same time; others
// wait for one of these to end.
//
// Permanent: a record larger than its topic accepts, an invalid topic name, a record that the server calls invalid, no
// key in a compacted topic. Unavailable: no answer for Config.Unanswered, ctx ended, credentials refused. All other
// errors concern one topic and can be cured: it doesn't exist, or permissions are missing.
func (b *Broker) Publish(ctx context.Context, batch []*outbox.Message) []error {
	if len(batch) == 0 {
		return nil
	}
	s, err := b.take(ctx)
	if err != nil {
		return slices.Repeat([]error{outbox.Unavailable(err)}, len(batch))
	}
	defer b.giveBack(s)
	c := call{seat: s, ctx: ctx, batch: batch, accepted: outbox.ReceiptsWanted(ctx)}
	c.publish()
	return c.errs
}

// Ping returns nil if messages could be published, as far as that shows without publishing one, else an unavailable
// error with the cause. A server of the cluster has to answer, at the address that the cluster itself gives for it. If
// all messages go to one topic, it has to exist (unless it would be created), the user must be allowed to write there,
// and the leader of each partition has to answer.
func (b *Broker) Ping(ctx context.Context) error {
	b.mu.Lock()
	closed := b.closed
	b.mu.Unlock()
	if closed {
		return outbox.Unavailable(errors.New("kafka: the broker is closed"))
	}
	return outbox.Unavailable(b.probe(ctx))
}

// Close closes all connections. A second Close does nothing.
func (b *Broker) Close() error {
	b.mu.Lock()
	closed, idle := b.closed, b.idle
	b.closed, b.idle = true, nil
	b.mu.Unlock()
	if closed {
		return nil
	}
	for _, s := range idle {
		s.discard()
	}
	b.control.Close()
	return nil
}

// take waits for a seat.
func (b *Broker) take(ctx context.Context) (*seat, error) {
	select {
	case b.seats <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("kafka: not sent: %w while waiting for other calls to end", ctx.Err())
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		<-b.seats
		return nil, errors.New("kafka: not sent: the broker is closed")
	}
	if n := len(b.idle); n > 0 {
		s := b.idle[n-1]
		b.idle = b.idle[:n-1]
		return s, nil
	}
	return newSeat(&b.cluster), nil
}

func (b *Broker) giveBack(s *seat) {
	s.slab.reset(0) // the seat must keep nothing of the caller's
	s.formatted.forget()
	b.mu.Lock()
	closed := b.closed
	if !closed {
		b.idle = append(b.idle, s)
	}
	b.mu.Unlock()
	if closed { // against the contract, but no connection should stay open
		s.discard()
	}
	<-b.seats
}
