package daemon

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/internal/testnet"
)

// sleepy makes a daemon dormant soon. Its looks are longer apart than what a test does between two of them.
func sleepy(poll time.Duration, change func(*config.Config)) func(*config.Config) {
	return func(c *config.Config) {
		c.Dormant, c.DormantPoll = 2*time.Second, poll
		if change != nil {
			change(c)
		}
	}
}

func (m *many) dormant(db testdb.DB) {
	m.t.Helper()
	await.Until(m.t, "it is dormant, and has no connection", func() bool {
		return db.Value("SELECT count(*) FROM outbox.relays WHERE backend_pid = 0") == "1" && connected(db) == 0
	})
}

func seenIn(db testdb.DB) *health.Report {
	db.T.Helper()
	r, err := health.Status(db.T.Context(), db.Connect())
	if err != nil {
		db.T.Fatal(err)
	}
	return r
}

func TestADormantDatabaseHasNoConnectionAndIsDeliveredFromWithinAPoll(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	db := installed(t)
	const poll = 8 * time.Second
	m := deliverFrom(t, from("db", db.Config(), sleepy(poll, severalParts)))
	m.send(db, "first")
	m.dormant(db)
	if n := db.Value("SELECT count(*) FROM outbox.cursors WHERE lease_until > clock_timestamp()"); n != "0" {
		t.Errorf("%s leases were kept", n)
	}
	if r := seenIn(db); !r.Verdict.State.OK() || !strings.Contains(r.Verdict.Cause, "dormant") ||
		len(r.Relays) != 1 || !r.Relays[0].Dormant {
		t.Errorf("another program sees %s, and relays %+v", r.Verdict.Sentence(), r.Relays)
	}
	if code, body := m.get("/databases/db/readyz"); code != 200 || !strings.Contains(body, "dormant") {
		t.Errorf("readyz is %d: %s", code, body)
	}
	if _, body := m.get("/metrics"); !strings.Contains(body, `outbox_databases{state="dormant"} 1`) {
		t.Error("no metric says that the database is dormant")
	}
	report, age := m.d.units[0].watch.summary()
	if age > health.ReadWithin || !report.Verdict.State.OK() {
		t.Errorf("the relay's own verdict is %s, %v old", report.Verdict.Sentence(), age)
	}
	for i := range 200 { // through more than one look
		if i%50 == 0 {
			if n := db.Value(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
				AND application_name LIKE 'outbox relay %'`); n != "0" {
				t.Errorf("there are %s connections", n)
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	began := time.Now()
	m.send(db, "second")
	if took := time.Since(began); took > poll+5*time.Second {
		t.Errorf("it took %v", took)
	}
	db.Await("SELECT sum(delivered) = 4 FROM outbox.cursors") // by both destinations
	m.dormant(db)
}

// The id is drawn, and its transaction open, when the others are delivered: no sequence tells of the commit.
func TestAMessageThatWasWrittenBeforeWakesADormantRelay(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	db := installed(t)
	m := deliverFrom(t, from("db", db.Config(), sleepy(time.Second, nil)))
	m.send(db, "first")
	m.dormant(db)
	db.Exec(`INSERT INTO outbox.messages (id, topic, payload) OVERRIDING SYSTEM VALUE VALUES (1, 'again', '{}')`)
	db.Await("SELECT sum(delivered) = 2 FROM outbox.cursors")
}

// What is held has a time at which it is due, or an operator who looks at it, so the relay stays.
func TestWhatWaitsBehindAPauseKeepsARelayFromBeingDormant(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	db := installed(t)
	m := deliverFrom(t, from("db", db.Config(), sleepy(time.Second, nil)))
	m.send(db, "first")
	db.Exec(`INSERT INTO outbox.controls (destination, actor) VALUES ('all', 'test')`)
	m.dormant(db) // nothing waits
	db.Exec(`INSERT INTO outbox.messages (topic, payload) VALUES ('t', '{}')`)
	db.Await("SELECT count(*) > 0 FROM outbox.cursors WHERE lease_until > clock_timestamp()")
	for range 12 {
		time.Sleep(500 * time.Millisecond)
		if n := db.Value("SELECT count(*) FROM outbox.relays WHERE backend_pid = 0"); n != "0" {
			t.Fatal("it is dormant, and a message waits")
		}
	}
	db.Exec(`DELETE FROM outbox.controls`)
	db.Await("SELECT sum(delivered) = 2 FROM outbox.cursors")
	m.dormant(db)
}

func TestADormantRelayEndsAtOnceAndLeavesNothing(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	db := installed(t)
	d, err := New([]Database{from("db", db.Config(), sleepy(time.Hour, nil))},
		Options{Several: true, Stdout: io.Discard, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	db.Await("SELECT count(*) = 1 FROM outbox.relays WHERE backend_pid = 0")
	stop()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-await.Context(t).Done():
		t.Fatal("it doesn't end")
	}
	if n := db.Value("SELECT count(*) FROM outbox.relays"); n != "0" {
		t.Error("its row is left")
	}
	if r := seenIn(db); r.Verdict.State != health.StateNoRelay {
		t.Errorf("another program sees %s", r.Verdict.Sentence())
	}
}

func TestADormantDatabaseThatIsAwayIsBroken(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	db := installed(t)
	proxy, address := testnet.Before(t, db.Config())
	m := deliverFrom(t, from("db", address, sleepy(time.Second, nil)))
	m.send(db, "first")
	m.dormant(db)
	if err := proxy.Down(); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the verdict is broken", func() bool { return m.d.units[0].watch.health().State == health.StateBroken })
	if err := proxy.Up(); err != nil {
		t.Fatal(err)
	}
	m.send(db, "second")
	m.dormant(db)
}

// A dormant relay has no lease, and is not missed.
func TestASecondChoiceTakesADormantPartForHeld(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	db := installed(t)
	m := deliverFrom(t, from("db", db.Config(), sleepy(time.Hour, nil)))
	m.send(db, "first")
	m.dormant(db)
	held, err := m.d.units[0].leased(t.Context())
	if err != nil || !held[shardGroup{"all", 0}] {
		t.Errorf("held are %v: %v", held, err)
	}
	db.Exec("UPDATE outbox.relays SET heartbeat_at = heartbeat_at - interval '4 hours'") // it is dead
	if held, err = m.d.units[0].leased(t.Context()); err != nil || len(held) > 0 {
		t.Errorf("held are %v: %v", held, err)
	}
	if r := seenIn(db); r.Verdict.State != health.StateNoRelay {
		t.Errorf("another program sees %s", r.Verdict.Sentence())
	}
}
