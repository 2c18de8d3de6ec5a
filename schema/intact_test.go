package schema

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/servers"
)

func TestEveryIndexOfTheMigrationsIsMissed(t *testing.T) {
	t.Parallel()
	conn := connect(t, servers.TestDatabase(t))
	install(t, conn)
	missing := func() []string {
		t.Helper()
		list, err := Unindexed(t.Context(), conn)
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	if list := missing(); len(list) > 0 {
		t.Fatalf("just installed, and it misses %q", list)
	}
	rows, err := conn.Query(t.Context(), `SELECT i.indexrelid::regclass::text FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
		WHERE c.relnamespace = 'outbox'::regnamespace AND NOT c.relispartition AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = c.oid)`)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	for i, name := range names {
		exec(t, conn, "DROP INDEX "+name)
		if list := missing(); len(list) != i+1 {
			t.Errorf("%s is dropped, and missing are %q", name, list)
		}
	}
	for _, sql := range missing() {
		exec(t, conn, sql)
	}
	exec(t, conn, `UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'outbox.controls_target'::regclass`)
	list := missing()
	if len(list) != 1 {
		t.Fatalf("an index isn't valid, and missing are %q", list)
	}
	exec(t, conn, list[0])
	if list := missing(); len(list) > 0 {
		t.Errorf("all are made again, and missing are %q", list)
	}
}
