package mapping

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/servers"
)

// A function that has the trigger's name already can be the application's, and is kept.
func TestNotifySQLReplacesNoFunction(t *testing.T) {
	t.Parallel()
	conn, err := pgx.Connect(t.Context(), servers.TestDatabase(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	if _, err := conn.Exec(t.Context(), `CREATE TABLE orders (id int);
		CREATE FUNCTION orders_notify() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'`); err != nil {
		t.Fatal(err)
	}
	_, err = conn.Exec(t.Context(), NotifySQL(TableName{Schema: "public", Name: "orders"}, "channel"))
	var body string
	if err := conn.QueryRow(t.Context(), `SELECT prosrc FROM pg_proc WHERE proname = 'orders_notify'`).Scan(&body); err != nil {
		t.Fatal(err)
	}
	if err == nil || body != "BEGIN RETURN NEW; END" {
		t.Errorf("the function is now %q, %v", body, err)
	}
}
