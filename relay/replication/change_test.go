package replication

import (
	"context"
	"fmt"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
)

func TestTheTableMayChangeWhileTheLogIsRead(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	source, _ := db.source("d", Config{})
	s := acquire(t, source)
	streaming(t, s)
	db.insert("before")
	db.Exec("ALTER TABLE outbox.messages ADD COLUMN extra point DEFAULT '(1,2)'")
	db.insert("with a column more")
	db.Exec("ALTER TABLE outbox.messages DROP COLUMN extra")
	db.insert("with a column less")
	db.Exec("ALTER TABLE outbox.messages DROP COLUMN content_type; ALTER TABLE outbox.messages ADD COLUMN content_type " +
		"varchar(50) DEFAULT 'x/y'")
	db.insert("with a column in another place")
	ds := read(t, s, 4)
	if got := strings.Join(texts(ds), ", "); got != "before, with a column more, with a column less, with a column in another place" {
		t.Errorf("read %s", got)
	}
	if ds[0].ContentType != "" || ds[3].ContentType != "x/y" {
		t.Errorf("content types %q and %q", ds[0].ContentType, ds[3].ContentType)
	}
	testdb.Settle(t, s, &ds[3])
}

func TestLargeValuesAndNullsArriveWhole(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	source, _ := db.source("d", Config{})
	s := acquire(t, source)
	streaming(t, s)
	// Out of line, compressed and not; and larger than any buffer.
	db.Exec(`INSERT INTO outbox.messages (topic, payload) VALUES ('t', NULL), ('t', ''), ('t', convert_to(repeat('x', 900000), 'UTF8')),
		('t', (SELECT string_agg(sha256(i::text::bytea), '') FROM generate_series(1, 30000) i))`)
	db.Exec(`ALTER TABLE outbox.messages_0 ALTER COLUMN payload SET STORAGE EXTERNAL`)
	db.Exec(`INSERT INTO outbox.messages (topic, payload, segment) VALUES ('t', convert_to(repeat('y', 3000000), 'UTF8'), 0)`)
	ds := read(t, s, 5)
	if ds[0].Payload != nil || ds[1].Payload == nil || len(ds[1].Payload) != 0 {
		t.Errorf("NULL came as %#v, empty as %#v", ds[0].Payload, ds[1].Payload)
	}
	for i, want := range map[int]int{2: 900000, 3: 960000, 4: 3000000} {
		if len(ds[i].Payload) != want {
			t.Errorf("a payload of %d bytes came as one of %d", want, len(ds[i].Payload))
		}
	}
	if string(ds[4].Payload) != strings.Repeat("y", 3000000) {
		t.Error("the largest payload is another")
	}
}

func TestShardsAreThoseOfTheTable(t *testing.T) {
	t.Parallel()
	conn := database{testdb.New(t)}.Connect()
	for i := range 40 {
		name := strings.Repeat("ü/key-", i/5) + strconv.Itoa(i*i*i)
		var want int
		if err := conn.QueryRow(t.Context(), "SELECT (hashtextextended($1, 0) & 63)::integer", name).Scan(&want); err != nil {
			t.Fatal(err)
		}
		if got := int(shardOf([]byte(name))); got != want {
			t.Errorf("%q is in shard %d, the table has %d", name, got, want)
		}
	}
}

// While Next isn't called, the server must hear from the reader, and while messages wait nothing is confirmed.
func TestAPipelineThatIsFullKeepsTheStreamAlive(t *testing.T) {
	t.Parallel()
	// A busy machine may stop for seconds.
	db, _ := alone(t, servers.PostgresConfig{Settings: map[string]string{"wal_sender_timeout": "5s"}})
	source, _ := db.source("d", Config{})
	s := acquire(t, source)
	streaming(t, s)
	slot := source.cfg.Slot
	pid := func() string {
		return db.Value("SELECT coalesce(active_pid, 0) FROM pg_replication_slots WHERE slot_name = $1", slot)
	}
	before := pid()
	db.Exec(`INSERT INTO outbox.messages (topic, payload) SELECT 't', convert_to(repeat(md5(i::text), 100), 'UTF8') FROM generate_series(1, 5000) i`)
	ds := read(t, s, 1)
	began := db.Value("SELECT clock_timestamp()::text")
	await.Until(t, "several timeouts pass", func() bool {
		return db.try("SELECT clock_timestamp() > $1::timestamptz + interval '11 s'", began)
	})
	if after := pid(); after != before || after == "0" {
		t.Errorf("the stream of process %s was given up, now %s", before, after)
	}
	if n := db.Value(`SELECT count(*) FROM pg_replication_slots s, outbox.slots p WHERE s.confirmed_flush_lsn > p.position`); n != "0" {
		t.Error("more is confirmed than is stored")
	}
	testdb.Settle(t, s, &ds[0])
	read(t, s, 4999)
	db.DropSlots()
}

