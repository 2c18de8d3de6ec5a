// Package faults runs the binary's relays as real processes against real servers, breaks one thing after
// the other, and lets the checker decide. OUTBOX_FAULTS_ROUNDS says how many faults each test injects;
// without it, a few that fit into CI.
package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/check"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/schema"
)

func TestMain(m *testing.M) {
	code := servers.Run(m)
	if dir := binaryDir; dir != "" {
		_ = os.RemoveAll(dir) // a leftover is no failure of the tests
	}
	os.Exit(code)
}

// binaryDir is where binary built, if it did.
var binaryDir string

// Keys of the workload, what a relay may have in flight, and what makes a load.
const (
	enough   = 1000
	keys     = 200
	inFlight = 2000
	lease    = 2 * time.Second
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

var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "outbox-binary-")
	if err != nil {
		return "", err
	}
	binaryDir = dir
	path := filepath.Join(dir, "outbox")
	out, err := exec.Command("go", "build", "-o", path, "github.com/pgoutbox/outbox/cmd/outbox").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the binary: %w\n%s", err, out)
	}
	return path, nil
})

// destination is where relays deliver to: a real broker that can be broken and read back.
type destination interface {
	// yaml is the broker's part of the configuration.
	yaml() string
	// server is the process to break.
	server() *servers.Server
	// consume reads from the beginning and tells the checker, until ctx ends.
	consume(ctx context.Context, to *check.Destination) error
}

// world is a database, a broker, writers, and relays to be broken.
type world struct {
	t       *testing.T
	pg      *servers.Postgres
	pool    *pgxpool.Pool
	broker  destination
	second  destination // nil: there is one destination
	checker *check.Checker
	commits sync.Map // written → when it was committed; only if second is set
	relays  []*relayProcess

	counters [keys]atomic.Uint64
	stop     context.CancelFunc
	writers  sync.WaitGroup
}

func newWorld(t *testing.T, broker func(*testing.T) destination) *world {
	t.Helper()
	if testing.Short() {
		t.Skip("needs real servers: run make test")
	}
	w := &world{t: t, pg: servers.OwnPostgres(t), checker: check.New(check.Config{})}
	w.broker = broker(t)
	ctx := t.Context()
	conn, err := pgx.Connect(ctx, w.pg.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := schema.Up(ctx, conn, schema.UpConfig{}); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(ctx, `CREATE TABLE accounts (key int PRIMARY KEY, n bigint NOT NULL DEFAULT 0);
		INSERT INTO accounts (key) SELECT generate_series(0, $1 - 1)`, pgx.QueryExecModeSimpleProtocol, keys); err != nil {
		t.Fatal(err)
	}
	if w.pool, err = pgxpool.New(ctx, w.pg.URL("postgres")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.pool.Close)
	return w
}

// write runs n writers, each with a pause between its transactions, until settle.
func (w *world) write(n int, pause time.Duration) {
	ctx, stop := context.WithCancel(context.Background())
	w.stop = stop
	w.t.Cleanup(stop)
	for i := range n {
		w.writers.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 7))
			for ctx.Err() == nil {
				w.transaction(ctx, rng)
				time.Sleep(pause)
			}
		})
	}
}

type written struct {
	key uint32
	seq uint64
}

