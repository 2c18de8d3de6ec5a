package schema

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgoutbox/outbox/internal/servers"
)

var (
	_ DB      = (*pgx.Conn)(nil)
	_ DB      = (*pgxpool.Pool)(nil)
	_ Querier = (*pgx.Conn)(nil)
	_ Querier = (*pgxpool.Pool)(nil)
	_ Querier = pgx.Tx(nil)
)

func TestMain(m *testing.M) { servers.Main(m) }

const majorSQL = `SELECT current_setting('server_version_num')::int / 10000`

// onEachMajor runs test with a fresh database of every PostgreSQL that the outbox supports.
func onEachMajor(t *testing.T, test func(t *testing.T, url string)) {
	t.Helper()
	for _, version := range servers.PostgresVersions() {
		major, _, _ := strings.Cut(version, ".")
		t.Run("PostgreSQL "+major, func(t *testing.T) {
			t.Parallel()
			test(t, servers.TestDatabase(t, servers.PostgresConfig{Major: major}))
		})
	}
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func exec(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func install(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	if _, err := Up(t.Context(), conn, UpConfig{}); err != nil {
		t.Fatal(err)
	}
}
