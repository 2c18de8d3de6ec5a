package faults

import (
	"context"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/pgoutbox/outbox/internal/check"
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
		w.write(4, time.Millisecond)
		r := w.relay("relay-1")
		n := rounds(t, 5)
		for range n {
			w.flowing(15 * time.Second)
			r.kill()
			r.start()
		}
		w.flowing(15 * time.Second)
		w.settle(n)
	})
}

func TestARelayThatFreezesPastItsLeaseIsReplacedAndCanDoNoHarm(t *testing.T) {
	onEach(t, func(t *testing.T, w *world) {
		w.write(4, time.Millisecond)
		relays := map[string]*relayProcess{"relay-1": w.relay("relay-1"), "relay-2": w.relay("relay-2")}
		n := rounds(t, 2)
		for range n {
			w.flowing(15 * time.Second)
			first := w.owner()
			relays[first].signal(syscall.SIGSTOP)
			deadline := time.Now().Add(15 * time.Second)
			for w.owner() == first || w.owner() == "" {
				if time.Now().After(deadline) {
					t.Fatalf("%s is frozen and nobody took over", first)
				}
				time.Sleep(20 * time.Millisecond)
			}
			w.flowing(15 * time.Second)
			relays[first].signal(syscall.SIGCONT)
		}
		w.flowing(15 * time.Second)
		w.settle(n)
		for name, r := range relays {
			if r.ended() {
				t.Errorf("%s has ended instead of standing by:\n%s", name, r.log())
			}
		}
	})
}

func TestABrokerThatIsKilledAndComesBackGetsEverything(t *testing.T) {
	onEach(t, func(t *testing.T, w *world) {
		w.write(4, time.Millisecond)
		w.relay("relay-1")
		n := rounds(t, 2)
		for range n {
			w.flowing(15 * time.Second)
			if err := w.broker.server().Kill9(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			if err := w.broker.server().Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		w.flowing(30 * time.Second)
		w.settle(n)
	})
}

func TestABrokerThatFreezesGetsEverything(t *testing.T) {
	onEach(t, func(t *testing.T, w *world) {
		w.write(4, time.Millisecond)
		w.relay("relay-1")
		n := rounds(t, 1)
		for range n {
			w.flowing(15 * time.Second)
			if err := w.broker.server().Freeze(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(8 * time.Second)
			if err := w.broker.server().Thaw(); err != nil {
				t.Fatal(err)
			}
		}
		w.flowing(30 * time.Second)
		w.settle(n)
	})
}

func TestADatabaseThatIsKilledAndComesBackLosesNothing(t *testing.T) {
	onEach(t, func(t *testing.T, w *world) {
		w.write(4, time.Millisecond)
		w.relay("relay-1")
		n := rounds(t, 2)
		for i := range n {
			w.flowing(15 * time.Second)
			stop := w.pg.Kill9
			if i%2 == 1 {
				stop = w.pg.Crash
			}
			if err := stop(); err != nil {
				t.Fatal(err)
			}
			if err := w.pg.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		w.flowing(30 * time.Second)
		w.settle(n)
	})
}

func TestATransactionHeldOpenStopsNobody(t *testing.T) {
	w := newWorld(t, onNATS)
	w.write(4, time.Millisecond)
	w.relay("relay-1")
	w.flowing(15 * time.Second)
	tx, err := w.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SELECT pg_current_xact_id()"); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		w.flowing(5 * time.Second)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.settle(0)
}

func TestARelayThatIsToldToStopDrainsAndRepeatsNothing(t *testing.T) {
	onEach(t, func(t *testing.T, w *world) {
		w.write(4, time.Millisecond)
		r := w.relay("relay-1")
		for range rounds(t, 3) {
			w.flowing(15 * time.Second)
			r.signal(syscall.SIGTERM)
			select {
			case <-r.done:
			case <-time.After(20 * time.Second):
				t.Fatal("the relay does not end")
			}
			if code := r.cmd.ProcessState.ExitCode(); code != 0 {
				t.Fatalf("exit code %d:\n%s", code, r.log())
			}
			r.start()
		}
		w.flowing(15 * time.Second)
		w.settle(0) // no fault: not one duplicate
	})
}

// The other's latency is told, not asserted: OUTBOX_FAULTS_OUTAGE says how long the second destination is
// away, 10 s without it.
func TestADestinationThatIsAwayHoldsUpNoOtherAndLosesNothing(t *testing.T) {
	away := 10 * time.Second
	if s := os.Getenv("OUTBOX_FAULTS_OUTAGE"); s != "" {
		var err error
		if away, err = time.ParseDuration(s); err != nil {
			t.Fatal(err)
		}
	}
	w := newWorld(t, onNATS)
	w.second = onNATS(t)
	latencies := w.watch(t)
	w.write(4, 5*time.Millisecond)
	w.relay("relay-1")
	w.flowing(15 * time.Second)
	latencies() // the start is no measure
	time.Sleep(away / 2)
	t.Logf("both there: %s", latencies())
	if err := w.second.server().Kill9(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(away)
	t.Logf("second away for %v: %s", away, latencies())
	if err := w.second.server().Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.settle(1)

	// The second has everything too, in order, and one attempt was enough.
	checker := check.New(check.Config{})
	for key := range keys {
		for seq := uint64(1); seq <= w.counters[key].Load(); seq++ {
			if _, committed := w.commits.Load(check.ID{Key: uint32(key), Seq: seq}); committed {
				checker.Committed(uint32(key), seq)
			} else {
				checker.RolledBack(uint32(key), seq)
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var consumer sync.WaitGroup
	consumer.Go(func() { _ = w.second.consume(ctx, checker.Destination("default")) }) // ends by cancel
	for deadline := time.Now().Add(2 * time.Minute); checker.Outstanding() > 0 && time.Now().Before(deadline); {
		time.Sleep(50 * time.Millisecond)
	}
	cancel()
	consumer.Wait()
	report := checker.Report()
	t.Logf("second: %v", report)
	if !report.OK() {
		t.Errorf("the second destination broke a promise: %+v", report)
	}
	var dead, attempts int
	if err := w.pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM outbox.dead_letters),
		(SELECT coalesce(sum(attempts), 0) FROM outbox.holds)`).Scan(&dead, &attempts); err != nil {
		t.Fatal(err)
	}
	if dead+attempts > 0 {
		t.Errorf("the outage cost %d dead letters and %d attempts", dead, attempts)
	}
}

// watch measures the time from commit to consumer at the first destination. The function that it returns
// describes what was measured since its last call.
func (w *world) watch(t *testing.T) func() string {
	nc, err := nats.Connect(w.broker.(natsBroker).URL())
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
		if at, ok := w.commits.Load(id); ok {
			mu.Lock()
			seen = append(seen, now.Sub(at.(time.Time)))
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
