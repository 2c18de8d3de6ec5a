package kafka_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/kafka"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
	"github.com/twmb/franz-go/pkg/kmsg"
)

var (
	_ relay.Broker = (*kafka.ExactlyOnce)(nil)
	_ relay.Pinger = (*kafka.ExactlyOnce)(nil)
)

// written makes a world with rows of some keys.
func written(t *testing.T, rows, keys int) *exactWorld {
	t.Helper()
	w := newExactWorld(t)
	w.write(brokertest.Messages(w.topic, rows, keys))
	return w
}

func TestWhatWasPublishedAndNotSettledIsNotSentAgain(t *testing.T) {
	t.Parallel()
	w := written(t, 120, 20)
	first := w.relay()
	rows := first.read(100)
	// More calls than there are transactional ids, some at once, none of which is settled but the first: a record
	// must name what the calls before it on its id have sent.
	var calls sync.WaitGroup
	for call := range 5 { // of four calls, with keys of their own
		for n := range 4 {
			calls.Go(func() {
				first.deliver(rows[call*20+n*5 : call*20+n*5+5])
			})
		}
		calls.Wait()
	}
	first.settle(relay.Settlement{Through: &rows[4], Delivered: 5})
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}

	second := w.relay()
	again := second.read(115)
	if again[0].Position != 6 {
		t.Fatalf("the second relay begins with row %d", again[0].Position)
	}
	second.deliver(again[:40])
	second.deliver(again[40:])
	w.once(120)
}

func TestAZombieCanNotCommit(t *testing.T) {
	t.Parallel()
	for name, request := range map[string]kmsg.Key{"before it sends": kmsg.Produce, "before it commits": kmsg.EndTxn} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := written(t, 30, 3)
			zombie := w.relay()
			rows := zombie.read(30)
			zombie.deliver(rows[:10]) // by another id than the next call's
			reached := zombie.freeze(request)
			answer := make(chan []error, 1)
			go func() { answer <- zombie.Publish(patient(t), messagesOf(rows[10:20])) }()
			<-reached

			successor := w.relay()
			successor.deliver(successor.read(30))
			zombie.heal()
			unavailable(t, <-answer, 10)
			unavailable(t, zombie.Publish(patient(t), messagesOf(rows[20:])), 10)
			w.once(30)
		})
	}
}

func TestAnAnswerComesAfterTheCommit(t *testing.T) {
	t.Parallel()
	w := written(t, 2, 1)
	r := w.relay()
	rows := r.read(2)
	reached := r.cut(kmsg.EndTxn)
	unavailable(t, r.Publish(patient(t), messagesOf(rows[:1])), 1)
	<-reached
	r.heal()
	r.deliver(rows[:1])
	r.deliver(rows[1:])
	w.once(2)
}

func TestATransactionWhoseEndIsUnknownIsLookedFor(t *testing.T) {
	t.Parallel()
	w := written(t, 20, 3)
	r := w.relay()
	rows := r.read(20)
	reached := r.lose(kmsg.EndTxn)
	unavailable(t, r.Publish(patient(t), messagesOf(rows[:10])), 10)
	<-reached
	r.heal()
	r.deliver(rows) // of which half have been committed
	w.once(20)
}

// Only the first call finds out the hard way, and not one for each transactional id.
func TestOneUnansweredCallIsEnoughToGiveUpAllConnections(t *testing.T) {
	t.Parallel()
	const calls = 6 // more than there are ids, which take turns
	w := written(t, 2*calls, 3)
	r := w.relay()
	rows := r.read(2 * calls)
	for i := range calls {
		r.deliver(rows[i : i+1])
	}
	r.strand()
	unavailable(t, r.Publish(patient(t), messagesOf(rows[calls:calls+1])), 1)
	for i := range calls {
		if errs := r.Publish(patient(t), messagesOf(rows[calls+i:calls+i+1])); errs != nil {
			t.Fatalf("call %d after the one that was not answered: %v", i+1, errs)
		}
	}
	w.once(2 * calls)
}

func TestWhatWasCommittedWithoutAnAnswerIsNotHeldAndNotDead(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]struct {
		stop      func(*exactRelay) <-chan struct{}
		committed bool
	}{
		"committed": {func(r *exactRelay) <-chan struct{} { return r.lose(kmsg.EndTxn) }, true},
		"aborted":   {func(r *exactRelay) <-chan struct{} { return r.cut(kmsg.EndTxn) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := written(t, 2, 2)
			r := w.relay()
			rows := r.read(2)
			reached := fault.stop(r)
			unavailable(t, r.Publish(patient(t), messagesOf(rows)), 2)
			<-reached
			r.heal()
			r.settle(relay.Settlement{Through: &rows[1],
				Hold: []relay.Hold{{Delivery: &rows[0]}}, Dead: []relay.Dead{{Delivery: &rows[1], Reason: relay.ReasonRefused}}})
			s := w.history[len(w.history)-1]
			if fault.committed {
				w.once(2)
				if s.Delivered != 2 || len(s.Hold)+len(s.Dead) > 0 {
					t.Errorf("both were committed, and settled as %+v", s)
				}
				return
			}
			w.once(0)
			if s.Delivered != 0 || len(s.Hold) != 1 || len(s.Dead) != 1 {
				t.Errorf("neither was committed, and they were settled as %+v", s)
			}
		})
	}
}

