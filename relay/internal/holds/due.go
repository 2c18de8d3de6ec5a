package holds

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/schema"
)

// Which lanes have holds, and which of them are due.

// heldRowsSQL reads holds along the primary key. The first row of each lane is its head.
const heldRowsSQL = heldHeadSQL + `
WHERE h.destination = $1 AND h.lane > $2 ORDER BY h.lane, h.id, h.message_id LIMIT $3`

const heldHeadSQL = `SELECT h.lane, h.id, h.message_id::text, h.shard,
	coalesce(nullif(h.key, ''), nullif(h.aggregate_id, '')) IS NOT NULL, h.retry_at IS NULL FROM outbox.holds h`

// heldLanesSQL walks from lane to lane: one step per lane, however many holds are behind each head. A step costs as
// much as four rows of heldRowsSQL.
const heldLanesSQL = `
WITH RECURSIVE heads AS (
	(SELECT h.lane, 1 AS n FROM outbox.holds h WHERE h.destination = $1 AND h.lane > $2 ORDER BY h.lane LIMIT 1)
	UNION ALL
	SELECT h.lane, heads.n + 1 FROM heads, LATERAL (
		SELECT h.lane FROM outbox.holds h WHERE h.destination = $1 AND h.lane > heads.lane ORDER BY h.lane LIMIT 1) h
	WHERE heads.n < $3
)
SELECT h.* FROM heads, LATERAL (` + heldHeadSQL + `
	WHERE h.destination = $1 AND h.lane = heads.lane ORDER BY h.id, h.message_id LIMIT 1) h ORDER BY heads.n`

// headsDueSQL gives heads the time that they lack, which the index of holds that are due needs. A relay that has
// delivered a head loads the next one by its lane; if the relay crashes before, nobody else has named a time. What
// others have locked, they care for.
const headsDueSQL = `
UPDATE outbox.holds h SET retry_at = clock_timestamp() FROM (
	SELECT h.lane, h.id, h.message_id FROM outbox.holds h
	JOIN unnest($2::text[], $3::bigint[], $4::text[]::uuid[]) o (lane, id, message_id) ON ` + sameHoldSQL + `
	WHERE h.retry_at IS NULL ORDER BY h.id, h.message_id FOR UPDATE OF h SKIP LOCKED) o
WHERE ` + sameHoldSQL

// Walk goes over all lanes with holds, page by page. The page's size adapts to what the server takes for it: the
// connection renews the lease and settles too, and both wait for it.
type Walk struct {
	size  int  // of the next page, in rows or lanes
	steps bool // the next page goes from lane to lane
}

const (
	firstPage    = 1000
	smallestPage = 10
	fastPage     = 50 * time.Millisecond
	slowPage     = 200 * time.Millisecond
)

// Page reads one page after the lane after, by one statement, and lists those of its lanes that belong to the shard
// group and have a key. next is its last lane, or empty at the end of all. A page has rows, or as many lanes if the
// lanes before had many rows each.
func (w *Walk) Page(ctx context.Context, conn *pgx.Conn,
	destination string, group, groups int, after string, limit int) (lanes []string, next string, err error) {
	began := time.Now()
	limit = min(limit, cmp.Or(w.size, firstPage))
	sql := heldRowsSQL
	if w.steps {
		sql = heldLanesSQL
	}
	rows, err := conn.Query(ctx, sql, destination, after, limit)
	if err != nil {
		return nil, "", fmt.Errorf("list held lanes: %w", err)
	}
	first, last := schema.Shards(group, groups)
	var late outcomeColumns
	var lane, message string
	var id int64
	var shard, heads int
	var keyed, untimed bool
	next = after
	read, err := pgx.ForEachRow(rows, []any{&lane, &id, &message, &shard, &keyed, &untimed}, func() error {
		if lane == next {
			return nil
		}
		heads++
		if next = lane; keyed && shard >= first && shard <= last {
			lanes = append(lanes, lane)
		}
		if untimed {
			late.lanes, late.ids, late.messages = append(late.lanes, lane), append(late.ids, id), append(late.messages, message)
		}
		return nil
	})
	if err != nil {
		return nil, "", fmt.Errorf("list held lanes: %w", err)
	}
	if len(late.ids) > 0 {
		if _, err := conn.Exec(ctx, headsDueSQL, destination, late.lanes, late.ids, late.messages); err != nil {
			return nil, "", fmt.Errorf("name the times of held lanes: %w", err)
		}
	}
	if read.RowsAffected() < int64(limit) {
		next = ""
	}
	w.adapt(limit, heads, time.Since(began))
	return lanes, next, nil
}

// adapt chooses the next page, after one that had so many heads.
func (w *Walk) adapt(size, heads int, took time.Duration) {
	switch {
	case took > slowPage:
		w.size = max(size/2, smallestPage)
	case took < fastPage:
		w.size = max(w.size, 2*size)
	}
	w.steps = !w.steps && heads < size/4
}

