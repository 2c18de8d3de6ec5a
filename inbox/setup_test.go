package inbox

import (
	"context"
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
)

var (
	_ DB = (*pgxpool.Pool)(nil)
	_ DB = (*pgxpool.Conn)(nil)
	_ DB = (*pgx.Conn)(nil)
)

func TestMain(m *testing.M) { servers.Main(m) }

// world is a fresh database with the outbox's schema and a table of effects.
type world struct {
	t    testing.TB
	url  string
	pool *pgxpool.Pool
	db   *sql.DB
}

func setup(t testing.TB, config ...servers.PostgresConfig) *world {
	t.Helper()
	w := &world{t: t, url: testdb.Installed(t, config...).URL}
	conn := w.conn()
	if _, err := conn.Exec(t.Context(), `CREATE TABLE effects (no bigserial, message_id uuid, key text, note text);
		CREATE PUBLICATION everything FOR ALL TABLES`); err != nil {
		t.Fatal(err)
	}
	cfg, err := pgxpool.ParseConfig(w.url)
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 16
	if w.pool, err = pgxpool.NewWithConfig(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.pool.Close)
	w.db = stdlib.OpenDBFromPool(w.pool)
	t.Cleanup(func() { _ = w.db.Close() })
	return w
}

func onMajors(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	servers.OnMajors(t, func(t *testing.T, config servers.PostgresConfig) { test(t, setup(t, config)) })
}

func (w *world) conn() *pgx.Conn {
	w.t.Helper()
	conn, err := pgx.Connect(w.t.Context(), w.url)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func (w *world) exec(query string, args ...any) {
	w.t.Helper()
	if _, err := w.pool.Exec(w.t.Context(), query, args...); err != nil {
		w.t.Fatalf("%s: %v", query, err)
	}
}

func (w *world) int(query string, args ...any) (n int) {
	w.t.Helper()
	if err := w.pool.QueryRow(w.t.Context(), query, args...).Scan(&n); err != nil {
		w.t.Fatalf("%s: %v", query, err)
	}
	return n
}

// effects is how often a message has had its effect.
func (w *world) effects(msg *outbox.Message) int {
	w.t.Helper()
	return w.int(`SELECT count(*) FROM effects WHERE message_id = $1::text::uuid`, msg.ID.String())
}

func (w *world) recorded() int {
	w.t.Helper()
	return w.int(`SELECT count(*) FROM outbox.inbox`)
}

func (w *world) requireEffects(msg *outbox.Message, want int) {
	w.t.Helper()
	if n := w.effects(msg); n != want {
		w.t.Errorf("message %s has had its effect %d times, want %d", msg.ID, n, want)
	}
}

func newInbox(t testing.TB, cfg Config) *Inbox {
	t.Helper()
	b, err := New("payments", cfg)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func message(key string) *outbox.Message {
	return &outbox.Message{ID: outbox.NewID(), Topic: "orders", Key: key, Payload: []byte("{}")}
}

// effect is a handler that leaves a row.
func effect(ctx context.Context, tx pgx.Tx, msg *outbox.Message) error {
	_, err := tx.Exec(ctx, `INSERT INTO effects (message_id, key) VALUES ($1::text::uuid, $2)`, msg.ID.String(), msg.Key)
	return err
}

func effectSQL(ctx context.Context, tx *sql.Tx, msg *outbox.Message) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO effects (message_id, key) VALUES ($1::text::uuid, $2)`, msg.ID.String(), msg.Key)
	return err
}

// waiting is how many sessions of this database wait for a lock.
func (w *world) waiting() int {
	w.t.Helper()
	return w.int(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`)
}