// transaction changes a few rows and writes their events, commits nine times of ten, and reports what
// became of it. Numbers are given out while the row is locked.
func (w *world) transaction(ctx context.Context, rng *rand.Rand) {
	tx, err := w.pool.Begin(ctx)
	if err != nil {
		return
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	if rng.IntN(2) == 0 {
		// Take the xid before any row is waited for.
		if _, err := tx.Exec(ctx, "SELECT pg_current_xact_id()"); err != nil {
			return
		}
	}
	var mine []written
	report := func(to func(uint32, uint64)) {
		for _, m := range mine {
			to(m.key, m.seq)
		}
	}
	var writer outbox.Writer
	last := -1
	for range 1 + rng.IntN(3) {
		key := last + 1 + rng.IntN(keys/3) // ascending: no deadlocks
		if key >= keys {
			break
		}
		last = key
		if _, err := tx.Exec(ctx, "UPDATE accounts SET n = n + 1 WHERE key = $1", key); err != nil {
			report(w.checker.RolledBack)
			return
		}
		m := written{uint32(key), w.counters[key].Add(1)}
		mine = append(mine, m)
		_, err := writer.Write(ctx, tx, outbox.Message{Topic: "events", Key: fmt.Sprint("account-", key), Payload: check.Encode(nil, m.key, m.seq, 200)})
		if err != nil {
			report(w.checker.RolledBack)
			return
		}
	}
	if rng.IntN(10) == 0 {
		if tx.Rollback(ctx) != nil {
			report(w.checker.Unknown)
			return
		}
		report(w.checker.RolledBack)
		return
	}
	if tx.Commit(ctx) != nil {
		report(w.checker.Unknown)
		return
	}
	report(w.checker.Committed)
	if w.second != nil {
		now := time.Now()
		for _, m := range mine {
			w.commits.Store(check.ID{Key: m.key, Seq: m.seq}, now)
		}
	}
}

// relay starts a relay process under a name.
func (w *world) relay(name string) *relayProcess {
	w.t.Helper()
	path, err := binary()
	if err != nil {
		w.t.Fatal(err)
	}
	dir := w.t.TempDir()
	config := filepath.Join(dir, name+".yaml")
	text := fmt.Sprintf(`
name: %s
database: {url: %q}
http: {listen: ""}
destinations:
  - name: events
    broker: %s
    lease: %s
    delivery: {max_in_flight: %d, batch: %d}
`, name, w.pg.URL("postgres"), w.broker.yaml(), lease, inFlight, inFlight/4)
	if w.second != nil {
		text += fmt.Sprintf("  - name: second\n    broker: %s\n    lease: %s\n    delivery: {max_attempts: 1}\n", w.second.yaml(), lease)
	}
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
	r := &relayProcess{t: w.t, binary: path, config: config, name: name}
	r.start()
	w.relays = append(w.relays, r)
	w.t.Cleanup(func() {
		r.kill()
		if w.t.Failed() {
			w.t.Logf("end of the log of %s:\n%s", name, r.log())
		}
	})
	return r
}

type relayProcess struct {
	t                    *testing.T
	binary, config, name string
	cmd                  *exec.Cmd
	output               *os.File
	done                 chan struct{}
}

func (r *relayProcess) start() {
	r.t.Helper()
	file, err := os.OpenFile(r.config+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		r.t.Fatal(err)
	}
	r.cmd = exec.Command(r.binary, "relay", "--config", r.config)
	r.cmd.Stdout, r.cmd.Stderr = file, file
	if err := r.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.output, r.done = file, make(chan struct{})
	go func() {
		defer close(r.done)
		_ = r.cmd.Wait() // killed, mostly
		_ = file.Close()
	}()
}

func (r *relayProcess) signal(s syscall.Signal) { _ = r.cmd.Process.Signal(s) }

func (r *relayProcess) kill() {
	r.signal(syscall.SIGKILL)
	<-r.done
}

// ended reports whether the process has ended by itself.
func (r *relayProcess) ended() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

func (r *relayProcess) log() string {
	text, err := os.ReadFile(r.config + ".log")
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-4000):])
}

