package polling

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/cursors"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
)

func TestABacklogIsReadInOrderOfIDWhateverThePageSize(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	// Three transactions at once, whose ids are interleaved, one of them larger than a chunk; then many small ones.
	txs := db.begin(3)
	for i := range 12 {
		_, err := txs[i%3].Exec(t.Context(), `INSERT INTO outbox.messages (topic, key, payload)
			SELECT 't', 'k', '' FROM generate_series(1, $1)`, []int{4000, 10, 700}[i%3])
		if err != nil {
			t.Fatal(err)
		}
	}
	db.commit(txs)
	db.Exec(`DO $$ BEGIN FOR i IN 1..3000 LOOP INSERT INTO outbox.messages (topic) VALUES ('t'); COMMIT; END LOOP; END $$`)
	const total = 4*(4000+10+700) + 3000

	for _, limit := range []int{7, 1000, 100_000} {
		source := db.source(fmt.Sprint("pages of ", limit), SnapshotConfig{})
		source.minPage = 1
		s := testdb.Acquire(t, source)
		last, n := int64(0), 0
		for n < total {
			ds := testdb.Next(t, s, limit)
			if len(ds) > limit {
				t.Fatalf("%d messages returned, %d asked for", len(ds), limit)
			}
			for i := range ds {
				if ds[i].Position <= last {
					t.Fatalf("id %d came after %d", ds[i].Position, last)
				}
				last = ds[i].Position
			}
			n += len(ds)
			if limit == 7 && n > 500 {
				// Far enough: go on where that was settled, in a new session and larger pages.
				testdb.Settle(t, s, &ds[len(ds)-1])
				if err := s.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
				s = testdb.Acquire(t, source)
				limit = 5000
			}
		}
		if n != total {
			t.Errorf("%d messages with pages of %d, want %d", n, limit, total)
		}
	}
}

func TestLargeMessagesComeInSmallBatches(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	db := newDatabase(t)
	db.Exec(`INSERT INTO outbox.messages (topic, payload) SELECT 't', convert_to(repeat('x', 100000), 'UTF8') FROM generate_series(1, 500)`)
	const pageBytes = 1 << 20
	s := testdb.Acquire(t, db.source("d", SnapshotConfig{PageBytes: pageBytes}))
	n := 0
	for n < 500 {
		ds := testdb.Next(t, s, 5000)
		size := 0
		for i := range ds {
			size += len(ds[i].Payload)
		}
		if size > pageBytes+100_000 {
			t.Errorf("a batch of %d bytes, PageBytes is %d", size, pageBytes)
		}
		n += len(ds)
	}
	if n != 500 {
		t.Errorf("%d messages, want 500", n)
	}
}

func TestMoreThanAPageHasRoomForComesInOrderToo(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		insert string // of two transactions by turns, as number $1
		turns  int
		cfg    SnapshotConfig
	}{
		"messages that are small at first": {`INSERT INTO outbox.messages (topic, payload)
			SELECT 't', convert_to(repeat('x', CASE WHEN $1 < 200 THEN 1 ELSE 50000 END), 'UTF8') FROM generate_series(1, 3)`, 300, SnapshotConfig{PageBytes: 1 << 20}},
		"ids that are sparse at first": {`INSERT INTO outbox.messages (topic, id)
			SELECT 't', CASE WHEN $1 < 40 THEN 5000 * $1 + 50 * i ELSE 200000 + 100 * $1 + i END FROM generate_series(1, 100) i`, 240, SnapshotConfig{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			txs := db.begin(2)
			total := 0
			for turn := range c.turns {
				tag, err := txs[turn%2].Exec(t.Context(), c.insert, turn)
				if err != nil {
					t.Fatal(err)
				}
				total += int(tag.RowsAffected())
			}
			db.Exec("SELECT setval('outbox.messages_id_seq', 1000000)") // beyond the ids that were given
			db.commit(txs)
			source := db.source("d", c.cfg)
			source.minPage = 1
			s := testdb.Acquire(t, source)
			last, n := int64(0), 0
			for n < total {
				ds := testdb.Next(t, s, 1000)
				for i := range ds {
					if ds[i].Position <= last {
						t.Fatalf("id %d came after %d", ds[i].Position, last)
					}
					last = ds[i].Position
				}
				n += len(ds)
			}
			if n != total {
				t.Errorf("%d messages, want %d", n, total)
			}
		})
	}
}

