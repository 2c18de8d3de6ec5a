package kafka

import (
	"context"
	"testing"

	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/relay"
)

// ending is an inner session, of which only the end matters.
type ending struct {
	relay.Coupled
	ended chan struct{}
}

func (s ending) Close(context.Context) error { close(s.ended); return nil }

// The engine closes a session with a context that has ended if a call hangs; then the lease isn't renewed any more.
func TestASessionEndsThoughAPublishHangs(t *testing.T) {
	t.Parallel()
	e, inner := &ExactlyOnce{open: newUnsettled()}, ending{ended: make(chan struct{})}
	s := &session{Coupled: inner, exactly: e}
	e.begin(s)
	e.gate.RLock() // as Publish does
	defer e.gate.RUnlock()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	go func() { _ = s.Close(over) }()
	select {
	case <-inner.ended:
	case <-brokertest.Patient(t).Done():
		t.Fatal("the lease is still renewed")
	}
}
