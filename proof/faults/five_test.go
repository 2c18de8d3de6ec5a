package faults

import (
	"context"
	"fmt"
	"net"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/grpc"

	"github.com/pgoutbox/outbox"
	outboxgrpc "github.com/pgoutbox/outbox/broker/grpc"
	"github.com/pgoutbox/outbox/broker/grpc/outboxpb"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/check"
	"github.com/pgoutbox/outbox/proof/rig"
	"github.com/pgoutbox/outbox/proof/rig/rigtest"
	"github.com/pgoutbox/outbox/webhook"
)

// secret is what webhooks are signed with.
const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLw9s"

// One destination of five is away. The four others get everything while it is, and when it is back it catches up:
// everything, in order, and one attempt was enough. The relay's memory stays bounded. Latencies are told, not asserted.
func TestOneOfFiveDestinationsIsAway(t *testing.T) {
	away := outage(t, 3*time.Second)
	w := newWorld(t, onRedis)
	arrivals := w.fiveArrivals(t)
	w.prepare(10 * time.Millisecond)
	for _, a := range arrivals {
		a.mu.Lock() // consumers run already
		a.load = w.load
		a.mu.Unlock()
	}
	w.load.Start()
	listen := rigtest.Address(t)
	r := w.start("relay-1", w.fiveYAML(listen, arrivals))
	w.pass(5)
	for _, a := range arrivals {
		a.readsOn(t, w)
	}
	tell(arrivals) // the start is no measure
	w.must(rig.Pause(t.Context(), min(away, time.Minute)/2))
	t.Logf("all five there:\n%s", tell(arrivals))
	before := look(t, r, listen)

	w.must(w.broker.server.Kill9())
	began := time.Now()
	for next := away / 10; time.Since(began) < away; next += away / 10 {
		w.must(rig.Pause(t.Context(), time.Until(began.Add(next))))
		if next%(away/2) == 0 {
			t.Logf("%v away: %v", time.Since(began).Round(time.Second), look(t, r, listen))
		}
		w.pass(4)
	}
	t.Logf("one away for %v:\n%s", away, tell(arrivals))
	w.must(w.broker.server.Restart(t.Context()))
	w.must(w.broker.Answers(t.Context()))
	back := time.Now()
	w.pass(5)
	t.Logf("%v after its return it has caught up; meanwhile:\n%s", time.Since(back).Round(10*time.Millisecond), tell(arrivals))
	after := look(t, r, listen)
	t.Logf("before: %v; after: %v", before, after)
	if after.peak >= 2*mostMemory { // five destinations, each with what it has in flight
		t.Errorf("the relay had %.1f MiB in memory, want less than %d", after.peak, 2*mostMemory)
	}

	for w.load.Committed() < enough {
		w.must(rig.Pause(t.Context(), 20*time.Millisecond))
	}
	w.load.Stop()
	w.pass(5)
	w.settle(0) // Redis recognises what it has
	for _, a := range arrivals {
		a.judge(t, w)
	}
	var dead, held int
	w.must(w.load.Pool().QueryRow(t.Context(),
		"SELECT (SELECT count(*) FROM outbox.dead_letters), (SELECT count(*) FROM outbox.holds)").Scan(&dead, &held))
	if dead > 0 || held > 0 {
		t.Errorf("the outage cost %d dead letters and %d holds, want none: each message has one attempt", dead, held)
	}
}

// fiveYAML is the relay's configuration: one attempt for each message, so that an outage that cost one would show,
// and leases that a busy machine doesn't lose, since a destination that is there is to get everything once here.
func (w *world) fiveYAML(listen string, arrivals []*arrival) string {
	text := fmt.Sprintf("name: relay-1\ndatabase: {url: %q}\nhttp: {listen: %q}\ndestinations:\n", w.pg.URL("postgres"), listen)
	add := func(name, broker string) {
		text += fmt.Sprintf("  - {name: %s, broker: %s, lease: 1m, delivery: {max_attempts: 1}}\n", name, broker)
	}
	add("redis", w.broker.yaml)
	for _, a := range arrivals {
		add(a.name, a.yaml)
	}
	return text
}

// pass waits until a number of the destinations have settled what is committed now.
func (w *world) pass(want int) {
	w.t.Helper()
	var mark string
	w.must(w.load.Pool().QueryRow(w.t.Context(), "SELECT pg_current_xact_id()::text").Scan(&mark))
	w.eventually(fmt.Sprintf("%d destinations have settled what was committed", want), func() bool {
		var passed int
		w.must(w.load.Pool().QueryRow(w.t.Context(),
			"SELECT count(*) FROM outbox.cursors WHERE pg_visible_in_snapshot($1::text::xid8, prev)", mark).Scan(&passed))
		for _, r := range w.relays {
			if !r.Running() {
				w.t.Fatalf("%s has ended by itself", r.Name)
			}
		}
		return passed >= want
	})
}

