package retention

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/lease"
	"github.com/pgoutbox/outbox/relay/polling"
	"github.com/pgoutbox/outbox/schema"
)

func TestMain(m *testing.M) { servers.Main(m) }

// retained is a database whose segments are emptied.
type retained struct{ testdb.DB }

func setup(t *testing.T) retained { return retained{testdb.Published(t)} }

func (db retained) source(destination string, cfg polling.SnapshotConfig) *polling.Snapshot {
	db.T.Helper()
	cfg.Lease = 10 * time.Second // a busy machine may lose the default of 3 s
	s, err := polling.NewSnapshot(db.Config(), destination, cfg)
	if err != nil {
		db.T.Fatal(err)
	}
	return s
}

// look lets retention look at the segments once.
func (db retained) look() Report {
	db.T.Helper()
	r, err := New(db.Config(), Config{})
	if err != nil {
		db.T.Fatal(err)
	}
	report, err := r.Once(db.T.Context())
	if err != nil {
		db.T.Fatal(err)
	}
	return report
}

func TestASegmentIsEmptiedWhenEveryCursorHasPassedIt(t *testing.T) {
	t.Parallel()
	db := setup(t)
	past := db.PastSegment()
	table := "outbox.messages_" + past
	db.WriteTo(past, "old")
	if r := db.look(); len(r.Emptied) != 0 || len(r.Kept) != 1 || !strings.Contains(r.Kept[0].Reason, "no destination") {
		t.Errorf("without a cursor: %+v", r)
	}
	a, b := testdb.Acquire(t, db.source("a", polling.SnapshotConfig{})), testdb.Acquire(t, db.source("b", polling.SnapshotConfig{}))
	for _, s := range []relay.Session{a, b} {
		ds := testdb.Next(t, s, 10)
		if r := db.look(); len(r.Emptied) != 0 || len(r.Kept) != 1 || r.Kept[0].Destination == "" {
			t.Errorf("before all have settled: %+v", r)
		}
		testdb.Settle(t, s, &ds[0])
	}
	if r := db.look(); len(r.Emptied) != 1 || r.Emptied[0] != table || len(r.Kept) != 0 {
		t.Errorf("after all have settled: %+v", r)
	}
	if n := db.Value("SELECT count(*) FROM outbox.messages"); n != "0" {
		t.Errorf("%s messages left", n)
	}
}

func TestASegmentIsKeptWhileAReplayReadsIt(t *testing.T) {
	t.Parallel()
	db := setup(t)
	past := db.PastSegment()
	db.WriteTo(past, "old")
	s := testdb.Acquire(t, db.source("a", polling.SnapshotConfig{}))
	ds := testdb.Next(t, s, 10)
	testdb.Settle(t, s, &ds[0])
	db.Exec(`INSERT INTO outbox.jobs (verb, blocked, destination, target, selection, actor, state, total) VALUES ('replay', false, 'a', 'a', '{}', 'anna', 'running', 1)`)
	db.Exec(`INSERT INTO outbox.job_pages (job, page, first, last, upto) SELECT 1, id / 500, xid::text::bigint, xid::text::bigint, 1 FROM outbox.messages`)
	if r := db.look(); len(r.Emptied) != 0 || len(r.Kept) != 1 || !strings.Contains(r.Kept[0].Reason, "outbox jobs stop 1") {
		t.Errorf("while it runs: %+v", r)
	}
	for _, change := range []string{`last_id = 499`, `last_id = -1, state = 'stopped'`} {
		db.Exec(`UPDATE outbox.jobs SET ` + change)
		if r := db.look(); len(r.Emptied) != 1 || len(r.Kept) != 0 {
			t.Errorf("%s: %+v", change, r)
		}
		db.Exec(`INSERT INTO outbox.messages (xid, topic, segment) SELECT first::text::xid8, 't', $1::text::smallint FROM outbox.job_pages`, past)
	}
}

