package holds

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/lease"
)

func TestMain(m *testing.M) { servers.Main(m) }

// However many holds wait for a topic, for their time, or for the relay of another shard group, the list of what is due
// reads none of them.
func TestWhatIsDueIsFoundWithoutReadingWhatWaits(t *testing.T) {
	t.Parallel()
	db := testdb.Published(t)
	const hold = `INSERT INTO outbox.holds (destination, lane, id, message_id, topic, key, shard, created_at, retry_at) `
	db.Exec(hold + `SELECT 'd', 'k' || i, -i, gen_random_uuid(), CASE WHEN i % 2 = 0 THEN 'closed' WHEN i % 4 = 1 THEN 'paused' ELSE 'later' END,
		'k' || i, 40, now(), now() + CASE WHEN i % 4 = 3 THEN 1 ELSE -1 END * interval '1 hour' FROM generate_series(1, 20000) i`)
	db.Exec(hold + `SELECT 'd', 'other' || i, -i, gen_random_uuid(), 't', 'other' || i, i % 32, now(),
		now() - interval '2 hours' + i * 7919 % 20000 * interval '1 millisecond' FROM generate_series(1, 20000) i`)
	db.Exec(hold + `SELECT 'd', 'due' || i, -i, gen_random_uuid(), 't', 'due' || i, 40, now(), now() - interval '1 hour' FROM generate_series(1, 3) i`)
	conn, err := lease.Connect(t.Context(), db.Config(), "one")
	if err != nil {
		t.Fatal(err)
	}
	defer dial.HangUp(conn)
	q := relay.DueQuery{Limit: 1000, Closed: []relay.Route{{Topic: "closed"}}, Paused: []relay.Pause{{Topic: "paused"}}}
	list, err := Due(t.Context(), conn, "d", 1, 2, &q)
	if err != nil || len(list) != 4 {
		t.Fatalf("%d lanes, want three that are due and one that will be: %v", len(list), err)
	}
	args := []any{"d", q.Limit, 32, 63}
	args = append(append(append(args, routeColumns(q.Probes)...), routeColumns(q.Closed)...), pauseColumns(q.Paused)...)
	rows, err := conn.Query(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT json) "+dueSQL, args...)
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
