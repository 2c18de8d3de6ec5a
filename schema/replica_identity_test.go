package schema

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// In a publication FOR ALL TABLES, an UPDATE or DELETE of a table without a primary key fails. Tests of every verb and
// of the relays run in databases with such a publication (internal/testdb). Rows of messages are only inserted and
// truncated; a rebase, which updates them, gives them a key for that time.
func TestEveryTableWhoseRowsAreChangedHasAKey(t *testing.T) {
	onEachMajor(t, func(t *testing.T, url string) {
		conn := connect(t, url)
		install(t, conn)
		rows, err := conn.Query(t.Context(), `SELECT relname::text FROM pg_class c WHERE relnamespace = 'outbox'::regnamespace AND relkind IN ('r', 'p')
			AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary) ORDER BY 1`)
		if err != nil {
			t.Fatal(err)
		}
		keyless, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		for _, table := range keyless {
			if name := "outbox." + table; !strings.HasPrefix(name, OutboxMessages) && !strings.HasPrefix(name, InboxMessages) {
				t.Errorf("%s has no primary key", name)
			}
		}
		if len(keyless) != 2*(SegmentCount+1) {
			t.Errorf("tables without a key: %q", keyless)
		}
	})
}
