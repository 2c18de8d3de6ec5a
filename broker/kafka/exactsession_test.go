package kafka

import (
	"context"
	"fmt"
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

// replay is a source, and its session, that has a hold that is due in each of many lanes. asked gets the number of
// lanes that a call of Held is asked for.
type replay struct {
	relay.Coupled
	lanes int
	asked chan int
}

func (r replay) Acquire(context.Context) (relay.Session, error)             { return r, nil }
func (replay) Report(relay.State, error)                                    {}
func (replay) Traits() relay.Traits                                         { return relay.Traits{HoldLanes: 3} }
func (replay) Lanes(context.Context, string, int) ([]string, string, error) { return nil, "", nil }
func (replay) Controls(context.Context) (c relay.Controls, _ error)         { return c, nil }
func (replay) Recognize(context.Context, []string) error                    { return nil }
func (replay) Expires() time.Time                                           { return time.Now().Add(time.Hour) }
func (replay) Close(context.Context) error                                  { return nil }
func (replay) Next(ctx context.Context, _ int) (b relay.Batch, _ error) {
	<-ctx.Done()
	return b, ctx.Err()
}
func (r replay) Due(context.Context, relay.DueQuery) (due []relay.HeldLane, _ error) {
	for i := range r.lanes {
		due = append(due, relay.HeldLane{Lane: fmt.Sprint(i), Shard: i})
	}
	return due, nil
}

func (r replay) Held(_ context.Context, lanes []string, _ int) (lists [][]relay.Delivery, _ error) {
	for i, lane := range lanes {
		lists = append(lists, []relay.Delivery{{Message: outbox.Message{ID: outbox.ID{15: byte(i)}, Key: lane}, Ref: uint64(i + 1)}})
	}
	select {
	case r.asked <- len(lanes):
	default:
	}
	return lists, nil
}

// away returns a broker whose cluster doesn't answer.
func away(t *testing.T) *ExactlyOnce {
	e, err := NewExactlyOnce(Config{Brokers: []string{"127.0.0.1:1"}, Unanswered: await.Expiry(time.Second)}, ExactlyOnceConfig{ID: "x"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return e
}

func TestTheHoldsOfManyLanesAreReadAtOnceAndPublished(t *testing.T) {
	t.Parallel()
	e := away(t)
	s, err := e.Source(replay{}).Acquire(t.Context()) // that the cluster is away is no reason not to begin
	if err != nil {
		t.Fatal(err)
	}
	lists, err := s.Held(t.Context(), []string{"a", "b", "c"}, 5)
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

// Lane by lane, each message of a replay would be a transaction and a settlement of its own.
func TestAReplayIsReadByManyLanesAtOnce(t *testing.T) {
	t.Parallel()
	e, source := away(t), replay{lanes: 10, asked: make(chan int, 1)}
	r, err := relay.New(e.Source(source), e, relay.Config{DrainTimeout: await.Expiry(time.Millisecond)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }()
	select {
	case n := <-source.asked:
		if n != 3 {
			t.Errorf("the holds of %d lanes were read at once, want 3", n)
		}
	case <-brokertest.Patient(t).Done():
		t.Error("nothing was read")
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