func TestASettingThatQuotesAllNamesEmptiesNothing(t *testing.T) {
	t.Parallel()
	db := setup(t)
	db.Exec(`ALTER DATABASE ` + db.Config().Database + ` SET quote_all_identifiers = on`)
	past := db.PastSegment()
	db.WriteTo(past, "replayed")
	s := testdb.Acquire(t, db.source("a", polling.SnapshotConfig{}))
	ds := testdb.Next(t, s, 10)
	testdb.Settle(t, s, &ds[0])
	db.Exec(`INSERT INTO outbox.cursors (destination, shard_group, shard_groups, system_identifier)
		SELECT 'inbox:billing', 0, 1, system_identifier FROM pg_control_system()`)
	db.Exec(`INSERT INTO outbox.inbox_messages (topic, headers, segment) VALUES ('t', '{"inbox-consumer": "billing"}', $1::text::smallint)`, past)
	db.Exec(`INSERT INTO outbox.jobs (verb, blocked, destination, target, selection, actor, state, total) VALUES ('replay', false, 'a', 'a', '{}', 'anna', 'running', 1)`)
	db.Exec(`INSERT INTO outbox.job_pages (job, page, first, last, upto) SELECT 1, id / 500, xid::text::bigint, xid::text::bigint, 1 FROM outbox.messages`)
	r := db.look()
	if len(r.Emptied) != 0 || len(r.Kept) != 2 || !strings.Contains(r.Kept[0].Reason, "outbox jobs stop 1") ||
		r.Kept[1].Destination != "inbox:billing" {
		t.Errorf("got %+v", r)
	}
}

func TestTheCurrentSegmentIsLeftAlone(t *testing.T) {
	t.Parallel()
	db := setup(t)
	db.Exec(`INSERT INTO outbox.messages (topic) VALUES ('t')`)
	s := testdb.Acquire(t, db.source("a", polling.SnapshotConfig{}))
	ds := testdb.Next(t, s, 10)
	testdb.Settle(t, s, &ds[0])
	if r := db.look(); len(r.Emptied)+len(r.Kept) != 0 {
		t.Errorf("got %+v", r)
	}
}

func TestALateWriterKeepsItsMessage(t *testing.T) {
	t.Parallel()
	db := setup(t)
	past := db.PastSegment()
	db.WriteTo(past, "a")
	s := testdb.Acquire(t, db.source("d", polling.SnapshotConfig{}))
	late, err := db.Connect().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := late.Exec(t.Context(), `INSERT INTO outbox.messages (topic, payload, segment) VALUES ('t', 'late', $1::text::smallint)`, past); err != nil {
		t.Fatal(err)
	}
	ds := testdb.Next(t, s, 10)
	testdb.Settle(t, s, &ds[0])
	if r := db.look(); len(r.Emptied) != 0 || len(r.Kept) != 1 || !strings.Contains(r.Kept[0].Reason, "locked") {
		t.Fatalf("with a writer at work: %+v", r)
	}
	if err := late.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := db.look(); len(r.Emptied) != 0 || len(r.Kept) != 1 || r.Kept[0].Destination != "d" {
		t.Fatalf("with its message unread: %+v", r)
	}
	if ds = testdb.Next(t, s, 10); testdb.Payloads(ds) != "late" {
		t.Fatalf("got %q", testdb.Payloads(ds))
	}
	testdb.Settle(t, s, &ds[0])
	if r := db.look(); len(r.Emptied) != 1 {
		t.Errorf("after it was settled: %+v", r)
	}
}