// One transaction, larger than anything that is kept in memory. 1,000,000 rows with OUTBOX_REPLICATION_ROUNDS.
func TestAHugeTransactionTakesLittleMemory(t *testing.T) {
	servers.Long(t)
	rows := 60_000
	if rounds(t, 1) > 1 {
		rows = 1_000_000
	}
	db := newDatabase(t)
	source, _ := db.source("d", Config{})
	s := acquire(t, source)
	streaming(t, s)
	db.Exec(`INSERT INTO outbox.messages (topic, key, payload) SELECT 't', (i % 100)::text, convert_to(i || repeat('x', 256), 'UTF8') FROM generate_series(1, $1::integer) i`, rows)
	var peak uint64
	last := make(map[string]int)
	for n := 0; n < rows; {
		ctx, cancel := context.WithCancel(await.Context(t))
		b, err := s.Next(ctx, 1000)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		for i := range b.Deliveries {
			d := &b.Deliveries[i]
			at, _ := strconv.Atoi(strings.TrimRight(string(d.Payload), "x"))
			if at <= last[d.Key] {
				t.Fatalf("%d came after %d", at, last[d.Key])
			}
			last[strings.Clone(d.Key)] = at // its memory is used again
		}
		if k := len(b.Deliveries); k > 0 {
			if n%20_000 < k {
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				peak = max(peak, m.HeapAlloc)
			}
			n += k
			testdb.Settle(t, s, &b.Deliveries[k-1])
			b.Recycle()
		}
	}
	t.Logf("%d rows, a heap of at most %d MiB", rows, peak>>20)
	if peak > 48<<20 {
		t.Errorf("the heap has grown to %d MiB", peak>>20)
	}
	s.mu.Lock()
	runs := reflect.ValueOf(s.progress).Elem().FieldByName("runs").Cap()
	s.mu.Unlock()
	if runs > 64 {
		t.Errorf("the bookkeeping has room for %d runs", runs)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestAQuietLogIsKeptAliveByHeartbeats(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	cfg := Config{Heartbeat: 50 * time.Millisecond}
	cfg.Table.Lease = 5 * time.Second
	source, _ := db.source("d", cfg)
	s := acquire(t, source)
	streaming(t, s)
	slot := source.cfg.Slot
	from := db.Value("SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1", slot)
	ctx := await.Context(t)
	for !db.try("SELECT confirmed_flush_lsn > $2::pg_lsn FROM pg_replication_slots WHERE slot_name = $1", slot, from) {
		if _, err := s.Next(ctx, 1); err != nil {
			t.Fatal(err)
		}
	}
}

func TestMessagesThatWereEmittedWrongAreNotDroppedInSilence(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	source, _ := db.source("d", Config{Emitted: true})
	s := acquire(t, source)
	streaming(t, s)
	db.Exec("SELECT pg_logical_emit_message(true, 'outbox', 'garbage')")
	db.Exec("SELECT pg_logical_emit_message(true, 'other', 'not for us')")
	conn := db.Connect()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var w outbox.Writer
	if _, err := w.Emit(t.Context(), tx, outbox.Message{Topic: "t", Key: "k", Payload: []byte("1")},
		outbox.Message{Topic: "t", Key: "k", Payload: []byte("2")}); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	ds := read(t, s, 3)
	if got := fmt.Sprint(texts(ds)); got != "[garbage 1 2]" {
		t.Errorf("read %s", got)
	}
	if ds[0].Invalid == nil || ds[1].Invalid != nil {
		t.Errorf("invalid: %v and %v", ds[0].Invalid, ds[1].Invalid)
	}
	if ds[1].Position <= 0 || ds[2].Position <= ds[1].Position {
		t.Errorf("positions %d and %d", ds[1].Position, ds[2].Position)
	}
	err = s.Settle(t.Context(),
		relay.Settlement{Through: &ds[2], Dead: []relay.Dead{{Delivery: &ds[0], Reason: relay.ReasonInvalid, Err: ds[0].Invalid}}})
	if err != nil {
		t.Fatal(err)
	}
	if got := db.Value("SELECT convert_from(payload, 'UTF8') FROM outbox.dead_letters"); got != "garbage" {
		t.Errorf("the dead letter has %q", got)
	}
}

func TestAnEmittedHoldBehindOneThatIsJustDiscardedIsDue(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	source, _ := db.source("d", Config{Emitted: true})
	s := acquire(t, source)
	streaming(t, s)
	var w outbox.Writer
	err := pgx.BeginFunc(t.Context(), db.Connect(), func(tx pgx.Tx) error {
		_, err := w.Emit(t.Context(), tx, outbox.Message{Topic: "t", Key: "k"}, outbox.Message{Topic: "t", Key: "k"})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	db.HoldBehindADiscarded(t, s, read(t, s, 2))
}
