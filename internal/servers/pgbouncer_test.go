package servers

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestPgBouncerPoolsTransactionsAndComesBackAfterAKill(t *testing.T) {
	b := OwnPgBouncer(t, PgBouncerConfig{Server: TestPostgres(t).Addr()})
	ask := func() error {
		conn, err := pgx.Connect(t.Context(), b.URL("postgres"))
		if err != nil {
			return err
		}
		defer conn.Close(context.Background())
		var n int
		return conn.QueryRow(t.Context(), "SELECT $1::int", 7).Scan(&n)
	}
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	if err := b.Kill9(); err != nil {
		t.Fatal(err)
	}
	if err := ask(); err == nil {
		t.Error("a pooler that was killed answers")
	}
	if err := b.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := ask(); err != nil {
		t.Error(err)
	}
}