// Retention that waits for a writer's lock has everybody else wait behind it, and what the writer commits
// meanwhile would be emptied unseen.
func TestRetentionDoesNotWaitForAWriter(t *testing.T) {
	t.Parallel()
	db := setup(t)
	past := db.PastSegment()
	late, err := db.Connect().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := late.Exec(t.Context(), `INSERT INTO outbox.messages (topic, payload, segment) VALUES ('t', 'late', $1::text::smallint)`, past); err != nil {
		t.Fatal(err)
	}
	testdb.Acquire(t, db.source("d", polling.SnapshotConfig{}))
	retention, err := New(db.Config(), Config{})
	if err != nil {
		t.Fatal(err)
	}
	conn := db.Connect()
	ended := make(chan error, 1)
	go func() {
		_, err := retention.truncate(t.Context(), conn, "outbox.messages_"+past)
		ended <- err
	}()
	for waits := false; !waits; {
		select {
		case err := <-ended:
			var refused *pgconn.PgError
			if !errors.As(err, &refused) || refused.Code != lockNotAvailable {
				t.Errorf("with a writer at work: %v", err)
			}
			if err := late.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			return
		default:
			row := late.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND NOT granted)", conn.PgConn().PID())
			if err := row.Scan(&waits); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := late.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Errorf("it waited for the writer, and then ended with %v", <-ended)
}

// The first look is without a lock, and what it found may have changed.
func TestASegmentIsLookedAtAgainUnderTheLock(t *testing.T) {
	t.Parallel()
	db := setup(t)
	past := db.PastSegment()
	s := testdb.Acquire(t, db.source("d", polling.SnapshotConfig{}))
	db.WriteTo(past, "a")
	retention, err := New(db.Config(), Config{})
	if err != nil {
		t.Fatal(err)
	}
	kept, err := retention.truncate(t.Context(), db.Connect(), "outbox.messages_"+past)
	if err != nil {
		t.Fatal(err)
	}
	if kept == nil || kept.Destination != "d" {
		t.Fatalf("a segment with an unread message was emptied: %+v", kept)
	}
	if ds := testdb.Next(t, s, 10); testdb.Payloads(ds) != "a" {
		t.Errorf("got %q", testdb.Payloads(ds))
	}
}

func TestACursorOfAnotherClusterKeepsEverything(t *testing.T) {
	t.Parallel()
	db := setup(t)
	db.WriteTo(db.PastSegment(), "a")
	db.Exec(`INSERT INTO outbox.cursors (destination, shard_group, shard_groups, prev, system_identifier) VALUES ('d', 0, 1, '900000:900000:', 1)`)
	if r := db.look(); len(r.Emptied) != 0 || len(r.Kept) != 1 || !strings.Contains(r.Kept[0].Reason, "outbox rebase --destination d") {
		t.Errorf("got %+v", r)
	}
}

// Segments turn while writers, among them slow ones, and readers are at work: nothing is lost.
func TestNothingIsLostWhileSegmentsAreEmptied(t *testing.T) {
	t.Parallel()
	db := setup(t)
	const writers, each = 6, 1500
	var wg sync.WaitGroup
	for range writers {
		conn := db.Connect()
		wg.Go(func() {
			for i := 0; i < each; i += 3 {
				err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
					for range 3 {
						if _, err := tx.Exec(t.Context(), `INSERT INTO outbox.messages (topic, segment)
							VALUES ('t', (floor(date_part('epoch', now()) * 10)::bigint % 8)::smallint)`); err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	var mu sync.Mutex
	emptied := 0
	retention, err := New(db.Config(), Config{Interval: 5 * time.Millisecond, Observe: func(r Report) {
		mu.Lock()
		defer mu.Unlock()
		emptied += len(r.Emptied)
		if r.Err != nil {
			t.Errorf("retention: %v", r.Err)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = retention.Run(ctx) })
	defer running.Wait()
	defer stop()

	s := testdb.Acquire(t, db.source("d", polling.SnapshotConfig{PollIdle: time.Millisecond}))
	waiting := await.Context(t)
	for n := 0; n < writers*each; {
		b, err := s.Next(waiting, 500)
		if err != nil {
			t.Fatalf("after %d of %d messages: %v", n, writers*each, err)
		}
		n += len(b.Deliveries)
		testdb.Settle(t, s, &b.Deliveries[len(b.Deliveries)-1])
	}
	wg.Wait()
	mu.Lock()
	defer mu.Unlock()
	if emptied == 0 {
		t.Error("no segment was emptied meanwhile")
	}
	t.Logf("%d segments emptied", emptied)
}

func TestTheTrashAndTheListsOfJobsAreEmptiedInTheirTime(t *testing.T) {
	t.Parallel()
	db := setup(t)
	db.Exec(`INSERT INTO outbox.trash (destination, lane, id, message_id, topic, shard, created_at, attempts, reason, error,
			deaths, fingerprint, dead_at, job, trashed_at)
		SELECT 'd', 'k', n, gen_random_uuid(), 't', 0, now(), 1, 'refused', 'x', 1, '', now(), 1,
			now() - n * interval '15 hours' FROM generate_series(0, 2) n`)
	db.Exec(`INSERT INTO outbox.jobs (verb, blocked, selection, state, actor, planned_at, ended_at)
		SELECT 'discard', false, '{}', state, 'anna', now() - age, CASE WHEN state = 'done' THEN now() - age END
		FROM (VALUES
			('planned', interval '50 minutes'), ('planned', '70 minutes'), ('done', '20 hours'), ('done', '30 hours'), ('done', '31 days'), ('running', '31 days')) j (state, age)`)
	db.Exec(`INSERT INTO outbox.job_messages SELECT id, 1, 'd', 'k', 1, gen_random_uuid(), now() FROM outbox.jobs`)
	db.look()
	for what, want := range map[string]string{
		`SELECT string_agg(id::text, ' ' ORDER BY id) FROM outbox.trash`:          "0 1",
		`SELECT string_agg(id::text, ' ' ORDER BY id) FROM outbox.jobs`:           "1 3 4 6",
		`SELECT string_agg(job::text, ' ' ORDER BY job) FROM outbox.job_messages`: "1 3 6",
	} {
		if got := db.Value(what); got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
}

// However rows are hidden: what the server has counted and nobody sees stays.
func TestASegmentWhoseRowsAreOutOfSightIsKept(t *testing.T) {
	t.Parallel()
	db := setup(t)
	// Autovacuum would see the deleted rows, and make the count right.
	db.Exec(`DO $$ DECLARE segment regclass; BEGIN
		FOR segment IN SELECT inhrelid FROM pg_inherits WHERE inhparent = 'outbox.messages'::regclass LOOP
			EXECUTE format('ALTER TABLE %s SET (autovacuum_enabled = off)', segment);
		END LOOP; END $$`)
	db.FillPast(5000)
	// A session reports what it has inserted some time after its commit, and adds it to what ANALYZE has counted.
	db.Await(`SELECT sum(n_live_tup) = 5000 FROM pg_stat_user_tables WHERE schemaname = 'outbox' AND relname LIKE 'messages%'`)
	// Rows that go uncounted are to the server's count as rows that are hidden.
	conn := db.Connect()
	if _, err := conn.Exec(t.Context(), "DROP PUBLICATION everything; SET track_counts = off; DELETE FROM outbox.messages"); err != nil {
		t.Fatal(err)
	}
	s := testdb.Acquire(t, db.source("d", polling.SnapshotConfig{}))
	_ = s.Close(t.Context()) // its cursor has nothing before it
	report := db.look()
	if len(report.Emptied) != 0 || len(report.Kept) != 1 || !report.Kept[0].Hidden ||
		!strings.Contains(report.Kept[0].Reason, "has counted ") || !strings.Contains(report.Kept[0].Reason, "run: ANALYZE ") {
		t.Errorf("%+v, want the segment kept with the count", report)
	}
	db.Exec("ANALYZE outbox.messages")
	await.Until(t, "the segment emptied once the count is right", func() bool { return len(db.look().Emptied) == 1 })
}

func TestASegmentOfRolledBackMessagesIsEmptied(t *testing.T) {
	t.Parallel()
	db := setup(t)
	tx, err := db.Connect().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `INSERT INTO outbox.messages (topic, payload, segment)
		SELECT 't', 'x', (date_part('epoch', now())::bigint / 600 + 4) % 8 FROM generate_series(1, 5000)`); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	_ = testdb.Acquire(t, db.source("d", polling.SnapshotConfig{})).Close(t.Context())
	if report := db.look(); len(report.Emptied) != 1 {
		t.Errorf("%+v", report)
	}
}

func TestToLookForHiddenRowsReadsAFewBlocks(t *testing.T) {
	t.Parallel()
	db := setup(t)
	db.FillPast(20_000)
	conn, err := lease.Connect(t.Context(), db.Config(), "retention")
	if err != nil {
		t.Fatal(err)
	}
	defer dial.HangUp(conn)
	var table string
	if err := conn.QueryRow(t.Context(), segmentsSQL, schema.SegmentSeconds, schema.SegmentCount).Scan(&table); err != nil {
		t.Fatal(err)
	}
	sql := strings.ReplaceAll(fmt.Sprintf(sightSQL, table), "$1", "'"+table+"'")
	rows, err := conn.Query(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, COSTS off, TIMING off, SUMMARY off) "+sql)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(plan, "\n"); !strings.Contains(text, "Tid Range Scan") || strings.Contains(text, "Seq Scan") {
		t.Errorf("the whole segment is read:\n%s", text)
	}
}
