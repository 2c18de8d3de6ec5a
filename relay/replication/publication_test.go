package replication

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
)

// segments is a statement for each segment.
func segments(statement string) string {
	return "DO $$ BEGIN FOR i IN 0..7 LOOP EXECUTE format('" + statement + "', i); END LOOP; END $$"
}

// detached leaves alone the segments that are written to during a test.
func detached(statement string) string {
	return "DO $$ DECLARE i integer := (date_part('epoch', now())::bigint / 600 + 4) % 8; " +
		"BEGIN EXECUTE format('" + statement + "', i); END $$"
}

// gaps are times during which inserts into outbox.messages, or some of them, are not in what the server sends.
var gaps = map[string]struct{ from, to string }{
	"recreated":         {"DROP PUBLICATION outbox", publicationSQL("outbox")},
	"renamed":           {"ALTER PUBLICATION outbox RENAME TO other", "ALTER PUBLICATION other RENAME TO outbox"},
	"no inserts":        {setPublication + "(publish = 'update')", setPublication + "(publish = 'insert')"},
	"still no inserts":  {setPublication + "(publish = 'update')", ""},
	"as segments":       {setPublication + "(publish_via_partition_root = false)", setPublication + "(publish_via_partition_root)"},
	"without the table": {"ALTER PUBLICATION outbox DROP TABLE outbox.messages", "ALTER PUBLICATION outbox ADD TABLE outbox.messages"},
	"filtered":          {setPublication + "TABLE outbox.messages WHERE (topic <> 't')", setPublication + "TABLE outbox.messages"},
	"still filtered":    {setPublication + "TABLE outbox.messages WHERE (topic <> 't')", ""},
	"unlogged":          {segments("ALTER TABLE outbox.messages_%s SET UNLOGGED"), segments("ALTER TABLE outbox.messages_%s SET LOGGED")},
	"still unlogged":    {segments("ALTER TABLE outbox.messages_%s SET UNLOGGED"), ""},
	"a detached segment": {detached("ALTER TABLE outbox.messages DETACH PARTITION outbox.messages_%1$s"),
		detached("INSERT INTO outbox.messages_%1$s (topic, key, payload, segment) VALUES (''t'', ''k'', ''hidden'', %1$s); " +
			"ALTER TABLE outbox.messages ATTACH PARTITION outbox.messages_%1$s FOR VALUES IN (%1$s)")},
}

const setPublication = "ALTER PUBLICATION outbox SET "

func TestNothingIsLostThatThePublicationDidNotSend(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	for _, major := range []string{"14", "18"} {
		for name, gap := range gaps {
			if major == "14" && strings.Contains(name, "filtered") {
				continue // since 15
			}
			for _, running := range []bool{true, false} {
				state := map[bool]string{true: "running", false: "stopped"}[running]
				t.Run("PostgreSQL "+major+"/"+name+"/"+state, func(t *testing.T) {
					t.Parallel()
					db := newDatabase(t, servers.PostgresConfig{Major: major})
					source, _ := db.source("d", Config{Heartbeat: 50 * time.Millisecond})
					s := acquire(t, source)
					streaming(t, s)
					db.insert("1")
					ds := read(t, s, 1)
					testdb.Settle(t, s, &ds[0])
					stop := func() {
						if err := s.Close(t.Context()); err != nil {
							t.Fatal(err)
						}
					}
					if !running {
						stop()
					}
					db.Exec(gap.from)
					db.insert("2", "3")
					if running && gap.to == "" {
						goesOn(t, s) // nothing but the look at the publication tells it
					}
					if gap.to != "" {
						db.Exec(gap.to)
					}
					db.insert("4")
					if !running {
						if s = acquire(t, source); s.isStreaming() {
							t.Fatal("the log is read on")
						}
					}
					want := "2 3 4"
					if strings.Contains(name, "detached") {
						want = "2 3 hidden 4"
					}
					deliveredBy(t, source, s, want, name != "a detached segment")
					cause := db.Value("SELECT lost_reason FROM outbox.slots")
					if !strings.Contains(cause, "publication") {
						t.Errorf("the state says %q", cause)
					}
				})
			}
		}
	}
}

// goesOn reads until the session has ended, and settles what comes.
func goesOn(t *testing.T, s *session) {
	t.Helper()
	ctx := await.Context(t)
	for {
		b, err := s.Next(ctx, 100)
		if ctx.Err() != nil {
			t.Fatal("it goes on as if everything were sent")
		}
		if err != nil {
			return
		}
		if n := len(b.Deliveries); n > 0 {
			_ = s.Settle(ctx, relay.Settlement{Through: &b.Deliveries[n-1]})
		}
	}
}

