package kafka

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/internal/await"
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

// lanewise is an inner session, and its source, that has a hold in each lane and reads those of many lanes at once.
type lanewise struct{ relay.Coupled }

func (s lanewise) Acquire(context.Context) (relay.Session, error) { return s, nil }
func (lanewise) Expires() time.Time                               { return time.Now().Add(time.Hour) }
func (lanewise) Close(context.Context) error                      { return nil }

func (lanewise) HeldTogether(_ context.Context, lanes []string, _ int) (lists [][]relay.Delivery, _ error) {
	for i, lane := range lanes {
		lists = append(lists, []relay.Delivery{{Message: outbox.Message{ID: outbox.ID{15: byte(i)}, Key: lane}, Ref: uint64(i + 1)}})
	}
	return lists, nil
}

// A replay of many keys is delivered in large calls: each message of them has to be one that the session knows.
func TestTheHoldsOfManyLanesAreReadAtOnceAndPublished(t *testing.T) {
	t.Parallel()
	e, err := NewExactlyOnce(Config{Brokers: []string{"127.0.0.1:1"}, Unanswered: await.Expiry(time.Second)}, ExactlyOnceConfig{ID: "x"})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	s, err := e.Source(lanewise{}).Acquire(t.Context()) // the cluster is away, which is no reason not to begin
	if err != nil {
		t.Fatal(err)
	}
	reading, ok := s.(relay.Together)
	if !ok {
		t.Fatal("it would be delivered lane by lane")
	}
	lists, err := reading.HeldTogether(t.Context(), []string{"a", "b", "c"}, 5)
	if err != nil {
		t.Fatal(err)
	}
	var batch []*outbox.Message
	for _, list := range lists {
		batch = append(batch, &list[0].Message)
	}
	p, ok := e.open.take(1, batch, []int32{0, 1, 2})
	if !ok || !slices.EqualFunc(p.entries, []string{"a", "b", "c"}, func(e entry, lane string) bool { return e.lane == lane }) {
		t.Errorf("the transaction knows %+v of what was read", p)
	}
}
