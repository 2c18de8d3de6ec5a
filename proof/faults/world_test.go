// Package faults runs the binary's relays as real processes against real servers, breaks one thing after
// the other, and lets the checker decide. OUTBOX_FAULTS_ROUNDS says how many faults each test injects, and
// OUTBOX_FAULTS_OUTAGE how long a broker is away where that matters; without them, what fits into CI.
package faults

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/check"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/proof/rig"
	"github.com/pgoutbox/outbox/proof/rig/rigtest"
)

func TestMain(m *testing.M) { os.Exit(rigtest.Run(m)) }

// Keys of the workload, what a relay may have in flight, and what makes a load.
const (
	enough   = 1000
	keys     = 200
	inFlight = 2000
)

// rounds is how many faults to inject.
func rounds(t *testing.T, inCI int) int {
	if s := os.Getenv("OUTBOX_FAULTS_ROUNDS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatalf("OUTBOX_FAULTS_ROUNDS is %q, want a number", s)
		}
		return n
	}
	return inCI
}

// outage is how long a broker is to be away.
func outage(t *testing.T, inCI time.Duration) time.Duration {
	s := os.Getenv("OUTBOX_FAULTS_OUTAGE")
	if s == "" {
		return inCI
	}
	away, err := time.ParseDuration(s)
	if err != nil {
		t.Fatalf("OUTBOX_FAULTS_OUTAGE: %v", err)
	}
	return away
}

// destination is where relays deliver to: a real broker that can be broken and read back.
type destination struct {
	rig.Target
	server *servers.Server
	yaml   string // the broker's part of the configuration
}

// world is a database, a broker, writers, and relays to be broken.
type world struct {
	t      *testing.T
	pg     *servers.Postgres
	load   *rig.Load
	broker destination
	second *destination // nil: there is one destination
	relays []*rig.Relay
	size   int // of a payload; 0: the load's default
	lease  time.Duration
}

func newWorld(t *testing.T, broker func(*testing.T) destination) *world {
	t.Helper()
	if testing.Short() {
		t.Skip("needs real servers: run make test")
	}
	// A busy machine loses a short lease, which costs duplicates.
	w := &world{t: t, pg: servers.OwnPostgres(t), broker: broker(t), lease: time.Minute}
	rigtest.Binary(t) // now: a build on a busy machine takes minutes, in which a load would pile up
	return w
}

// write begins a load of four writers, each with a pause between its transactions.
func (w *world) write(pause time.Duration) {
	w.t.Helper()
	w.prepare(pause)
	w.load.Start()
}

// prepare makes the load that write begins.
func (w *world) prepare(pause time.Duration) {
	w.t.Helper()
	load, err := rig.NewLoad(w.t.Context(),
		rig.LoadConfig{URL: w.pg.URL("postgres"), Topic: "events", Keys: keys, Writers: 4, Pause: pause, Seed: 7, Size: w.size})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(load.Close)
	w.load = load
}

// relay starts a relay process under a name.
func (w *world) relay(name string) *rig.Relay {
	w.t.Helper()
	text := fmt.Sprintf(`
name: %s
database: {url: %q}
http: {listen: ""}
destinations:
  - name: events
    broker: %s
    lease: %s
    delivery: {max_in_flight: %d, batch: %d}
`, name, w.pg.URL("postgres"), w.broker.yaml, w.lease, inFlight, inFlight/4)
	if w.second != nil {
		text += fmt.Sprintf("  - name: second\n    broker: %s\n    lease: %s\n    delivery: {max_attempts: 1}\n", w.second.yaml, w.lease)
	}
	return w.start(name, text)
}

// start starts a relay process with a configuration.
func (w *world) start(name, text string) *rig.Relay {
	w.t.Helper()
	r, err := rig.StartRelay(rigtest.Binary(w.t), w.t.TempDir(), name, text)
	if err != nil {
		w.t.Fatal(err)
	}
	w.relays = append(w.relays, r)
	w.t.Cleanup(func() {
		if err := r.Kill(); err != nil {
			w.t.Error(err)
		}
		if w.t.Failed() {
			w.t.Logf("end of the log of %s:\n%s", name, r.Log())
		}
	})
	return r
}

// must fails the test, for what has to work for it to mean anything.
func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// flowing waits until a message that is committed from now on is settled: the cursor's count moves.
func (w *world) flowing() {
	w.t.Helper()
	_, err := w.load.Flows(w.t.Context(), await.Patience)
	w.must(err)
}

// owner waits for a relay that holds the lease, and returns its name.
func (w *world) owner() (name string) {
	w.t.Helper()
	await.Until(w.t, "a relay that holds the lease", func() bool {
		var err error
		name, err = w.load.Owner(w.t.Context())
		return err == nil && name != ""
	})
	return name
}

// takenOver waits until another relay than first holds the lease.
func (w *world) takenOver(first string) {
	w.t.Helper()
	await.Until(w.t, "another relay than "+first, func() bool { return w.owner() != first })
}

// settle ends the writers, reads everything back and demands that nothing was lost, invented or inverted,
// and that duplicates are no more than what could be in flight at each fault. The relays have ended then.
func (w *world) settle(faults int) {
	w.t.Helper()
	await.Until(w.t, "a load", func() bool { return w.load.Committed() >= enough })
	verdict, err := w.load.Judge(w.t.Context(), w.broker.Target, check.New(check.Config{}), rig.Losses{}, await.Patience, w.stop)
	w.must(err)
	w.t.Logf("%d faults: %v", faults, verdict.Report)
	verdict.Held = 0 // a second destination may be away
	if err := verdict.Broken(rig.Promise{Ordered: true, Repeats: uint64(faults * inFlight)}); err != nil {
		w.t.Error(err)
	}
	var destinations int64
	w.must(w.load.Pool().QueryRow(w.t.Context(), "SELECT count(DISTINCT destination) FROM outbox.cursors").Scan(&destinations))
	if want := int64(verdict.Truth.Committed); w.second == nil && verdict.Delivered != want*destinations {
		w.t.Errorf("the database counts %d delivered messages, want each of %d once for each of %d destinations",
			verdict.Delivered, want, destinations)
	}
}

// stop ends the relays in good order, unless a second destination needs them still.
func (w *world) stop() error {
	if w.second != nil {
		return nil
	}
	for _, r := range w.relays {
		if !r.Running() {
			return fmt.Errorf("%s has ended by itself:\n%s", r.Name, r.Log())
		}
		if err := r.Stop(await.Patience); err != nil {
			return err
		}
	}
	return nil
}

// onNATS starts a JetStream server of the test's own.
func onNATS(t *testing.T) destination {
	server := servers.OwnNATS(t)
	return to(t, rig.NATSTopic{URL: server.URL(), Topic: "events"}, &server.Server)
}

// onKafka starts a Kafka of the test's own.
func onKafka(t *testing.T) destination {
	server := servers.OwnKafka(t)
	return to(t, rig.KafkaTopic{Addr: server.Addr(), Topic: "events"}, &server.Server)
}

// to makes the topic.
func to(t *testing.T, target rig.Target, server *servers.Server) destination {
	t.Helper()
	if err := target.Create(t.Context()); err != nil {
		t.Fatal(err)
	}
	return destination{target, server, target.YAML(server.Addr())}
}