// flowing waits until a message that is committed from now on is settled: the cursor's count moves.
func (w *world) flowing(within time.Duration) {
	w.t.Helper()
	before := w.delivered()
	deadline := time.Now().Add(within)
	for w.delivered() <= before {
		if time.Now().After(deadline) {
			w.t.Fatalf("nothing was delivered for %v", within)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// delivered is how many messages the cursors count; -1 while the database is away.
func (w *world) delivered() int64 {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	n := int64(-1)
	_ = w.pool.QueryRow(ctx, "SELECT coalesce(sum(delivered), 0) FROM outbox.cursors").Scan(&n)
	return n
}

// owner is the name of the relay that holds the lease.
func (w *world) owner() string {
	var name string
	err := w.pool.QueryRow(context.Background(), "SELECT coalesce(max(owner), '') FROM outbox.cursors WHERE lease_until > clock_timestamp()").Scan(&name)
	if err != nil {
		w.t.Fatal(err)
	}
	return name
}

// settle ends the writers, reads everything back and demands that nothing was lost, invented or inverted,
// and that duplicates are no more than what could be in flight at each fault.
func (w *world) settle(faults int) {
	w.t.Helper()
	for deadline := time.Now().Add(time.Minute); w.checker.Counts().Committed < enough && time.Now().Before(deadline); {
		time.Sleep(20 * time.Millisecond)
	}
	w.stop()
	w.writers.Wait()
	ctx, cancel := context.WithCancel(context.Background())
	var consumer sync.WaitGroup
	consumer.Go(func() {
		if err := w.broker.consume(ctx, w.checker.Destination("default")); err != nil && ctx.Err() == nil {
			w.t.Errorf("consumer: %v", err)
		}
	})
	deadline := time.Now().Add(2 * time.Minute)
	for w.checker.Outstanding() > 0 && time.Now().Before(deadline) {
		time.Sleep(50 * time.Millisecond)
	}
	// Repeats may still come: wait until a while has passed without any.
	for last := uint64(0); ; time.Sleep(time.Second) {
		counts := w.checker.Counts()
		if now := counts.Delivered + counts.Duplicated; now == last {
			break
		} else {
			last = now
		}
	}
	cancel()
	consumer.Wait()
	report := w.checker.Report()
	w.t.Logf("%d faults: %v", faults, report)
	if !report.OK() {
		w.t.Errorf("the promises are broken: %+v", report)
	}
	if limit := uint64(faults * inFlight); report.Duplicated > limit {
		w.t.Errorf("%d duplicates after %d faults with at most %d in flight", report.Duplicated, faults, inFlight)
	}
	if report.Committed < enough {
		w.t.Errorf("only %d messages were committed: the test had no load", report.Committed)
	}
}

// natsBroker is a JetStream server of the test's own.
type natsBroker struct{ *servers.NATS }

func onNATS(t *testing.T) destination {
	b := natsBroker{servers.OwnNATS(t)}
	nc, err := nats.Connect(b.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	// A duplicate window that is too short to help: the relay's own doing is tested.
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "EVENTS", Subjects: []string{"events"}, Duplicates: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (b natsBroker) yaml() string            { return fmt.Sprintf("{nats: {url: %q}}", b.URL()) }
func (b natsBroker) server() *servers.Server { return &b.Server }

func (b natsBroker) consume(ctx context.Context, to *check.Destination) error {
	nc, err := nats.Connect(b.URL())
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	consumer, err := js.OrderedConsumer(ctx, "EVENTS", jetstream.OrderedConsumerConfig{})
	if err != nil {
		return err
	}
	messages, err := consumer.Messages()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, messages.Stop)()
	for {
		m, err := messages.Next()
		if err != nil {
			return err
		}
		_, _ = to.Payload(m.Data()) // what doesn't decode is counted
	}
}

// kafkaBroker is a Kafka of the test's own.
type kafkaBroker struct{ *servers.Kafka }

func onKafka(t *testing.T) destination {
	b := kafkaBroker{servers.OwnKafka(t)}
	client, err := kgo.NewClient(kgo.SeedBrokers(b.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := kadm.NewClient(client).CreateTopic(t.Context(), 3, 1, nil, "events"); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b kafkaBroker) yaml() string            { return fmt.Sprintf("{kafka: {brokers: [%q]}}", b.Addr()) }
func (b kafkaBroker) server() *servers.Server { return &b.Server }

func (b kafkaBroker) consume(ctx context.Context, to *check.Destination) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(b.Addr()), kgo.ConsumeTopics("events"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return err
	}
	defer client.Close()
	for {
		fetches := client.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			return err
		}
		for r := range fetches.RecordsAll() {
			_, _ = to.Payload(r.Value) // what doesn't decode is counted
		}
	}
}
