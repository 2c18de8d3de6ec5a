package inbox

import (
	"context"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/servers"
)

// scans are the sequential and index scans of the inbox's tables by statements of tx; not of the rotation,
// which has one row.
func scans(t *testing.T, tx pgx.Tx) (sequential, index int) {
	t.Helper()
	err := tx.QueryRow(t.Context(), `SELECT coalesce(sum(seq_scan), 0), coalesce(sum(idx_scan), 0) FROM pg_stat_xact_user_tables
		WHERE schemaname = 'outbox' AND relname LIKE 'inbox%' AND relname <> 'inbox_rotation'`).Scan(&sequential, &index)
	if err != nil {
		t.Fatal(err)
	}
	return sequential, index
}

// The cost of a message must not grow with the number of records. Plans are made once in a session and used
// for long, so they are looked at for tables that the planner takes for tiny, where reading all of one would
// be cheapest, and for tables with 100,000,000 records.
func TestRecordsAreFoundByTheIndexHoweverManyThereAre(t *testing.T) {
	t.Parallel()
	for _, major := range []string{"14", "18"} {
		for name, statistics := range map[string]string{
			"tiny": `UPDATE pg_class SET relpages = 1, reltuples = 3, relallvisible = 1 WHERE relnamespace = 'outbox'::regnamespace AND relname ~ '^inbox'`,
			// The planner takes the rows per page from here, and the pages from the file: see swell.
			"100,000,000": `UPDATE pg_class SET relpages = 1, reltuples = 800 WHERE relnamespace = 'outbox'::regnamespace AND relname ~ '^inbox_[012]$'`,
		} {
			t.Run("PostgreSQL "+major+", "+name, func(t *testing.T) {
				t.Parallel()
				w := setup(t, servers.PostgresConfig{Major: major})
				conn := w.conn()
				if _, err := conn.Exec(t.Context(), `INSERT INTO outbox.inbox_positions (consumer, topic, key) VALUES ('c', 't', 'k'); INSERT INTO outbox.inbox_0 (consumer, id) VALUES ('c', gen_random_uuid()); ANALYZE outbox.inbox_0, outbox.inbox_2, outbox.inbox_positions`); err != nil {
					t.Fatal(err)
				}
				if _, err := conn.Exec(t.Context(), statistics); err != nil {
					t.Fatal(err)
				}
				inboxes := []*Inbox{newInbox(t, Config{Gaps: GapReport})}
				if name != "tiny" {
					// Asked directly, the planner reads a page rather than an index; but what it plans so is
					// looked into only when it has been closed, and grows no more.
					inboxes = append(inboxes, newInbox(t, Config{}))
					w.swell("outbox.inbox_0")
					w.swell("outbox.inbox_2")
				}
				tx, err := conn.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = tx.Rollback(t.Context()) }()
				const messages = 12 // more than a session plans anew
				for n := range int64(messages) {
					msg := numbered("k", n+1)
					for _, b := range inboxes {
						for _, want := range []Outcome{Applied, Duplicate} {
							if result, err := b.HandleTx(t.Context(), tx, msg, effect); err != nil || result.Outcome != want {
								t.Fatalf("%+v, %v", result, err)
							}
						}
						msg = message("k")
					}
				}
				if sequential, index := scans(t, tx); sequential != 0 || index < 4*messages {
					t.Errorf("%d sequential scans and %d by an index", sequential, index)
				}
			})
		}
	}
}

// swell makes the file of a table a gigabyte long, of which the disk has nothing: 131,071 pages that the planner
// takes for full ones.
func (w *world) swell(table string) {
	w.t.Helper()
	var path string
	err := w.pool.QueryRow(w.t.Context(), `SELECT current_setting('data_directory') || '/' || pg_relation_filepath($1::text::regclass)`, table).Scan(&path)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := os.Truncate(path, 131_071*8192); err != nil {
		w.t.Skipf("the server isn't one of ours, so its tables can't be made to look large: %v", err)
	}
	if n := w.int(`SELECT pg_relation_size($1::text::regclass) / 8192`, table); n != 131_071 {
		w.t.Fatalf("%s has %d pages", table, n)
	}
}

// What grew 200,000 records after the session had planned costs as many index lookups as what was empty.
func TestASessionKeepsItsPaceWhileTheTableGrows(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	w := setup(t)
	conn, b := w.conn(), newInbox(t, Config{})
	handle := func() {
		t.Helper()
		if _, err := b.Handle(t.Context(), conn, message("k"), func(_ context.Context, tx pgx.Tx, _ *outbox.Message) error {
			if sequential, _ := scans(t, tx); sequential != 0 {
				t.Errorf("%d sequential scans", sequential)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	for range 12 {
		handle()
	}
	w.exec(`INSERT INTO outbox.inbox_0 (consumer, id) SELECT 'payments', gen_random_uuid() FROM generate_series(1, 200000)`)
	handle()
	var size int
	if err := conn.QueryRow(t.Context(), `SELECT pg_relation_size('outbox.inbox_0') / 200000`).Scan(&size); err != nil || size > 90 {
		t.Errorf("a record takes %d bytes, want at most 90: %v", size, err)
	}
}
