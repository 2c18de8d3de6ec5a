package polling

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
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

// However many holds wait for a topic, for their time, or for the relay of another shard group, the list of what is due
// reads none of them.
func TestWhatIsDueIsFoundWithoutReadingWhatWaits(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	const hold = `INSERT INTO outbox.holds (destination, lane, id, message_id, topic, key, shard, created_at, retry_at) `
	db.Exec(hold + `SELECT 'd', 'k' || i, -i, gen_random_uuid(), CASE WHEN i % 2 = 0 THEN 'closed' WHEN i % 4 = 1 THEN 'paused' ELSE 'later' END,
		'k' || i, 40, now(), now() + CASE WHEN i % 4 = 3 THEN 1 ELSE -1 END * interval '1 hour' FROM generate_series(1, 20000) i`)
	db.Exec(hold + `SELECT 'd', 'other' || i, -i, gen_random_uuid(), 't', 'other' || i, i % 32, now(),
		now() - interval '2 hours' + i * 7919 % 20000 * interval '1 millisecond' FROM generate_series(1, 20000) i`)
	db.Exec(hold + `SELECT 'd', 'due' || i, -i, gen_random_uuid(), 't', 'due' || i, 40, now(), now() - interval '1 hour' FROM generate_series(1, 3) i`)
	s := testdb.Acquire(t, db.source("d", SnapshotConfig{Group: 1, Groups: 2})).(*snapshotSession)
	q := relay.DueQuery{Limit: 1000, Closed: []relay.Route{{Topic: "closed"}}, Paused: []relay.Pause{{Topic: "paused"}}}
	list, err := s.Due(t.Context(), q)
	if err != nil || len(list) != 4 {
		t.Fatalf("%d lanes, want three that are due and one that will be: %v", len(list), err)
	}
	args := []any{"d", q.Limit, 32, 63}
	args = append(append(append(args, routeColumns(q.Probes)...), routeColumns(q.Closed)...), pauseColumns(q.Paused)...)
	rows, err := s.lease.link.conn.Query(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT json) "+dueSQL, args...)
	if err != nil {
		t.Fatal(err)
	}
	plans, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[[]struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}])
	if err != nil {
		t.Fatal(err)
	}
	if n := plans[0].Plan.Hit + plans[0].Plan.Read; n > 300 {
		t.Errorf("it reads %d blocks", n)
	}
}
