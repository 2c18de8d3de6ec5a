package mapped

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
)

// shortLease is waited out in tests, and kept before. A question that takes longer ends the session, so a busy machine
// needs that much.
const shortLease = 5 * time.Second

func acquired(t *testing.T, s relay.Source) relay.Session {
	t.Helper()
	ctx := await.Context(t)
	session, err := s.Acquire(ctx)
	must(t, err)
	t.Cleanup(func() { _ = session.Close(context.Background()) })
	return session
}

func read(t *testing.T, s relay.Session, n int) (all []relay.Delivery) {
	t.Helper()
	ctx := await.Context(t)
	for len(all) < n {
		b, err := s.Next(ctx, n-len(all))
		if err != nil {
			t.Fatalf("after %d of %d messages: %v", len(all), n, err)
		}
		all = append(all, b.Deliveries...)
	}
	return all
}

func TestAListIsUsedAgainWhenAllItsBatchesAreRecycled(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"skiplocked", "advisory", "lease", "xmin", "serial"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			source := opened(t)(strategies()[name](db.Config(), Config{Name: "one", PollIdle: time.Millisecond}))
			s := acquired(t, source)
			written := 0
			next := func(limit int) (b relay.Batch) {
				t.Helper()
				var err error
				for err == nil && len(b.Deliveries) == 0 {
					b, err = s.Next(t.Context(), limit)
				}
				must(t, err)
				return b
			}
			write := func(n int) {
				db.Exec(`INSERT INTO events (topic, key, payload) SELECT 't', 'k' || n, 'x' FROM generate_series($1::int + 1, $2::int) n`, written, written+n)
				written += n
			}
			write(3)
			first, second := next(2), next(2)
			key := second.Deliveries[0].Key
			first.Recycle()
			write(1)
			if third := next(2); &third.Deliveries[0] == &first.Deliveries[0] || second.Deliveries[0].Key != key {
				t.Error("a list is used again while one of its batches is on its way")
			}
			second.Recycle()
			write(1)
			if fourth := next(2); &fourth.Deliveries[0] != &first.Deliveries[0] {
				t.Error("a list is not used again, though all of its batches are recycled")
			}
		})
	}
}

// A comparison of the transaction beside that of the pair would skip the rest of a transaction that a page cuts.
func TestXMinGoesOnInTheMiddleOfATransaction(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	const total = 10_000 // in one transaction, and more than two pages
	db.Exec(`INSERT INTO events (topic, key, payload) SELECT 't', 'k', convert_to(n::text, 'UTF8') FROM generate_series(1, $1) n`, total)
	source := opened(t)(strategies()["xmin"](db.Config(), Config{Name: "one"}))
	s := acquired(t, source)
	ds := read(t, s, total/2)
	must(t, s.Settle(t.Context(), relay.Settlement{Through: &ds[total/2-1], Delivered: total / 2}))
	must(t, s.Close(t.Context()))
	ds = append(ds, read(t, acquired(t, source), total/2)...)
	for i := range ds {
		if want := fmt.Sprint(i + 1); string(ds[i].Payload) != want {
			t.Fatalf("message %s came in the place of %s", ds[i].Payload, want)
		}
	}
}

// Rows that a live relay works on are not those that a crash has left.
func TestRecoveryTakesNothingFromALiveRelay(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	db := newDatabase(t)
	m := events()
	m.Claim = mapping.Claim{Status: "taken", Since: "locked_until"}
	open := func(name string) *Source {
		return opened(t)(Open(mapping.Lease, db.Config(), m,
			Config{Name: name, Lease: shortLease, PollIdle: 5 * time.Millisecond})).(*Source)
	}
	db.Exec(`INSERT INTO events (topic, key, payload) VALUES ('t', 'k', '1')`)
	live := acquired(t, open("live"))
	working := read(t, live, 1)
	began := live.Expires()

	other := acquired(t, open("other")) // as after a restart
	for live.Expires().Sub(began) < 3*shortLease/2 {
		time.Sleep(10 * time.Millisecond) // the reservation is renewed more than once
	}
	db.Exec(`INSERT INTO events (topic, key, payload) VALUES ('t', 'l', '2')`)
	if got := read(t, other, 1); string(got[0].Payload) != "2" {
		t.Errorf("the other relay got %q, which the first one works on", got[0].Payload)
	}
	must(t, live.Settle(t.Context(), relay.Settlement{Through: &working[0], Delivered: 1}))

	// What nobody works on any more is taken over when its time is over.
	crash(other.(*leaseSession).source, other.(*leaseSession).link, other.(*leaseSession).reader.Conn)
	if got := read(t, live, 1); string(got[0].Payload) != "2" {
		t.Errorf("got %q", got[0].Payload)
	}
}