// dueSQL goes from route to route along the index holds_due. So it takes no longer for what waits for a closed or
// paused topic, and it reads what is due and the first that isn't. A hold that has a time and is not the first of its
// lane waits for the first.
var dueSQL = `
WITH RECURSIVE routes AS (
	(SELECT ` + schema.RouteSQL("h") + ` AS route, h.topic FROM outbox.holds h
	WHERE h.destination = $1 AND h.retry_at < 'infinity' ORDER BY 1 LIMIT 1)
	UNION ALL
	SELECT n.route, n.topic FROM routes, LATERAL (
		SELECT ` + schema.RouteSQL("h") + ` AS route, h.topic FROM outbox.holds h
		WHERE h.destination = $1 AND h.retry_at < 'infinity' AND ` + schema.RouteSQL("h") + ` > routes.route ORDER BY 1 LIMIT 1
	) n
), wanted AS (
	SELECT route, route IN (SELECT ` + schema.RouteSQL("p") + ` FROM unnest($5::text[], $6::text[], $7::text[]) p (topic, aggregate_type, event_type)) AS probe
	FROM routes
	WHERE route NOT IN (SELECT ` + schema.RouteSQL("c") + ` FROM unnest($8::text[], $9::text[], $10::text[]) c (topic, aggregate_type, event_type))
	AND topic NOT IN (SELECT * FROM unnest($11::text[]))
)
SELECT h.lane, h.shard::integer, ` + routeTexts + `,
	CASE WHEN isfinite(h.retry_at) THEN (extract(epoch FROM h.retry_at - clock_timestamp()) * 1000000)::bigint ELSE 0 END
FROM wanted, LATERAL (
	(SELECT * FROM outbox.holds h
	WHERE ` + headSQL + ` AND h.retry_at <= CASE WHEN wanted.probe THEN 'infinity' ELSE statement_timestamp() END
	ORDER BY h.retry_at LIMIT CASE WHEN wanted.probe THEN 1 ELSE $2::integer END)
	UNION ALL
	(SELECT * FROM outbox.holds h
	WHERE NOT wanted.probe AND ` + headSQL + ` AND h.retry_at > statement_timestamp()
	ORDER BY h.retry_at LIMIT 1)
) h
ORDER BY wanted.probe DESC, h.retry_at LIMIT $2::integer + cardinality($5::text[])`

const routeTexts = "h.topic, coalesce(h.aggregate_type, ''), coalesce(h.event_type, '')"

// bareDueSQL and headRouteSQL are for texts without a UTF-8 form, which the server can't send: the lanes first, and
// then the route of each. A head whose route can't be read belongs to none, and is loaded as an invalid message.
var bareDueSQL = strings.Replace(dueSQL, routeTexts, "'', '', ''", 1)

const headRouteSQL = `SELECT ` + routeTexts + ` FROM outbox.holds h
WHERE h.destination = $1 AND h.lane = $2 ORDER BY h.id, h.message_id LIMIT 1`

var headSQL = `h.destination = $1 AND h.retry_at < 'infinity' AND ` + schema.RouteSQL("h") + ` = wanted.route
	AND h.shard BETWEEN $3::smallint AND $4::smallint
	AND h.lane NOT IN (SELECT * FROM unnest($12::text[]))
	AND (h.topic, h.lane) NOT IN (SELECT * FROM unnest($13::text[], $14::text[]))
	AND NOT EXISTS (SELECT FROM outbox.holds e
		WHERE e.destination = h.destination AND e.lane = h.lane AND (e.id, e.message_id) < (h.id, h.message_id))`

func Due(ctx context.Context, conn *pgx.Conn, destination string, group, groups int, q *relay.DueQuery) ([]relay.HeldLane, error) {
	now := time.Now()
	first, last := schema.Shards(group, groups)
	args := []any{destination, q.Limit, first, last}
	args = append(args, routeColumns(q.Probes)...)
	args = append(args, routeColumns(q.Closed)...)
	args = append(args, pauseColumns(q.Paused)...)
	list := func(sql string) ([]relay.HeldLane, error) {
		rows, err := conn.Query(ctx, sql, args...)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, func(row pgx.CollectableRow) (l relay.HeldLane, err error) {
			var wait int64
			err = row.Scan(&l.Lane, &l.Shard, &l.Route.Topic, &l.Route.AggregateType, &l.Route.EventType, &wait)
			l.Due = due(now, &wait)
			return l, err
		})
	}
	lanes, err := list(dueSQL)
	if schema.IsDataError(err) {
		lanes, err = list(bareDueSQL)
		for i := 0; i < len(lanes) && err == nil; i++ {
			r := &lanes[i].Route
			err = conn.QueryRow(ctx, headRouteSQL, destination, lanes[i].Lane).Scan(&r.Topic, &r.AggregateType, &r.EventType)
			if schema.IsDataError(err) || errors.Is(err, pgx.ErrNoRows) {
				err = nil
			}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("list lanes that are due: %w", err)
	}
	return lanes, nil
}

func routeColumns(routes []relay.Route) []any {
	topics, aggregates, events := make([]string, 0, len(routes)), make([]string, 0, len(routes)), make([]string, 0, len(routes))
	for _, r := range routes {
		topics, aggregates, events = append(topics, r.Topic), append(aggregates, r.AggregateType), append(events, r.EventType)
	}
	return []any{topics, aggregates, events}
}

// pauseColumns are the topics that are paused, the lanes, and, in two columns, the lanes of topics.
func pauseColumns(pauses []relay.Pause) []any {
	topics, lanes, both, bothLanes := []string{}, []string{}, []string{}, []string{}
	for _, p := range pauses {
		switch {
		case p.Lane == "":
			topics = append(topics, p.Topic)
		case p.Topic == "":
			lanes = append(lanes, p.Lane)
		default:
			both, bothLanes = append(both, p.Topic), append(bothLanes, p.Lane)
		}
	}
	return []any{topics, lanes, both, bothLanes}
}
