package mapped

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

// newLogDatabase has a slot, which has a name that no other database of the server uses.
func newLogDatabase(t testing.TB, config ...servers.PostgresConfig) (database, logNames) {
	t.Helper()
	db := newDatabase(t, config...)
	log := logNames{Slot: db.Value("SELECT 'mapped_' || oid::text FROM pg_database WHERE datname = current_database()"),
		Publication: "events_log"}
	db.Exec(mapping.CreatePublicationSQL(log.Publication, mapping.TableName{Schema: "public", Name: "events"}))
	db.Exec(mapping.CreateSlotSQL(log.Slot))
	t.Cleanup(db.DropSlots) // or the database couldn't be dropped
	return db, log
}

// logNames are what a log is read through.
type logNames struct{ Slot, Publication string }

func openLogOf(conn *pgx.ConnConfig, m mapping.Mapping, cfg Config, log logNames) (*Source, error) {
	cfg.Slot, cfg.Publication = log.Slot, log.Publication
	return Open(mapping.Replication, conn, m, cfg)
}

// logged is the mapping of events where no row is marked.
func logged() mapping.Mapping {
	m := events()
	m.Done, m.Failure = mapping.Done{}, mapping.Failure{DeadTable: "dead_events"}
	return m
}

func crashLog(s relay.Session) {
	session := s.(*logSession)
	session.tail.Abort()
	crash(session.source, session.link)
}

func TestLogIsASource(t *testing.T) {
	t.Parallel()
	servers.OnMajors(t, func(t *testing.T, config servers.PostgresConfig) {
		relaytest.RunSource(t, func(t *testing.T) relaytest.SourceHarness {
			db, log := newLogDatabase(t, config)
			h := db.harness(func(conn *pgx.ConnConfig, cfg Config) (relay.Source, error) {
				return openLogOf(conn, logged(), cfg, log)
			})
			h.ConnectionOwns, h.RepeatsBehindHolds, h.WholeTransactions = true, true, true
			h.Crash = crashLog
			return h
		})
	})
}

func openLog(t *testing.T, db database, log logNames, m mapping.Mapping) *Source {
	t.Helper()
	return opened(t)(openLogOf(db.Config(), m, Config{Name: "one", PollIdle: 5 * time.Millisecond}, log)).(*Source)
}

// What its author does with rows that are delivered, or not yet, is nobody's message; nor are other tables of the
// publication.
func TestTheLogDeliversInsertsAloneAlsoOfRowsThatAreGone(t *testing.T) {
	t.Parallel()
	db, log := newLogDatabase(t)
	db.Exec(`CREATE TABLE other (id int PRIMARY KEY)`)
	db.Exec(`ALTER PUBLICATION events_log ADD TABLE other`)
	db.Exec(`ALTER PUBLICATION events_log SET (publish = 'insert, update, delete, truncate')`)
	db.Exec(`INSERT INTO events (topic, key, payload) VALUES ('t', 'a', '1'); INSERT INTO other VALUES (1)`)
	db.Exec(`UPDATE events SET status = 'done', payload = 'changed'`)
	db.Exec(`WITH d AS (INSERT INTO events (topic, key, payload) VALUES ('t', 'b', '2') RETURNING id) SELECT * FROM d; DELETE FROM events`)
	db.Exec(`ALTER TABLE events ADD more text DEFAULT 'x', DROP COLUMN status`)
	db.Exec(`INSERT INTO events (topic, key, payload) VALUES ('t', 'c', '3'); TRUNCATE events`)
	s := acquired(t, openLog(t, db, log, logged()))
	ds := read(t, s, 3)
	for i, d := range ds {
		if string(d.Payload) != fmt.Sprint(i+1) || d.Invalid != nil {
			t.Errorf("message %d is %q, invalid: %v", i+1, d.Payload, d.Invalid)
		}
	}
	// A dead letter has what the log had: there is no row to copy.
	if err := s.Settle(t.Context(), relay.Settlement{Through: &ds[2], Delivered: 2,
		Dead: []relay.Dead{{Delivery: &ds[1], Reason: relay.ReasonRefused, Err: errors.New("no")}}}); err != nil {
		t.Fatal(err)
	}
	if got := db.Value(`SELECT concat_ws(' ', topic, key, convert_from(payload, 'UTF8'), status, attempts, reason, error, dead_at IS NOT NULL) FROM dead_events`); got != "t b 2 new 0 refused no t" {
		t.Errorf("the dead letter is %q", got)
	}
}

// A broker that fails: messages wait in memory, in order, and the slot with them.
func TestTheLogWaitsForAMessageThatFails(t *testing.T) {
	t.Parallel()
	db, log := newLogDatabase(t)
	const keys, each = 8, 30
	for range each {
		db.Exec(`INSERT INTO events (topic, key, payload) SELECT 't', k::text, convert_to(k::text, 'UTF8') FROM generate_series(0, $1 - 1) k`, keys)
	}
	db.Exec(`DELETE FROM events`) // its author's purge is early
	deliverAll(t, db, openLog(t, db, log, logged()), keys, each)
	// Everything is settled, so the slot has passed it.
	db.Exec(`INSERT INTO events (topic, key, payload) VALUES ('t', 'k', 'last')`)
	if got := read(t, acquired(t, openLog(t, db, log, logged())), 1); string(got[0].Payload) != "last" {
		t.Errorf("after everything was settled %q came", got[0].Payload)
	}
}