func TestAHoldThatWasPublishedIsNotSentAgain(t *testing.T) {
	t.Parallel()
	w := written(t, 3, 1)
	w.settled = 3
	for _, row := range w.rows {
		w.hold(row)
	}
	first := w.relay()
	held := first.holds(3)
	first.deliver(held[:2])
	first.settle(relay.Settlement{HeldDelivered: []*relay.Delivery{&held[0]}, Delivered: 1})
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := w.relay()
	second.deliver(second.holds(2))
	w.once(3)
}

// holds returns the holds of the only key.
func (r *exactRelay) holds(n int) []relay.Delivery {
	r.world.t.Helper()
	lists, err := r.session.Held(patient(r.world.t), []string{"k-0"}, 100)
	if err != nil || len(lists[0]) != n {
		r.world.t.Fatalf("%d instead of %d holds: %v", len(lists[0]), n, err)
	}
	return lists[0]
}

// interrupted lets something happen between the moment at which a session has read its cursor and the one at which it
// takes up the transactional ids.
type interrupted struct {
	relay.Source
	meanwhile func()
}

func (s interrupted) Acquire(ctx context.Context) (relay.Session, error) {
	session, err := s.Source.Acquire(ctx)
	s.meanwhile()
	return session, err
}

func TestARelayThatWasOvertakenWhileItBeganPublishesNothing(t *testing.T) {
	t.Parallel()
	w := written(t, 40, 3)
	late := w.open(0)
	session, err := late.Source(interrupted{&w.table, func() {
		other := w.relay()
		rows := other.read(40)
		other.deliver(rows[:10])
		other.settle(relay.Settlement{Through: &rows[9], Delivered: 10})
		for i := 10; i < 40; i++ { // each id's record is written anew, and no longer names the first ten
			other.deliver(rows[i : i+1])
			other.settle(relay.Settlement{Through: &rows[i], Delivered: 1})
		}
	}}).Acquire(patient(t))
	if err == nil {
		late.session = session
		late.deliver(late.read(40))
		t.Error("a session began although another had begun after it")
	} else if !errors.Is(err, relay.ErrLeaseLost) {
		t.Errorf("the error is: %v", err)
	}
	w.once(40)
}

func TestOneShardGroupInheritsFromMany(t *testing.T) {
	t.Parallel()
	w := written(t, 11, 2)
	// The relay of another group, from when there were several, has published and settled nothing.
	other := w.open(3)
	w.acquire(other, &w.table)
	rows := other.read(11)
	other.deliver(rows[:10])
	r := w.relay()
	unavailable(t, other.Publish(patient(t), messagesOf(rows[10:])), 1) // it was fenced
	r.deliver(r.read(11))
	w.once(11)
}

func TestARefusedMessageStopsItsKeyAndTheRestIsCommittedOnce(t *testing.T) {
	t.Parallel()
	w := newExactWorld(t)
	batch := brokertest.Messages(w.topic, 12, 3)
	batch[4].Topic = "t-unknown-" + outbox.NewID().String()
	batch[5].Topic = "no topic"
	w.write(batch)
	refused := func(i int) bool { return i >= 4 && i%3 > 0 } // the two, and what is behind them
	for range 2 {
		r := w.relay()
		errs := r.Publish(patient(t), messagesOf(r.read(12)))
		if len(errs) != 12 || !outbox.IsPermanent(errs[5]) {
			t.Fatalf("errors: %v", errs)
		}
		for i, err := range errs {
			if refused(i) != (err != nil) {
				t.Errorf("message %d: %v", i, err)
			}
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[outbox.ID]int{}
	for _, m := range w.committed() {
		seen[m.ID]++
	}
	for i, m := range batch {
		if n := seen[m.ID]; (n == 1) == refused(i) || n > 1 {
			t.Errorf("message %d was seen %d times", i, n)
		}
	}
}

// published feeds the suite's messages to a session before it publishes them. The suite sends what was not accepted
// again as what it was, and what was accepted as another row.
type published struct {
	*exactRelay
	mu   sync.Mutex
	open map[outbox.ID]int64 // positions of what is not accepted
}

func (p *published) Publish(ctx context.Context, batch []*outbox.Message) []error {
	p.mu.Lock()
	var fresh []*outbox.Message
	for _, m := range batch {
		if p.open[m.ID] == 0 {
			fresh = append(fresh, m)
			p.open[m.ID] = int64(len(p.world.rows) + len(fresh))
		}
		m.Position = p.open[m.ID]
	}
	p.world.write(fresh)
	_, err := p.session.Next(ctx, len(fresh))
	p.mu.Unlock()
	if err != nil {
		panic(err) // a table in memory
	}
	errs := p.exactRelay.Publish(ctx, batch)
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, m := range batch {
		if errs == nil || errs[i] == nil {
			delete(p.open, m.ID)
		}
	}
	return errs
}

func TestExactlyOnceDoesWhatABrokerMust(t *testing.T) {
	t.Parallel()
	c := connect(t, servers.TestKafka(t).Addr())
	relaytest.RunBroker(t, func(t *testing.T) relaytest.BrokerHarness {
		h := c.harness(kafka.Config{})
		h.Read = func(ctx context.Context) (all []outbox.Message, err error) {
			for _, topic := range h.Topics {
				w := &exactWorld{cluster: c, topic: topic}
				all = append(all, w.committed()...)
			}
			return all, nil
		}
		h.Open = func(t *testing.T) relay.Broker {
			w := &exactWorld{cluster: &cluster{t, c.seeds, c.admin}, id: "x-" + outbox.NewID().String()}
			w.create(w.id+"-cursor", 1, "cleanup.policy", "compact")
			return &published{exactRelay: w.relay(), open: map[outbox.ID]int64{}}
		}
		return h
	})
}
