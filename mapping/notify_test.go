package mapping

import (
	"testing"
)

// A function that has the trigger's name already can be the application's, and is kept.
func TestNotifySQLReplacesNoFunction(t *testing.T) {
	t.Parallel()
	conn := tableOf(t, `CREATE TABLE orders (id int);
		CREATE FUNCTION orders_notify() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'`)
	_, err := conn.Exec(t.Context(), NotifySQL(TableName{Schema: "public", Name: "orders"}, "channel"))
	var body string
	must(t, conn.QueryRow(t.Context(), `SELECT prosrc FROM pg_proc WHERE proname = 'orders_notify'`).Scan(&body))
	if err == nil || body != "BEGIN RETURN NEW; END" {
		t.Errorf("the function is now %q, %v", body, err)
	}
}