func TestARowThatIsNoMessageIsInvalidAndSaysWhy(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Exec(`INSERT INTO outbox.messages (topic, headers) VALUES
		('', NULL), ('t', '[1]'), ('t', '"x"'), ('t', '{"": "x"}'), ('t', '{"a": "x\r\ny"}'), ('t', '{"a": 1, "b": null, "c": {"d": [true]}}')`)
	s := testdb.Acquire(t, db.source("d", SnapshotConfig{}))
	ds := testdb.Next(t, s, 10)
	want := []string{
		"Topic is empty, and every message needs one",
		"headers are a JSON array, they must be an object",
		"headers are a JSON string, they must be an object",
		"Headers[0] has an empty name",
		`Headers["a"] has a value that contains CR or LF`,
		"<nil>",
	}
	if len(ds) != len(want) {
		t.Fatalf("%d messages, want %d", len(ds), len(want))
	}
	for i := range ds {
		if got := fmt.Sprint(ds[i].Invalid); got != want[i] {
			t.Errorf("message %d: %s, want %s", i, got, want[i])
		}
	}
	if got := fmt.Sprint(ds[5].Headers); got != `[{a 1} {b null} {c {"d": [true]}}]` {
		t.Errorf("headers that are not strings: %s", got)
	}
}

// A json is stored as it was written. As in jsonb, of a name that is there twice the last value counts. A hold keeps
// the text too.
func TestHeadersArriveInTheOrderInWhichTheyWereWritten(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Exec(`INSERT INTO outbox.messages (topic, key, headers) VALUES ('t', 'k', E'{ "longer" : "1",\n\t"b": [ 1, "\\u0000" ],\r"a": "x\\ny", "b": "3", "a": "" }')`)
	db.Exec(`INSERT INTO outbox.holds (destination, lane, id, message_id, topic, key, shard, created_at, retry_at, headers)
		SELECT 'd', 'k', id, message_id, topic, key, shard, created_at, now(), headers FROM outbox.messages`)
	s := testdb.Acquire(t, db.source("d", SnapshotConfig{}))
	held := testdb.Held(t, s, "k", 1)
	for _, d := range []relay.Delivery{testdb.Next(t, s, 1)[0], held[0]} {
		if got := fmt.Sprintf("%q", d.Headers); got != `[{"longer" "1"} {"b" "3"} {"a" ""}]` || d.Invalid != nil {
			t.Errorf("%s, %v", got, d.Invalid)
		}
	}
}

