package faults

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/check"
	"github.com/pgoutbox/outbox/proof/rig"
)

// brokers are the destinations that every fault is tried on.
var brokers = []struct {
	name string
	open func(*testing.T) destination
}{{"NATS", onNATS}, {"Kafka", onKafka}}

func onEach(t *testing.T, test func(t *testing.T, w *world)) {
	for _, b := range brokers {
		t.Run(b.name, func(t *testing.T) { test(t, newWorld(t, b.open)) })
	}
}

func TestARelayThatIsKilledLosesNothing(t *testing.T) {
	onEach(t, func(t *testing.T, w *world) {
		w.write(time.Millisecond)
		r := w.relay("relay-1")
		n := rounds(t, 5)
		for range n {
			w.flowing()
			w.must(r.Kill())
			w.must(r.Start())
		}
		w.flowing()
		w.settle(n)
	})
}

func TestARelayThatFreezesPastItsLeaseIsReplacedAndCanDoNoHarm(t *testing.T) {
	onEach(t, func(t *testing.T, w *world) {
		w.write(time.Millisecond)
		w.lease = await.Expiry(2 * time.Second)
		relays := map[string]*rig.Relay{"relay-1": w.relay("relay-1"), "relay-2": w.relay("relay-2")}
		n := rounds(t, 2)
		for range n {
			w.flowing()
			first := w.owner()
			w.must(relays[first].Freeze())
			w.takenOver(first)
			w.flowing()
			w.must(relays[first].Thaw())
		}
		w.flowing()
		w.settle(n)
	})
}

func TestABrokerThatIsKilledAndComesBackGetsEverything(t *testing.T) {
	onEach(t, func(t *testing.T, w *world) {
		w.write(time.Millisecond)
		w.relay("relay-1")
		n := rounds(t, 2)
		var starts, flows []time.Duration
		for i := range n {
			w.flowing()
			w.must(w.broker.server.Kill9())
			time.Sleep(time.Duration(1+i%3) * time.Second)
			began := time.Now()
			w.must(w.broker.server.Restart(t.Context()))
			w.must(w.broker.Answers(t.Context()))
			starts = append(starts, time.Since(began))
			took, err := w.load.Flows(t.Context(), await.Patience)
			w.must(err)
			flows = append(flows, took)
		}
		t.Logf("from its start until the broker answers: %s; from then until all is delivered: %s", spread(starts), spread(flows))
		w.settle(n)
	})
}

// spread describes times. It sorts them.
func spread(times []time.Duration) string {
	slices.Sort(times)
	at := func(q float64) time.Duration { return times[int(q*float64(len(times)-1))].Round(time.Millisecond) }
	return fmt.Sprintf("median %v, 9 of 10 within %v, longest %v", at(0.5), at(0.9), at(1))
}

func TestABrokerThatFreezesGetsEverything(t *testing.T) {
	onEach(t, func(t *testing.T, w *world) {
		w.write(time.Millisecond)
		w.relay("relay-1")
		n := rounds(t, 1)
		for range n {
			w.flowing()
			w.must(w.broker.server.Freeze())
			time.Sleep(8 * time.Second)
			w.must(w.broker.server.Thaw())
		}
		w.flowing()
		w.settle(n)
	})
}

func TestADatabaseThatIsKilledAndComesBackLosesNothing(t *testing.T) {
	onEach(t, func(t *testing.T, w *world) {
		w.write(time.Millisecond)
		w.relay("relay-1")
		n := rounds(t, 2)
		for i := range n {
			w.flowing()
			stop := w.pg.Kill9
			if i%2 == 1 {
				stop = w.pg.Crash
			}
			w.must(stop())
			w.must(w.pg.Restart(t.Context()))
		}
		w.flowing()
		w.settle(n)
	})
}

func TestATransactionHeldOpenStopsNobody(t *testing.T) {
	w := newWorld(t, onNATS)
	w.write(time.Millisecond)
	w.relay("relay-1")
	w.flowing()
	tx, err := w.load.Pool().Begin(t.Context())
	w.must(err)
	_, err = tx.Exec(t.Context(), "SELECT pg_current_xact_id()")
	w.must(err)
	for range 5 {
		w.flowing()
	}
	w.must(tx.Rollback(t.Context()))
	w.settle(0)
}

func TestARelayThatIsToldToStopDrainsAndRepeatsNothing(t *testing.T) {
	onEach(t, func(t *testing.T, w *world) {
		w.write(time.Millisecond)
		r := w.relay("relay-1")
		for range rounds(t, 3) {
			w.flowing()
			w.must(r.Stop(await.Patience))
			w.must(r.Start())
		}
		w.flowing()
		w.settle(0) // no fault: not one duplicate
	})
}

// The other's latency is told, not asserted.
func TestADestinationThatIsAwayHoldsUpNoOtherAndLosesNothing(t *testing.T) {
	away := outage(t, 10*time.Second)
	w := newWorld(t, onNATS)
	second := onNATS(t)
	w.second = &second
	w.write(5 * time.Millisecond)
	latencies := w.watch(t)
	w.relay("relay-1")
	w.flowing()
	latencies()          // the start is no measure
	time.Sleep(away / 2) // which is what is measured
	t.Logf("both there: %s", latencies())
	w.must(second.server.Kill9())
	time.Sleep(away) // as long as the outage lasts
	t.Logf("second away for %v: %s", away, latencies())
	w.must(second.server.Restart(t.Context()))
	w.settle(1)

	// The second has everything too, in order, and one attempt was enough.
	w.second = nil
	verdict, err := w.load.Judge(t.Context(), second.Target, check.New(check.Config{}), rig.Losses{}, await.Patience, w.stop)
	w.must(err)
	t.Logf("second: %v", verdict.Report)
	if !verdict.Report.OK() {
		t.Errorf("the second destination broke a promise: %+v", verdict.Report)
	}
	if verdict.Report.DeadLettered > 0 || verdict.Held > 0 {
		t.Errorf("the outage cost %d dead letters, and %d messages are held", verdict.Report.DeadLettered, verdict.Held)
	}
}

// watch measures the time from commit to consumer at the first destination. The function that it returns
// describes what was measured since its last call.
func (w *world) watch(t *testing.T) func() string {
	nc, err := nats.Connect("nats://" + w.broker.server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	var mu sync.Mutex
	var seen []time.Duration
	_, err = nc.Subscribe("events", func(m *nats.Msg) {
		now := time.Now()
		id, err := check.Decode(m.Data)
		if err != nil {
			return // the checker counts it
		}
		if at, ok := w.load.CommittedAt(id); ok {
			mu.Lock()
			seen = append(seen, now.Sub(at))
			mu.Unlock()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		defer func() { seen = nil }()
		if len(seen) == 0 {
			return "nothing was measured"
		}
		slices.Sort(seen)
		at := func(q float64) time.Duration { return seen[int(q*float64(len(seen)-1))].Round(10 * time.Microsecond) }
		return "p50 " + at(0.5).String() + ", p99 " + at(0.99).String()
	}
}