func TestPurgeDeletesWhatIsOldAndDelivered(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	m := events()
	m.Done.At = "locked_until" // any column of a time will do
	if _, err := NewPurge(db.Config(), m, PurgeConfig{Keep: 100 * time.Minute, Every: time.Hour}); err == nil ||
		!strings.Contains(err.Error(), "rows_may_be_deleted") {
		t.Errorf("a table that nobody called an outbox: %v", err)
	}
	m.RowsMayBeDeleted = true
	db.Exec(`INSERT INTO events (topic, payload, status, locked_until)
		SELECT 't', '', CASE n % 3 WHEN 0 THEN 'new' ELSE 'done' END, now() - n * interval '1 minute' FROM generate_series(1, 3000) n`)
	p, err := NewPurge(db.Config(), m, PurgeConfig{Keep: 100 * time.Minute, Every: time.Hour})
	must(t, err)
	n, err := p.Once(t.Context())
	must(t, err)
	if left := db.Value("SELECT count(*) FROM events WHERE status = 'done'"); left != "66" || n != 1934 {
		t.Errorf("%d rows were deleted, %s delivered ones are left", n, left)
	}
	if left := db.Value("SELECT count(*) FROM events WHERE status = 'new'"); left != "1000" {
		t.Errorf("%s rows wait, want 1000", left)
	}
}

// What is purged is in the archive, or it is still in the table.
func TestPurgeMovesRowsToAnArchiveOrLeavesThem(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	db := newDatabase(t)
	db.Exec(`CREATE TABLE dated (LIKE events INCLUDING DEFAULTS INCLUDING IDENTITY, PRIMARY KEY (id, created_at)) PARTITION BY RANGE (created_at)`)
	db.Exec(`CREATE TABLE dated_all PARTITION OF dated DEFAULT`)
	db.Exec(`ALTER TABLE dated ADD twice bigint GENERATED ALWAYS AS (part * 2) STORED`)
	db.Exec(`INSERT INTO dated (topic, payload, status, locked_until, part) SELECT 't', '', 'done', now() - interval '1 day', n FROM generate_series(1, 2500) n`)
	m := events()
	m.Table, m.Done.At, m.RowsMayBeDeleted = "dated", "locked_until", true
	archive := "kept"
	once := func() (int64, error) {
		p, err := NewPurge(db.Config(), m, PurgeConfig{Keep: time.Hour, Every: time.Hour, Archive: archive})
		must(t, err)
		return p.Once(t.Context())
	}
	db.Exec(`CREATE TABLE kept (LIKE dated); ALTER TABLE kept DROP error, DROP owner`)
	if _, err := once(); !outbox.IsPermanent(err) || !strings.Contains(err.Error(), `"error", "owner"`) {
		t.Errorf("an archive without columns: %v", err)
	}
	db.Exec(`ALTER TABLE kept ADD owner text, ADD error text, ADD archived_at timestamptz DEFAULT now(), ADD CONSTRAINT few CHECK (part < 2000)`)
	if n, err := once(); err == nil || n != 1000 {
		t.Errorf("%d rows were moved, and then: %v", n, err)
	}
	db.Exec(`ALTER TABLE kept DROP CONSTRAINT few; CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
		CREATE TRIGGER nothing BEFORE INSERT ON kept FOR EACH ROW WHEN (NEW.part = 2001) EXECUTE FUNCTION nothing()`)
	if _, err := once(); err == nil || !strings.Contains(err.Error(), "has taken") {
		t.Errorf("an archive that takes only some rows: %v", err)
	}
	const lost = `SELECT count(*) FROM generate_series(1, 2500) n WHERE (SELECT count(*) FROM (SELECT part, twice FROM dated UNION ALL SELECT part, twice FROM kept) a WHERE a.part = n AND a.twice = 2 * n) <> 1`
	if got := db.Value(lost); got != "0" {
		t.Errorf("%s rows are lost or double", got)
	}
	db.Exec(`DROP TRIGGER nothing ON kept`)
	if n, err := once(); err != nil || db.Value("SELECT count(*) FROM kept") != "2500" || db.Value(lost) != "0" {
		t.Errorf("%d rows were moved: %v", n, err)
	}
	if _, err := NewPurge(db.Config(), m, PurgeConfig{Keep: time.Hour, Every: time.Hour, Archive: "dated"}); err == nil ||
		!strings.Contains(err.Error(), "the table itself") {
		t.Errorf("its own archive, by its name: %v", err)
	}
	archive = "public.dated"
	if _, err := once(); err == nil || !strings.Contains(err.Error(), "own archive") {
		t.Errorf("its own archive: %v", err)
	}
}

