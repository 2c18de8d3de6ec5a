package polling

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/schema"
)

func TestARelayOfAShardGroupLooksAtNoOtherGroupsRows(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Exec(`INSERT INTO outbox.messages (topic, key, payload) SELECT 't', 'key ' || i, 'x' FROM generate_series(1, 2000) i`)
	db.Exec(`ANALYZE outbox.messages`)
	const group, groups = 2, 4
	first, last := schema.Shards(group, groups)
	mine := db.Value(`SELECT count(*) FROM outbox.messages WHERE shard BETWEEN $1 AND $2`, first, last)
	conn := testdb.Acquire(t, db.source("d", SnapshotConfig{Group: group, Groups: groups})).(*snapshotSession).reader.conn

	// The statements as they are prepared, so with the plans that sessions have.
	const window = `'%[1]s', '%[2]s', %[3]d, %[4]d, 0, 9999999, pg_current_snapshot(), 5000`
	for statement, args := range map[string]string{
		"outbox_stretch": fmt.Sprintf(window, "1", "99999999", first, last),
		"outbox_page":    fmt.Sprintf(window, "{1}", "{99999999}", first, last),
	} {
		rows, err := conn.Query(t.Context(), "EXPLAIN (ANALYZE, COSTS off, TIMING off, SUMMARY off) EXECUTE "+
			statement+"("+args+")", pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		plan := strings.Join(lines, "\n")
		if !strings.Contains(lines[0], "rows="+mine) {
			t.Errorf("%s reads not the %s rows of its group:\n%s", statement, mine, plan)
		}
		if strings.Contains(plan, "Removed by Filter") || strings.Contains(plan, "Seq Scan") || strings.Contains(plan, "Sort") {
			t.Errorf("%s looks at rows that it doesn't return, or sorts them:\n%s", statement, plan)
		}
	}
}
