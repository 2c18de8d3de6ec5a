package seeds

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/check"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/proof/rig"
	"github.com/pgoutbox/outbox/proof/rig/rigtest"
)

// The doctor says of each table whose it is.
func TestTheDoctorKnowsEveryTable(t *testing.T) {
	t.Parallel()
	for _, s := range Systems() {
		if s.Default() || s.Log {
			continue
		}
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			if err := s.Load().Create(t.Context(), db.Connect()); err != nil {
				t.Fatal(err)
			}
			out, err := exec.Command(rigtest.Binary(t), "doctor",
				"--database-url", db.URL, "--table", s.Table, "-o", "json").CombinedOutput()
			if err != nil {
				t.Fatalf("doctor: %v: %s", err, out)
			}
			var report struct {
				Preset string `json:"preset"`
			}
			if err := json.Unmarshal(out, &report); err != nil {
				t.Fatalf("doctor: %v: %s", err, out)
			}
			if !slices.Contains(s.Presets, report.Preset) {
				t.Errorf("the doctor takes table %s for %q, want one of %q", s.Table, report.Preset, s.Presets)
			}
		})
	}
}

// run has a case happen on a database of its own, and demands what is promised.
func (c Case) run(t *testing.T, db testdb.DB) Result {
	t.Helper()
	result, err := c.Run(t.Context(), rigtest.Binary(t), t.TempDir(), db.URL)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Broken(result); err != nil {
		t.Errorf("%v\n%s", err, result.Log)
	}
	t.Log(result.Report)
	return result
}

