package faults

import (
	"syscall"
	"testing"
	"time"
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