func TestARoleWithOddDefaultsChangesNothing(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	role := "odd_" + db.Value("SELECT current_database()")
	db.Exec(`CREATE ROLE ` + role + ` LOGIN SUPERUSER`)
	for _, setting := range []string{
		"default_transaction_isolation = 'serializable'", "default_transaction_read_only = on", "search_path = nowhere",
		"synchronous_commit = off", "timezone = 'Asia/Kathmandu'", "datestyle = 'SQL, DMY'", "enable_indexscan = off",
		"plan_cache_mode = force_custom_plan", "bytea_output = escape", "statement_timeout = '1h'",
	} {
		db.Exec("ALTER ROLE " + role + " SET " + setting)
	}
	db.Exec(`INSERT INTO outbox.messages (topic, payload) VALUES ('t', 'a')`)
	cfg := db.Config()
	cfg.User = role
	source, err := NewSnapshot(cfg, "d", SnapshotConfig{})
	if err != nil {
		t.Fatal(err)
	}
	s := testdb.Acquire(t, source)
	if ds := testdb.Next(t, s, 10); testdb.Payloads(ds) != "a" {
		t.Fatalf("got %q", testdb.Payloads(ds))
	} else {
		testdb.Settle(t, s, &ds[0])
	}
	db.Exec(`INSERT INTO outbox.messages (topic, payload) VALUES ('t', 'b')`)
	if ds := testdb.Next(t, s, 10); testdb.Payloads(ds) != "b" {
		t.Fatalf("got %q", testdb.Payloads(ds))
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	db.Exec("DROP ROLE " + role)
}

func TestAHotStandbyIsRefused(t *testing.T) {
	t.Parallel()
	primary := servers.OwnPostgres(t)
	name, err := primary.CreateDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	database{testdb.DB{T: t, URL: primary.URL(name)}}.Install()
	standby := servers.OwnStandby(t, primary)
	source := database{testdb.DB{T: t, URL: standby.URL(name)}}.source("d", SnapshotConfig{})
	_, err = source.Acquire(t.Context())
	if !errors.Is(err, cursors.ErrStandby) || !outbox.IsPermanent(err) {
		t.Errorf("got %v", err)
	}

	// Nor may the connection that reads end there, when an address leads to both.
	cfg := database{testdb.DB{T: t, URL: primary.URL(name)}}.Config()
	other := database{testdb.DB{T: t, URL: standby.URL(name)}}.Config()
	var connections atomic.Int32
	cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if connections.Add(1) > 1 {
			addr = fmt.Sprintf("%s:%d", other.Host, other.Port)
		}
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}
	if source, err = NewSnapshot(cfg, "d", SnapshotConfig{}); err != nil {
		t.Fatal(err)
	}
	if _, err := source.Acquire(t.Context()); err == nil || !strings.Contains(err.Error(), "different servers") {
		t.Errorf("got %v", err)
	}
}

func TestAWakeUpEndsAPause(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	wake := make(chan struct{}, 1)
	s := testdb.Acquire(t, db.source("d", SnapshotConfig{PollBusy: time.Hour, PollIdle: time.Hour, Wake: wake}))
	got := make(chan string)
	go func() {
		b, err := s.Next(t.Context(), 10)
		if err != nil {
			t.Error(err)
		}
		got <- testdb.Payloads(b.Deliveries)
	}()
	session := s.(*snapshotSession)
	// The first poll finds nothing, and the next one is an hour away.
	before := session.position().Prev
	for before == cursors.Nothing {
		before = session.position().Prev
	}
	db.Exec(`INSERT INTO outbox.messages (topic, payload) VALUES ('t', 'a')`)
	wake <- struct{}{}
	select {
	case text := <-got:
		if text != "a" {
			t.Errorf("got %q", text)
		}
	case <-await.Context(t).Done():
		t.Error("it sleeps on")
	}
}

func TestManyOpenWindowsWaitForASettlement(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	s := testdb.Acquire(t, db.source("d", SnapshotConfig{})).(*snapshotSession)
	var open []relay.Delivery
	for i := 0; !s.crowded(); i++ {
		db.Exec(`INSERT INTO outbox.messages (topic, payload) VALUES ('t', $1)`, []byte(fmt.Sprint(i)))
		ds := testdb.Next(t, s, 10)
		if testdb.Payloads(ds) != fmt.Sprint(i) {
			t.Fatalf("got %q, want %d", testdb.Payloads(ds), i)
		}
		open = append(open, ds...)
	}
	if len(open) < 2 {
		t.Fatalf("crowded with %d windows", len(open))
	}
	db.Exec(`INSERT INTO outbox.messages (topic, payload) VALUES ('t', 'more'), ('t', 'and more')`)
	got := make(chan string)
	go func() {
		b, err := s.Next(t.Context(), 10)
		if err != nil {
			t.Error(err)
		}
		got <- testdb.Payloads(b.Deliveries)
	}()
	testdb.Settle(t, s, &open[0])
	if text := <-got; text != "more and more" {
		t.Errorf("got %q", text)
	}
	// The new window may wait for a settlement to be stored.
	if n := db.Value("SELECT cardinality(windows) FROM outbox.cursors"); n != fmt.Sprint(len(open)-1) && n != fmt.Sprint(len(open)) {
		t.Errorf("%s windows stored, want %d or one more", n, len(open)-1)
	}
}