// Two relays: the second reads when the first is gone, and begins at what it has not settled.
func TestAnotherRelayGoesOnInTheLog(t *testing.T) {
	t.Parallel()
	db, log := newLogDatabase(t)
	ctx := await.Context(t)
	broker := relaytest.NewMemory()
	run := func(name string) (end func()) {
		source := opened(t)(openLogOf(db.Config(), logged(), Config{Name: name, Lease: time.Minute, PollIdle: 5 * time.Millisecond}, log))
		_, end = testdb.Run(t, source, broker, relay.Config{})
		return end
	}
	write := func(n int) {
		db.Exec(`INSERT INTO events (topic, key, payload) VALUES ('t', 'k', convert_to($1::text, 'UTF8'))`, fmt.Sprint(n))
		if err := broker.Wait(ctx, func() bool { return len(broker.Messages()) >= n }); err != nil {
			t.Fatalf("%d of %d messages came: %v", len(broker.Messages()), n, err)
		}
	}
	one := run("one")
	for n := 1; n <= 10; n++ {
		write(n)
	}
	two := run("two")
	one()
	for n := 11; n <= 20; n++ {
		write(n)
	}
	two()
	for i, m := range broker.Messages() {
		if string(m.Payload) != fmt.Sprint(i+1) {
			t.Fatalf("message %d is %s", i+1, m.Payload)
		}
	}
}

// A relay that has lost its lock, and not its stream: the next one ends that stream, and the late one settles nothing.
func TestALateRelayOfTheLogSettlesNothing(t *testing.T) {
	t.Parallel()
	db, log := newLogDatabase(t)
	db.Exec(`INSERT INTO events (topic, key, payload) VALUES ('t', 'k', '1')`)
	late := acquired(t, openLog(t, db, log, logged())).(*logSession)
	ds := read(t, late, 1)
	db.Exec(`SELECT pg_terminate_backend($1)`, late.link.Conn.PgConn().PID())

	other := acquired(t, openLog(t, db, log, logged()))
	err := late.Settle(t.Context(),
		relay.Settlement{Through: &ds[0], Dead: []relay.Dead{{Delivery: &ds[0], Reason: relay.ReasonRefused, Err: errors.New("no")}}})
	if !errors.Is(err, relay.ErrLeaseLost) {
		t.Errorf("the late relay's Settle returned %v, want ErrLeaseLost", err)
	}
	if time.Now().Before(late.Expires()) {
		t.Error("the late relay says that its lease lasts")
	}
	if err := late.tail.Settled(1); err == nil { // as if it had been under way
		_ = late.tail.Close()
	}
	if got := read(t, other, 1); string(got[0].Payload) != "1" {
		t.Errorf("got %q", got[0].Payload)
	}
	if n := db.Value(`SELECT count(*) FROM dead_events`); n != "0" {
		t.Errorf("the late relay made %s dead letters", n)
	}
	db.Exec(`INSERT INTO events (topic, key, payload) VALUES ('t', 'k', '2')`)
	if got := read(t, other, 1); string(got[0].Payload) != "2" {
		t.Errorf("the stream of the one that has the lock has ended: %q", got[0].Payload)
	}
}

// Rows that are larger than what is received at once, and a transaction of many.
func TestTheLogBringsLargeRowsAndLargeTransactions(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	db, log := newLogDatabase(t)
	const small = 20_000
	db.Exec(`INSERT INTO events (topic, key, payload) VALUES ('t', 'large', decode(repeat('ab', 3000000), 'hex'))`)
	db.Exec(`INSERT INTO events (topic, key, payload) SELECT 't', (n % 100)::text, convert_to(n::text, 'UTF8') FROM generate_series(1, $1) n`, small)
	broker := relaytest.NewMemory()
	ctx, stop := testdb.Run(t, openLog(t, db, log, logged()), broker, relay.Config{Batch: 100, MaxInFlight: 500})
	if err := broker.Wait(ctx, func() bool { return len(broker.Messages()) >= 1+small }); err != nil {
		t.Errorf("%d messages came: %v", len(broker.Messages()), err)
	}
	stop()
	last := make(map[string]int64)
	for _, m := range broker.Messages() {
		if m.Key == "large" && (len(m.Payload) != 3_000_000 || m.Payload[0] != 0xab) {
			t.Errorf("the large message has %d bytes", len(m.Payload))
		}
		if m.Position <= last[m.Key] {
			t.Fatalf("key %s: %d after %d", m.Key, m.Position, last[m.Key])
		}
		last[m.Key] = m.Position
	}
}

// At the bound of what waits nothing new is read, and then it goes on.
func TestTheLogIsReadNoFurtherWhenTooMuchWaits(t *testing.T) {
	t.Parallel()
	db, log := newLogDatabase(t)
	source := opened(t)(openLogOf(db.Config(), logged(), Config{Name: "one", PollIdle: 5 * time.Millisecond, MaxHolds: 1}, log))
	s := acquired(t, source)
	db.Exec(`INSERT INTO events (topic, key, payload) VALUES ('t', 'a', '1')`)
	ds := read(t, s, 1)
	must(t, s.Settle(t.Context(), relay.Settlement{Through: &ds[0], Hold: []relay.Hold{{Delivery: &ds[0], Blocked: true}}}))
	db.Exec(`INSERT INTO events (topic, key, payload) VALUES ('t', 'b', '2')`)
	for range 3 {
		if b, err := s.Next(t.Context(), 10); err != nil || len(b.Deliveries) > 0 || b.Full == nil {
			t.Fatalf("read %d messages beyond the bound, because of %v, %v", len(b.Deliveries), b.Full, err)
		}
	}
	held := testdb.Held(t, s, "a", 10)
	if len(held) != 1 || string(held[0].Payload) != "1" || !held[0].Blocked {
		t.Fatalf("held %+v", held)
	}
	must(t, s.Settle(t.Context(), relay.Settlement{HeldDelivered: []*relay.Delivery{&held[0]}, Delivered: 1}))
	if got := read(t, s, 1); string(got[0].Payload) != "2" {
		t.Errorf("got %q", got[0].Payload)
	}
}