// deliveredBy reads and settles until a sequence of texts has come from one session, and acquires again when a session
// ends. If ordered, the last of them must not come without the others.
func deliveredBy(t *testing.T, source *Source, s *session, want string, ordered bool) {
	t.Helper()
	ctx := await.Context(t)
	var got []string
	for !strings.Contains(strings.Join(got, " "), want) {
		b, err := s.Next(ctx, 100)
		if errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("read %q, want %q", got, want)
		}
		if err != nil {
			_ = s.Close(t.Context()) // it has lost its place
			s = acquire(t, source)
			got = nil
			continue
		}
		got = append(got, texts(b.Deliveries)...)
		if all := strings.Join(got, " "); ordered && strings.HasSuffix(all, want[len(want)-1:]) && !strings.Contains(all, want) {
			t.Fatalf("read %q, want %q", got, want)
		}
		if n := len(b.Deliveries); n > 0 {
			_ = s.Settle(t.Context(), relay.Settlement{Through: &b.Deliveries[n-1]}) // it may have lost its place
		}
	}
}

// A transaction that changes the publication decides what is sent as soon as its commit is in the log. It may become
// visible later, so no snapshot that was taken meanwhile may become the cursor.
func TestNoPositionIsStoredWhileThePublicationIsBeingChanged(t *testing.T) {
	t.Parallel()
	for _, sql := range []string{
		"ALTER PUBLICATION outbox SET (publish = 'update')",
		"ALTER PUBLICATION outbox SET TABLE outbox.messages WHERE (topic <> 't')",
	} {
		t.Run(sql, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			source, _ := db.source("d", Config{})
			s := acquire(t, source)
			streaming(t, s)
			tx, err := db.Connect().Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
			if err := s.store(t.Context(), nil); !errors.Is(err, errPublicationChanged) {
				t.Errorf("got %v, want %v", err, errPublicationChanged)
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// Retention, maintenance and changes of the table, and other tables of the publication, hide no insert. If the table
// were read because of them, messages that were emitted without a row would be lost.
func TestWhatHidesNoInsertIsNoReasonToReadTheTable(t *testing.T) {
	t.Parallel()
	for _, major := range []string{"14", "15", "16", "17", "18"} {
		t.Run("PostgreSQL "+major, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t, servers.PostgresConfig{Major: major})
			source, _ := db.source("d", Config{})
			s := acquire(t, source)
			streaming(t, s)
			for _, sql := range []string{
				segments("TRUNCATE outbox.messages_%s"), "ANALYZE outbox.messages", "REINDEX TABLE outbox.messages_1",
				"VACUUM FULL outbox.messages_1", "VACUUM FREEZE pg_publication, pg_publication_rel, pg_inherits, pg_class",
				"CLUSTER outbox.messages_2 USING messages_2_xid_id_shard_idx", "GRANT SELECT ON outbox.messages TO PUBLIC",
				"CREATE INDEX ON outbox.messages (topic)", "ALTER TABLE outbox.messages ADD COLUMN extra text DEFAULT 'x'",
				"CREATE TABLE other (id bigint PRIMARY KEY)", "ALTER PUBLICATION outbox ADD TABLE other",
				"ALTER PUBLICATION outbox SET TABLE outbox.messages", "VACUUM FULL pg_publication, pg_publication_rel",
			} {
				db.Exec(sql)
			}
			db.insert("1")
			ds := read(t, s, 1)
			testdb.Settle(t, s, &ds[0])
			if err := s.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			if s = acquire(t, source); !s.isStreaming() {
				t.Errorf("the table is read: %s", db.Value("SELECT lost_reason FROM outbox.slots"))
			}
		})
	}
}

func TestAPublicationThatIsChangedUnderLoadLosesNothing(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	db := newDatabase(t)
	l := newLedger()
	w := startLoad(db, l, 4)
	c := consume(t, db, l, Config{})
	await.Until(t, "the log is read", db.streams)
	for range rounds(t, 2) {
		for _, name := range []string{"recreated", "no inserts", "filtered", "unlogged"} {
			l.flows(t, 30)
			before := db.Value("SELECT coalesce(lost_at::text, '') FROM outbox.slots")
			db.Exec(gaps[name].from)
			db.Exec(gaps[name].to)
			await.Until(t, "it is noticed", func() bool {
				return db.try("SELECT coalesce(lost_at::text, '') <> $1 FROM outbox.slots", before)
			})
			await.Until(t, "the log is read again", db.streams)
		}
	}
	ended(t, db, w, c)
}