// Kafka's partition is written back, and the time of its acknowledgement.
func TestSeed2ThroughKafka(t *testing.T) {
	t.Parallel()
	kafka, db := servers.TestKafka(t), testdb.New(t)
	topic := rig.KafkaTopic{Addr: kafka.Addr(), Topic: fmt.Sprint("seed2-", time.Now().UnixNano())}
	Case{System: Find("outbox_event", "advisory"), Workload: Backlog,
		Messages: 600, Relays: 2, Kills: 1, Target: topic, Broker: kafka.Addr()}.run(t, db)

	partitions := make(map[string]int32) // by id
	client, err := kgo.NewClient(kgo.SeedBrokers(kafka.Addr()),
		kgo.ConsumeTopics(topic.Topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	written, err := db.Connect().Query(t.Context(), `SELECT id, partition_id, ack_time >= published_time AND ack_time <= localtimestamp FROM outbox_event`)
	if err != nil {
		t.Fatal(err)
	}
	type row struct {
		ID        string
		Partition *string
		Acked     bool
	}
	rows, err := pgx.CollectRows(written, pgx.RowToStructByPos[row])
	if err != nil {
		t.Fatal(err)
	}
	for len(partitions) < len(rows) {
		fetches := client.PollFetches(t.Context())
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		for r := range fetches.RecordsAll() {
			id, err := check.Decode(r.Value)
			if err != nil {
				t.Fatal(err)
			}
			partitions[fmt.Sprintf("event-%d-%d", id.Key, id.Seq)] = r.Partition
		}
	}
	used := make(map[string]bool)
	for _, r := range rows {
		if r.Partition == nil || *r.Partition != fmt.Sprint(partitions[r.ID]) {
			t.Errorf("row %s has partition %v, its message is in %d", r.ID, r.Partition, partitions[r.ID])
			continue
		}
		used[*r.Partition] = true
		if !r.Acked {
			t.Errorf("row %s has no sensible time of its acknowledgement", r.ID)
		}
	}
	if len(used) < 3 {
		t.Errorf("everything is in partitions %v", used)
	}
}

// Polling to NATS: what comes again after a crash is dropped by the stream.
func TestSeed3ThroughNATS(t *testing.T) {
	t.Parallel()
	server := servers.TestNATS(t)
	topic := rig.NATSTopic{URL: server.URL(), Topic: fmt.Sprint("seed3-", time.Now().UnixNano()), Window: time.Hour}
	c := Case{System: Find("outbox", "advisory"), Workload: Backlog,
		Messages: 600, Relays: 2, Kills: 1, Target: topic, Broker: server.Addr()}
	if again := c.run(t, testdb.New(t)).Report.Duplicated; again > 0 {
		t.Errorf("%d messages are in the stream more than once", again)
	}
}

// What a service refuses has its copy in a table for dead letters, and the offset goes on; a row that is inserted
// from there once more is delivered like any other.
func TestSeed1DeadLettersOfAnOffsetReader(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{"xmin", "serial"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			const messages, every = 600, 10 // each tenth of a key
			s := Find("outbox_offsets", strategy)
			s.Source = fmt.Sprintf("{preset: outbox_messages_%s, failure: {dead_table: outbox_dead}}", strategy)
			w := newWorld(t, s)
			var accept atomic.Bool
			w.sink.refuse = func(id check.ID) error {
				if id.Seq%every == 0 && !accept.Load() {
					return outbox.Permanent(errors.New("no such product"))
				}
				return nil
			}
			w.db.Exec(`CREATE TABLE outbox_dead (LIKE outbox_messages, reason text, error text, attempts integer, dead_at timestamptz, PRIMARY KEY (id))`)
			for seq := range uint64(messages / 20) {
				for key := range 20 {
					w.write(key, seq+1)
				}
			}
			relay := w.start()
			w.untilSettled()
			if got, want := w.delivered(), messages-messages/every; got != want {
				t.Errorf("%d messages were accepted, want %d", got, want)
			}
			dead := w.db.Value(`SELECT count(*) FROM outbox_dead WHERE reason = 'refused' AND error LIKE '%no such product%' AND attempts = 1 AND dead_at IS NOT NULL`)
			if want := fmt.Sprint(messages / every); dead != want {
				t.Errorf("%s dead letters are as they should be, want %s", dead, want)
			}
			accept.Store(true)
			again := `WITH d AS (DELETE FROM outbox_dead RETURNING *)
				INSERT INTO outbox_messages (topic, key, type, payload, headers, partition) SELECT topic, key, type, payload, headers, partition FROM d`
			if err := pgx.BeginFunc(t.Context(), w.conn, func(tx pgx.Tx) error {
				if _, err := tx.Exec(t.Context(), `SELECT pg_advisory_xact_lock(554738281823524)`); err != nil {
					return err
				}
				_, err := tx.Exec(t.Context(), again)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			w.until("the dead letters are delivered", func() bool { return w.delivered() == messages })
			w.untilSettled()
			if err := relay.Stop(await.Patience); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// Tables whose order is a time that is taken when a transaction begins, or none at all, can't keep the order in which
// transactions took a key's row: the documents promise none of them. Here the second one began first.
func TestWhatHasNoOrderInvertsAKey(t *testing.T) {
	t.Parallel()
	for _, s := range []System{Find("outbox_events", "skiplocked"),
		Find("outbox_event", "advisory"), Find("transaction_outbox", "lease"), Find("outbox_offsets", "xmin")} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			if s.Ordered {
				t.Fatal("an order is promised")
			}
			w := newWorld(t, s)
			early, err := w.db.Connect().Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := early.Exec(t.Context(), "SELECT pg_current_xact_id()"); err != nil {
				t.Fatal(err)
			}
			w.write(0, 1)
			if err := s.Write(t.Context(), early, w.message(0, 2)); err != nil {
				t.Fatal(err)
			}
			if err := early.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			relay := w.start()
			w.untilSettled()
			if err := relay.Stop(await.Patience); err != nil {
				t.Fatal(err)
			}
			if got := w.checker.Report().Inverted; got != 1 {
				t.Errorf("%d messages came after a later one of their key, want 1", got)
			}
		})
	}
}

// world is a system with a writer, a service and relays, one thing after the other.
type world struct {
	t *testing.T
	System
	db      testdb.DB
	conn    *pgx.Conn
	checker *check.Checker
	sink    *sink
	dir     string
	// delivery is the section of that name of the relays' configuration.
	delivery string
}

func newWorld(t *testing.T, s System) *world {
	t.Helper()
	w := &world{t: t, System: s, db: testdb.New(t), checker: check.New(check.Config{}), dir: t.TempDir()}
	w.conn = w.db.Connect()
	if err := s.Load().Create(t.Context(), w.conn); err != nil {
		t.Fatal(err)
	}
	var err error
	if w.sink, err = openSink(&sink{destination: w.checker.Destination("default"), topic: w.message(0, 1).Topic, system: s}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(w.sink.close(), w.sink.complaints()); err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *world) message(key int, seq uint64) rig.Message {
	m := rig.Message{Topic: w.Topic, Key: key, Seq: seq, Payload: check.Encode(nil, uint32(key), seq, 100)}
	if m.Topic == "" {
		m.Topic = "events"
	}
	return m
}

// write commits a message.
func (w *world) write(key int, seq uint64) {
	w.t.Helper()
	err := pgx.BeginFunc(w.t.Context(), w.conn, func(tx pgx.Tx) error { return w.Write(w.t.Context(), tx, w.message(key, seq)) })
	if err != nil {
		w.t.Fatal(err)
	}
	w.checker.Committed(uint32(key), seq)
}

// start starts a relay, which ends with the test if not before.
func (w *world) start() *rig.Relay {
	w.t.Helper()
	c := Case{System: w.System, Relays: 1, Kills: 1, Delivery: w.delivery}
	name := rig.RelayName(0)
	r, err := rig.StartRelay(rigtest.Binary(w.t), w.dir, name, c.config(name, w.db.URL, w.sink.YAML("")))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := r.Kill(); err != nil {
			w.t.Error(err)
		}
		if w.t.Failed() {
			w.t.Log(r.Log())
		}
	})
	return r
}

func (w *world) delivered() int { return int(w.checker.Counts().Delivered) }

func (w *world) untilSettled() {
	w.t.Helper()
	w.until("every row is settled", func() bool { return w.db.Value("SELECT count(*) FROM ("+w.Pending+") p") == "0" })
}

func (w *world) until(what string, done func() bool) {
	w.t.Helper()
	ctx := await.Context(w.t)
	for !done() {
		if rig.Pause(ctx, 20*time.Millisecond) != nil {
			w.t.Fatalf("waited in vain for: %s", what)
		}
	}
}