// A relay that was away for longer than its lease marks nothing that another works on.
func TestALateRelayMarksNothingOfAnothers(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	for name, claim := range map[string]mapping.Claim{
		"by time":   {Until: "locked_until"},
		"by status": {Status: "taken", Since: "locked_until"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			m := events()
			m.Claim = claim
			open := func(name string) *leaseSession {
				s := opened(t)(Open(mapping.Lease, db.Config(), m,
					Config{Name: name, Lease: shortLease, PollIdle: 5 * time.Millisecond}))
				return acquired(t, s).(*leaseSession)
			}
			db.Exec(`INSERT INTO events (topic, key, payload) VALUES ('t', 'k', '1')`)
			late := open("late")
			old := read(t, late, 1)
			late.link.StopKeeping() // it renews nothing any more, though its connections last
			other := open("other")
			taken := read(t, other, 1)
			// It may notice that its connection is gone, or mark nothing.
			_ = late.Settle(t.Context(), relay.Settlement{Through: &old[0], Delivered: 1})
			if got := db.Value("SELECT count(*) FROM events WHERE status = 'done'"); got != "0" {
				t.Fatal("the late relay marked a row that another works on")
			}
			must(t, other.Settle(t.Context(), relay.Settlement{Through: &taken[0], Delivered: 1}))
			if got := db.Value("SELECT count(*) FROM events WHERE status = 'done'"); got != "1" {
				t.Error("the relay that works on it could not mark it")
			}
		})
	}
}

// All rows of a claim have one time, so an index on it finds each of them only by looking at all.
func TestARowIsMarkedByItsIDThoughItsClaimHasAnIndex(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Exec(`CREATE INDEX by_claim ON events (locked_until)`)
	db.Exec(`INSERT INTO events (topic, key, payload, locked_until) SELECT 't', 'k', '', now() - n * interval '1 s' FROM generate_series(1, 20000) n`)
	db.Exec(`ANALYZE events`)
	source := opened(t)(strategies()["lease"](db.Config(), Config{Name: "one"}))
	s := acquired(t, source).(*leaseSession)
	var ids []string
	var tokens []int64
	for _, d := range read(t, s, 1000) {
		ids, tokens = append(ids, fmt.Sprint(d.Position)), append(tokens, 1)
	}
	// With nothing else to choose from, a condition that can use the index does.
	conn := db.Connect()
	for _, sql := range []string{`SET enable_seqscan = off`, `ALTER TABLE events DROP CONSTRAINT events_pkey`, `DROP INDEX events_id_idx`} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	for name, sql := range map[string]string{"delivered": s.statements.Done,
		"waiting": s.statements.Waiting, "renewed": s.claims.renew, "released": s.claims.release} {
		rows, err := conn.Query(t.Context(), "EXPLAIN "+sql, arguments(name, ids, tokens)...)
		if err != nil {
			t.Fatal(name, err)
		}
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(name, err)
		}
		if text := strings.Join(plan, "\n"); strings.Contains(text, "by_claim") {
			t.Errorf("%s:\n%s", name, text)
		}
	}
}

func arguments(name string, ids []string, tokens []int64) []any {
	all := []any{ids, tokens}
	if name == "waiting" {
		n := make([]int64, len(ids))
		all = append(all, n, n, make([]bool, len(ids)), make([]string, len(ids)))
	}
	return all
}