func TestAnIdleCursorIsStoredWithTheLease(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	s := testdb.Acquire(t, db.source("d", SnapshotConfig{Lease: 5 * time.Second}))
	first := db.Value("SELECT prev::text FROM outbox.cursors")
	ctx, cancel := context.WithCancel(t.Context())
	idle := make(chan struct{})
	go func() {
		defer close(idle)
		_, _ = s.Next(ctx, 10) // until cancelled
	}()
	defer func() { <-idle }()
	defer cancel()
	db.Await("SELECT prev::text <> $1 FROM outbox.cursors", first)
}

func TestAConnectionThatBreaksEndsTheSessionAndNothingElse(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	source := db.source("d", SnapshotConfig{})
	source.owner = "one"
	db.numbered(1, 20)
	s := testdb.Acquire(t, source).(*snapshotSession)
	ds := testdb.Next(t, s, 20)
	testdb.Settle(t, s, &ds[4])
	db.Exec("SELECT pg_terminate_backend($1, 10000)", int(s.lease.Link.Conn.PgConn().PID()))
	err := s.Settle(t.Context(), relay.Settlement{Through: &ds[9], Delivered: 5})
	if err == nil || errors.Is(err, relay.ErrLeaseLost) || outbox.IsPermanent(err) {
		t.Errorf("settle: %v, want an error that says that the connection broke", err)
	}
	if _, err := s.Next(t.Context(), 10); err == nil {
		t.Error("the session reads on")
	}
	_ = s.Close(t.Context())
	again := testdb.Next(t, testdb.Acquire(t, source), 20)
	if testdb.Payloads(again) != testdb.Payloads(ds[5:]) {
		t.Errorf("got %q, want what was not settled: %q", testdb.Payloads(again), testdb.Payloads(ds[5:]))
	}
}

func TestFaultsOfAConfigAreReportedTogether(t *testing.T) {
	t.Parallel()
	_, err := NewSnapshot(nil, "",
		SnapshotConfig{Groups: 65, Group: 65, Lease: 1, PollBusy: 2 * time.Second, PollIdle: time.Second, PageBytes: -1})
	var all interface{ Unwrap() []error }
	if !errors.As(err, &all) || len(all.Unwrap()) != 7 {
		t.Errorf("got %v", err)
	}
}

func TestASettlementThatFailsChangesNothing(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Exec(`INSERT INTO outbox.messages (topic, key, payload) VALUES ('t', 'k', 'a'), ('t', 'k', 'b')`)
	source := db.source("d", SnapshotConfig{})
	s := testdb.Acquire(t, source)
	ds := testdb.Next(t, s, 10)
	db.Exec(`DROP PUBLICATION everything`)
	db.Exec(`DELETE FROM outbox.messages WHERE id = $1`, ds[0].Position)
	err := s.Settle(t.Context(), relay.Settlement{Through: &ds[1], Hold: []relay.Hold{{Delivery: &ds[0]}}})
	if err == nil {
		t.Fatal("a message that is not there was held")
	}
	if err := s.Settle(t.Context(), relay.Settlement{Through: &ds[1]}); err == nil {
		t.Error("the session went on settling after a failure")
	}
	if _, err := s.Next(t.Context(), 10); err == nil {
		t.Error("the session went on reading after a failure")
	}
	_ = s.Close(t.Context())
	s = testdb.Acquire(t, source)
	if ds := testdb.Next(t, s, 10); testdb.Payloads(ds) != "b" {
		t.Errorf("got %q, want the message that is left", testdb.Payloads(ds))
	}
}
