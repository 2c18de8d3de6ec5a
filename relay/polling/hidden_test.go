package polling

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
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/retention"
	"github.com/pgoutbox/outbox/schema"
)

// asRelay returns the config of a role with the rights that are printed for a relay.
func (db database) asRelay() *pgx.ConnConfig {
	db.T.Helper()
	name := fmt.Sprintf("relay_of_%s", db.Config().Database)
	db.Exec("CREATE ROLE " + name + " LOGIN")
	db.T.Cleanup(func() {
		conn, err := pgx.ConnectConfig(context.Background(), db.Config())
		if err != nil {
			db.T.Fatal(err)
		}
		defer dial.HangUp(conn)
		if _, err := conn.Exec(context.Background(), "DROP OWNED BY "+name+"; DROP ROLE "+name); err != nil {
			db.T.Error(err)
		}
	})
	db.Exec(schema.Grants("", name, ""))
	cfg := db.Config()
	cfg.User = name
	return cfg
}

// fill commits messages into a segment that isn't written to now.
// A script that hardens a database may enable row-level security on every table.
func TestRowLevelSecurityIsAnErrorAndNothingIsLost(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	segment := "format('outbox.messages_%s', (date_part('epoch', now())::bigint / 600 + 4) % 8)"
	for name, on := range map[string]string{
		"the table": "'outbox.messages'",
		"a segment": segment,
		"table and segments": "'outbox.messages'::regclass UNION ALL SELECT inhrelid::regclass FROM pg_inherits WHERE " +
			"inhparent = 'outbox.messages'::regclass",
		"the cursors":      "'outbox.cursors'",
		"the holds":        "'outbox.holds'",
		"the dead letters": "'outbox.dead_letters'",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			cfg := db.asRelay()
			each := func(statement string) {
				db.Exec(`DO $$ DECLARE name text; BEGIN FOR name IN SELECT ` +
					on + ` LOOP EXECUTE format('` + statement + `', name); END LOOP; END $$`)
			}
			source := func() *Snapshot {
				s, err := NewSnapshot(cfg, "d", SnapshotConfig{PollIdle: 5 * time.Millisecond})
				if err != nil {
					t.Fatal(err)
				}
				return s
			}
			look := func() (retention.Report, error) {
				r, err := retention.New(cfg, retention.Config{})
				if err != nil {
					t.Fatal(err)
				}
				return r.Once(t.Context())
			}
			// A relay is working when it happens.
			working := testdb.Acquire(t, source())
			const messages = 100
			each("ALTER TABLE %s ENABLE ROW LEVEL SECURITY")
			db.FillPast(messages)
			var err error
			for err == nil && !strings.HasPrefix(name, "a segment") && !strings.Contains(name, "holds") && !strings.Contains(name, "dead") {
				_, err = working.Next(t.Context(), 10)
			}
			_ = working.Close(t.Context())

			if _, err := source().Acquire(t.Context()); !errors.Is(err, schema.ErrHidden) || !outbox.IsPermanent(err) ||
				!strings.Contains(err.Error(), "DISABLE ROW LEVEL SECURITY") {
				t.Errorf("acquire: %v, want ErrHidden for good and the command", err)
			}
			if report, err := look(); len(report.Emptied) > 0 || err != nil && !errors.Is(err, schema.ErrHidden) {
				t.Errorf("retention: %+v, %v", report, err)
			}
			if n := db.Value("SELECT count(*) FROM outbox.messages"); n != fmt.Sprint(messages) {
				t.Fatalf("%s of %d messages are left", n, messages)
			}

			each("ALTER TABLE %s DISABLE ROW LEVEL SECURITY")
			s := testdb.Acquire(t, source())
			got := 0
			for got < messages {
				batch, err := s.Next(t.Context(), messages)
				if err != nil {
					t.Fatal(err)
				}
				got += len(batch.Deliveries)
				if n := len(batch.Deliveries); n > 0 {
					if err := s.Settle(t.Context(), relay.Settlement{Through: &batch.Deliveries[n-1]}); err != nil {
						t.Fatal(err)
					}
				}
			}
		})
	}
}

// The tables' owner is exempt from policies unless they are forced.
func TestForcedRowLevelSecurityIsAnErrorForTheOwnerToo(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	cfg := db.asRelay()
	db.Exec("ALTER TABLE outbox.messages OWNER TO " + cfg.User + "; ALTER TABLE outbox.messages ENABLE ROW LEVEL SECURITY")
	s, err := NewSnapshot(cfg, "d", SnapshotConfig{})
	if err != nil {
		t.Fatal(err)
	}
	_ = testdb.Acquire(t, s).Close(t.Context())
	db.Exec("ALTER TABLE outbox.messages FORCE ROW LEVEL SECURITY")
	if _, err := s.Acquire(t.Context()); !errors.Is(err, schema.ErrHidden) {
		t.Errorf("%v, want ErrHidden", err)
	}
	db.Exec("ALTER ROLE " + cfg.User + " BYPASSRLS")
	_ = testdb.Acquire(t, s).Close(t.Context())
}

