package polling

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/schema"
)

func TestMain(m *testing.M) { servers.Main(m) }

// database is a fresh one with the outbox in it.
type database struct {
	t   testing.TB
	url string
}

func newDatabase(t testing.TB, config ...servers.PostgresConfig) database {
	t.Helper()
	db := database{t, servers.TestDatabase(t, config...)}
	db.install()
	return db
}

func (db database) install() {
	db.t.Helper()
	conn := db.connect()
	defer hangUp(conn)
	if _, err := schema.Up(db.t.Context(), conn, schema.UpConfig{}); err != nil {
		db.t.Fatal(err)
	}
}

func (db database) config() *pgx.ConnConfig {
	db.t.Helper()
	cfg, err := pgx.ParseConfig(db.url)
	if err != nil {
		db.t.Fatal(err)
	}
	return cfg
}

func (db database) connect() *pgx.Conn {
	db.t.Helper()
	conn, err := pgx.Connect(db.t.Context(), db.url)
	if err != nil {
		db.t.Fatal(err)
	}
	db.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// exec runs statements on a connection of their own.
func (db database) exec(sql string, args ...any) {
	db.t.Helper()
	conn := db.connect()
	defer hangUp(conn)
	if _, err := conn.Exec(db.t.Context(), sql, args...); err != nil {
		db.t.Fatalf("%s: %v", sql, err)
	}
}

func (db database) value(sql string, args ...any) string {
	db.t.Helper()
	conn := db.connect()
	defer hangUp(conn)
	var v any
	if err := conn.QueryRow(db.t.Context(), sql, args...).Scan(&v); err != nil {
		db.t.Fatalf("%s: %v", sql, err)
	}
	return fmt.Sprint(v)
}

func (db database) source(destination string, cfg SnapshotConfig) *Snapshot {
	db.t.Helper()
	if cfg.PollIdle == 0 {
		cfg.PollIdle = 5 * time.Millisecond
	}
	s, err := NewSnapshot(db.config(), destination, cfg)
	if err != nil {
		db.t.Fatal(err)
	}
	return s
}

func acquire(t testing.TB, s relay.Source) relay.Session {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	session, err := s.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	closed := false
	t.Cleanup(func() {
		if !closed {
			closed = true
			_ = session.Close(context.Background())
		}
	})
	return session
}

// next waits for the next messages.
func next(t testing.TB, s relay.Session, max int) []relay.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	b, err := s.Next(ctx, max)
	if err != nil {
		t.Fatal(err)
	}
	return b.Deliveries
}

func payloads(ds []relay.Delivery) string {
	var all []string
	for _, d := range ds {
		all = append(all, string(d.Payload))
	}
	return strings.Join(all, " ")
}

func settle(t testing.TB, s relay.Session, through *relay.Delivery) {
	t.Helper()
	if err := s.Settle(t.Context(), relay.Settlement{Through: through, Delivered: 1}); err != nil {
		t.Fatal(err)
	}
}