// arrival is one of the four destinations that stay, as its consumer sees it.
type arrival struct {
	name, yaml string
	load       *rig.Load

	mu      sync.Mutex
	came    []check.ID
	foreign int             // payloads that are none of ours
	took    []time.Duration // from commit to here, since the last look
}

func (a *arrival) take(payload []byte) {
	now := time.Now()
	id, err := check.Decode(payload)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		a.foreign++
		return
	}
	a.came = append(a.came, id)
	var took time.Duration
	if at, committed := a.load.CommittedAt(id); committed { // else it was faster than its writer's note
		took = max(0, now.Sub(at))
	}
	a.took = append(a.took, took)
}

// readsOn waits until the consumer has as many messages as are committed now; what it lacks then, judge tells.
func (a *arrival) readsOn(t *testing.T, w *world) {
	t.Helper()
	want := w.load.Committed()
	for ctx := await.Context(t); a.count() < want && ctx.Err() == nil; {
		_ = rig.Pause(ctx, 10*time.Millisecond)
	}
}

// judge demands what settle demands of a target.
func (a *arrival) judge(t *testing.T, w *world) {
	t.Helper()
	a.readsOn(t, w)
	checker := check.New(check.Config{})
	_, err := w.load.Tell(t.Context(), checker, rig.Losses{})
	w.must(err)
	to := checker.Destination("default")
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, id := range a.came {
		to.Delivered(id.Key, id.Seq)
	}
	report := checker.Report()
	t.Logf("%s: %v", a.name, report)
	if !report.OK() || report.Duplicated > 0 || a.foreign > 0 {
		t.Errorf("%s: the promises are broken, %d payloads are foreign: %+v", a.name, a.foreign, report)
	}
}

func (a *arrival) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.came)
}

// tell describes what was measured since its last call.
func tell(arrivals []*arrival) string {
	var lines []string
	for _, a := range arrivals {
		a.mu.Lock()
		took := a.took
		a.took = nil
		a.mu.Unlock()
		if len(took) == 0 {
			lines = append(lines, a.name+": nothing")
			continue
		}
		slices.Sort(took)
		at := func(q float64) time.Duration { return took[int(q*float64(len(took)-1))].Round(10 * time.Microsecond) }
		lines = append(lines, fmt.Sprintf("%s: %d messages, p50 %v, p99 %v, most %v", a.name, len(took), at(0.5), at(0.99), at(1)))
	}
	return strings.Join(lines, "\n")
}

// fiveArrivals starts the four destinations that stay, and their consumers.
func (w *world) fiveArrivals(t *testing.T) []*arrival {
	onNATS, onKafka := onNATS(t), onKafka(t)
	stream := &arrival{name: "nats", yaml: onNATS.yaml}
	nc, err := nats.Connect("nats://" + onNATS.server.Addr())
	w.must(err)
	t.Cleanup(nc.Close)
	_, err = nc.Subscribe("events", func(m *nats.Msg) { stream.take(m.Data) })
	w.must(err)
	return []*arrival{stream, w.fromKafka(t, onKafka), w.fromWebhooks(t), w.fromGRPC(t)}
}

func (w *world) fromKafka(t *testing.T, d destination) *arrival {
	a := &arrival{name: "kafka", yaml: d.yaml}
	client, err := kgo.NewClient(kgo.SeedBrokers(d.server.Addr()), kgo.ConsumeTopics("events"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(100*time.Millisecond))
	w.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	var polling sync.WaitGroup
	polling.Go(func() {
		for ctx.Err() == nil {
			client.PollFetches(ctx).EachRecord(func(r *kgo.Record) { a.take(r.Value) })
		}
	})
	t.Cleanup(func() {
		cancel()
		polling.Wait()
		client.Close()
	})
	return a
}

func (w *world) fromWebhooks(t *testing.T) *arrival {
	a := &arrival{name: "webhook"}
	keys, err := webhook.ParseKeys(secret)
	w.must(err)
	handler, err := webhook.Handler(keys, a.receive, webhook.Config{})
	w.must(err)
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	a.yaml = fmt.Sprintf("{http: {url: %q, secret: %s, allow_networks: [127.0.0.0/8]}}", server.URL, secret)
	return a
}

func (w *world) fromGRPC(t *testing.T) *arrival {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	w.must(err)
	a := &arrival{name: "grpc", yaml: fmt.Sprintf("{grpc: {target: %q}}", listener.Addr())}
	receiver, err := outboxgrpc.NewReceiver(a.receive, outboxgrpc.ReceiverConfig{})
	w.must(err)
	server := grpc.NewServer()
	outboxpb.RegisterDeliveryServer(server, receiver)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) }) // until it is stopped
	t.Cleanup(func() {
		server.Stop()
		serving.Wait()
	})
	return a
}

func (a *arrival) receive(_ context.Context, m *outbox.Message) error {
	a.take(m.Payload)
	return nil
}