// A detached segment is out of sight, whatever is in it: the cursor must not pass it.
func TestADetachedSegmentIsNoticedAndLosesNothing(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	db := newDatabase(t)
	segment := db.Value("SELECT (date_part('epoch', now())::bigint / 600 + 4) % 8")
	attach := "ALTER TABLE outbox.messages ATTACH PARTITION outbox.messages_" + segment + " FOR VALUES IN (" + segment + ")"
	detach := "ALTER TABLE outbox.messages DETACH PARTITION outbox.messages_" + segment
	end := func(s relay.Session) (got int, err error) {
		ctx := await.Context(t)
		for err == nil {
			var batch relay.Batch
			batch, err = s.Next(ctx, 100)
			if n := len(batch.Deliveries); err == nil && n > 0 {
				if err = s.Settle(ctx, relay.Settlement{Through: &batch.Deliveries[n-1]}); err == nil {
					got += n
				}
			}
		}
		_ = s.Close(t.Context())
		return got, err
	}

	// While it runs, with messages that it has not read.
	running := db.source("d", SnapshotConfig{Lease: 5 * time.Second})
	s := testdb.Acquire(t, running)
	conn := db.Connect()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "INSERT INTO outbox.messages (topic, payload, segment) SELECT 't', 'x', "+
		segment+" FROM generate_series(1, 10); "+detach); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	db.Exec("SELECT outbox.publish('t', 'x'::bytea)")
	if got, err := end(s); !errors.Is(err, relay.ErrLeaseLost) {
		t.Errorf("a session of which a segment was detached: %d messages, %v; want ErrLeaseLost", got, err)
	}
	for when, s := range map[string]relay.Source{"again": running, "at the start": db.source("d", SnapshotConfig{})} {
		_, err := s.Acquire(t.Context())
		if !errors.Is(err, schema.ErrSegments) || !outbox.IsPermanent(err) || !strings.Contains(err.Error(), "run: "+attach) {
			t.Errorf("acquire %s: %v, want ErrSegments and the command", when, err)
		}
	}

	db.Exec(attach)
	s = testdb.Acquire(t, running)
	// For a moment only: what was read meanwhile is read again.
	db.Exec(detach)
	db.Exec(attach)
	if got, err := end(s); !errors.Is(err, relay.ErrLeaseLost) || got > 0 {
		t.Errorf("a session of which a segment was away for a moment: %d messages settled, %v; want ErrLeaseLost", got, err)
	}
	s = testdb.Acquire(t, db.source("d", SnapshotConfig{}))
	got := 0
	for got < 11 {
		batch, err := s.Next(t.Context(), 100)
		if err != nil {
			t.Fatal(err)
		}
		got += len(batch.Deliveries)
	}
}

func TestAPartitionThatIsNoSegmentIsRefused(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"of another value": "CREATE TABLE outbox.other PARTITION OF outbox.messages FOR VALUES IN (8)",
		"default":          "CREATE TABLE outbox.other PARTITION OF outbox.messages DEFAULT",
		"of the inbox":     "CREATE TABLE outbox.other PARTITION OF outbox.inbox_messages DEFAULT",
		"a segment twice": "ALTER TABLE outbox.messages DETACH PARTITION outbox.messages_3; " +
			"ALTER TABLE outbox.messages_3 RENAME TO other; " +
			"CREATE TABLE outbox.messages_3 (LIKE outbox.other INCLUDING ALL); ALTER TABLE outbox.messages ATTACH " +
			"PARTITION outbox.other FOR VALUES IN (3)",
		"a rule":          "CREATE RULE nothing AS ON UPDATE TO outbox.cursors DO INSTEAD NOTHING",
		"a view of holds": "ALTER TABLE outbox.holds RENAME TO other; CREATE VIEW outbox.holds AS SELECT * FROM outbox.other",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.Exec(sql)
			if _, err := db.source("d", SnapshotConfig{}).Acquire(t.Context()); !errors.Is(err, schema.ErrSegments) ||
				!outbox.IsPermanent(err) {
				t.Errorf("%v, want ErrSegments for good", err)
			}
		})
	}
}

// The database's clock went back while the owner of the lease died.
func TestALeaseOfTheFutureIsNoLease(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	_ = testdb.Acquire(t, db.source("d", SnapshotConfig{})).Close(t.Context())
	db.Exec("UPDATE outbox.cursors SET owner = 'dead', lease = '3s', lease_until = clock_timestamp() + interval '1 hour'")
	_ = testdb.Acquire(t, db.source("d", SnapshotConfig{})).Close(t.Context())

	// One that is long is long.
	db.Exec("UPDATE outbox.cursors SET owner = 'alive', lease = '1 hour', lease_until = clock_timestamp() + interval '1 hour'")
	ctx, cancel := context.WithTimeout(t.Context(), await.Expiry(500*time.Millisecond))
	defer cancel()
	if _, err := db.source("d", SnapshotConfig{}).Acquire(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the lease of a live relay: %v, want to wait for it", err)
	}
}