// A status without an owner doesn't say whose a row is: docs/mapping.md warns that a relay that finds itself alone
// takes back those of the author's own program, too, and that a column of the owner prevents it.
func TestARelayAloneTakesBackRowsOfAProgramThatItCannotSee(t *testing.T) {
	t.Parallel()
	for name, owner := range map[string]string{"without an owner": "", "with an owner": "owner"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			m := events()
			m.Claim = mapping.Claim{Status: "taken", Since: "locked_until", Owner: owner}
			s := opened(t)(Open(mapping.Lease, db.Config(), m, Config{Name: "one", Lease: time.Hour, PollIdle: 5 * time.Millisecond}))
			db.Exec(`INSERT INTO events (topic, key, payload, status, locked_until, owner)
				VALUES ('t', 'theirs', 'theirs', 'taken', now(), 'their program')`)
			db.Exec(`INSERT INTO events (topic, key, payload) VALUES ('t', 'ours', 'ours')`)
			want := "theirs"
			if owner != "" {
				want = "ours"
			}
			if got := read(t, acquired(t, s), 1); string(got[0].Payload) != want {
				t.Errorf("got %q first, want %q", got[0].Payload, want)
			}
		})
	}
}

// An offset can't pass a message that waits, so a crash repeats what was settled behind it.
func TestACrashRepeatsWhatWasSettledBehindAMessageThatWaits(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"xmin", "serial"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			source := opened(t)(strategies()[name](db.Config(), Config{Name: "one", Lease: time.Minute, PollIdle: 5 * time.Millisecond}))
			db.Exec(`INSERT INTO events (topic, key, payload) SELECT 't', n::text, convert_to(n::text, 'UTF8') FROM generate_series(1, 4) n`)
			s := acquired(t, source)
			ds := read(t, s, 4)
			err := s.Settle(t.Context(), relay.Settlement{Through: &ds[3], Delivered: 3,
				Hold: []relay.Hold{{Delivery: &ds[1], RetryAt: time.Now().Add(time.Hour), Err: errors.New("not now")}}})
			must(t, err)
			o := s.(*offsetSession)
			crash(o.source, o.link, o.reading)
			for i, d := range read(t, acquired(t, source), 3) {
				if want := fmt.Sprint(i + 2); string(d.Payload) != want {
					t.Errorf("message %s came again in the place of %s", d.Payload, want)
				}
			}
		})
	}
}

// One message waits, and no more may: nothing behind it is read until it is done, and the source says so.
func TestAStrategySaysWhyItReadsNoMore(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"skiplocked", "advisory", "lease", "xmin", "serial"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			source := opened(t)(strategies()[name](db.Config(), Config{Name: "one", PollIdle: time.Millisecond, MaxHolds: 1}))
			s := acquired(t, source)
			db.Exec(`INSERT INTO events (topic, key, payload) VALUES ('t', 'a', '1')`)
			ds := read(t, s, 1)
			hold := relay.Settlement{Through: &ds[0], Hold: []relay.Hold{{Delivery: &ds[0], RetryAt: time.Now(), Err: errors.New("no")}}}
			must(t, s.Settle(t.Context(), hold))
			db.Exec(`INSERT INTO events (topic, key, payload) VALUES ('t', 'b', '2')`)
			b, err := s.Next(t.Context(), 10)
			if err != nil || len(b.Deliveries) > 0 || b.Full == nil || !strings.Contains(b.Full.Error(), "MaxHolds") {
				t.Fatalf("read %d messages beyond the bound, because of %v, %v", len(b.Deliveries), b.Full, err)
			}
			held := testdb.Held(t, s, "a", 10)
			if len(held) != 1 {
				t.Fatalf("held %+v", held)
			}
			must(t, s.Settle(t.Context(), relay.Settlement{HeldDelivered: []*relay.Delivery{&held[0]}, Delivered: 1}))
			b = relay.Batch{}
			for len(b.Deliveries) == 0 {
				if b, err = s.Next(t.Context(), 10); err != nil {
					t.Fatal(err)
				}
			}
			if string(b.Deliveries[0].Payload) != "2" || b.Full != nil {
				t.Errorf("got %q, and full because of %v", b.Deliveries[0].Payload, b.Full)
			}
		})
	}
}
