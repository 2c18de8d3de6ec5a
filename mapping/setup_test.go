package mapping

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/schema"
)

func TestMain(m *testing.M) { servers.Main(m) }

// connected returns a connection to a database of the test's own, and what runs statements on it.
func connected(t *testing.T) (*pgx.Conn, func(sql string)) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), servers.TestDatabase(t))
	must(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn, func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

// installed is connected to a database that has the outbox.
func installed(t *testing.T) (*pgx.Conn, func(sql string)) {
	t.Helper()
	conn, exec := connected(t)
	if _, err := schema.Up(t.Context(), conn, schema.UpConfig{}); err != nil {
		t.Fatal(err)
	}
	return conn, exec
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
