package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/headers"
	"github.com/pgoutbox/outbox/internal/printed"
	"github.com/pgoutbox/outbox/schema"
)

// countLimit is up to where things are counted one by one.
const countLimit = 10_000

// Count is a number of messages: exact, or an estimate once counting would cost too much.
type Count struct {
	N         int64 `json:"n"`
	Estimated bool  `json:"estimated,omitempty"`
}

func (c Count) String() string {
	if c.Estimated {
		return "~" + printed.Number(c.N)
	}
	return printed.Number(c.N)
}

func (c Count) plus(d Count) Count { return Count{c.N + d.N, c.Estimated || d.Estimated} }

// Backlog is what one cursor has not passed yet.
type Backlog struct {
	Destination string `json:"destination"`
	ShardGroup  int    `json:"shard_group"`

	// Pending counts committed messages that are not settled: exact up to 10,000, by their ids beyond, and while a
	// relay is far in a large backlog.
	// Messages that the destination's filter leaves out don't count, as far as its relay has written the filter to the
	// database. Beyond 10,000, or beyond 1,000 if headers decide, this is an estimate from a sample, and at least 1.
	// Holds do not count.
	Pending Count `json:"pending"`

	// Oldest is when the oldest pending message was inserted; zero if there is none. Where the filter was applied to a
	// sample, it is the oldest one that the cursor has not passed, selected or not.
	Oldest time.Time `json:"oldest,omitzero"`
}

// Backlogs measures every cursor's backlog. It costs a few bounded index scans for each: callers that repeat it should
// pause in proportion to what it took.
func Backlogs(ctx context.Context, db DB) ([]Backlog, error) {
	var list []Backlog
	err := read(ctx, db, func(tx pgx.Tx) error {
		if err := preferIndexes(ctx, tx); err != nil {
			return err
		}
		cursors, err := readCursors(ctx, tx)
		if err != nil {
			return err
		}
		for _, c := range cursors {
			b, err := c.backlog(ctx, tx)
			if err != nil {
				return err
			}
			list = append(list, b)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("measure the backlog: %w", err)
	}
	return list, nil
}

// preferIndexes keeps the planner from reading whole segments, or all that an index has of a backlog:
// statistics of segments are always out of date, and everything here ends after some rows. To plan a query for all
// segments takes longer than to run it, so it is planned once for all cursors.
func preferIndexes(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL jit = off;
		SET LOCAL plan_cache_mode = force_generic_plan`)
	return err
}

// cursor is a row of outbox.cursors with what the database's clock says about it.
type cursor struct {
	Destination string
	Group       int
	Groups      int
	Epoch       int64
	Owner       string
	Live        bool
	LeaseUntil  *time.Time // nil: never leased
	Delivered   int64
	State       string
	StateSince  time.Time
	LastError   string
	LastErrorAt *time.Time
	UpdatedAt   time.Time
	Objective   int64 // microseconds
	Foreign     bool  // written in another cluster, or in a history that was undone: it means nothing here

	Prev   string     // pg_snapshot
	First  string     // the oldest open window, or prev
	LastID int64      // the last settled id in it
	LastAt *time.Time // when that message was written; nil: unknown

	Settings   string
	SettingsAt time.Time

	settings Settings
}

func readCursors(ctx context.Context, tx pgx.Tx) ([]cursor, error) {
	rows, err := tx.Query(ctx, `
		SELECT destination, shard_group, shard_groups, epoch, coalesce(owner, ''), `+schema.Leased+`,
		       nullif(lease_until, '-infinity'), delivered, state, state_since, coalesce(last_error, ''), last_error_at, updated_at, (extract(epoch FROM lag_objective) * 1000000)::bigint,
		       system_identifier <> (SELECT s.system_identifier FROM pg_control_system() s)
		       OR pg_snapshot_xmax(prev) > pg_snapshot_xmax(pg_current_snapshot()),
		       prev::text, coalesce(windows[1], prev)::text, CASE WHEN cardinality(windows) = 0 THEN 0 ELSE last_id END, last_at,
		       settings::text, settings_at
		FROM outbox.cursors ORDER BY destination, shard_group`)
	if err != nil {
		return nil, fmt.Errorf("read cursors: %w", err)
	}
	cursors, err := pgx.CollectRows(rows, pgx.RowToStructByPos[cursor])
	for i := range cursors {
		if err == nil {
			cursors[i].settings, err = parseSettings(cursors[i].Settings)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read cursors: %w", err)
	}
	return cursors, nil
}

// What is pending for a cursor: visible to this query, not in prev, and not at or before last_id in the
// oldest window. Five disjoint parts, each a range of the index (xid, id, shard); with no open window, prev
// stands for it and the first two and the fourth are empty. The first part leads over messages that were passed, so it
// ends after examined rows of the index.
//
// $1 prev, $2 the oldest window, $3 last_id in it, $4 and $5 the first and last shard. The format's values are a LIMIT
// for each part, a condition, how many rows of the index the first part examines, and more columns.
const pendingParts = `
	(SELECT xid, id, segment%[4]s FROM (SELECT xid, id, segment, shard%[4]s FROM outbox.messages -- of the window's range, not passed
	 WHERE ` + inWindow + ` %[2]s LIMIT %[3]d) m WHERE id > $3::bigint AND shard BETWEEN $4::smallint AND $5::smallint %[1]s)
	UNION ALL
	(SELECT xid, id, segment%[4]s FROM outbox.messages -- of its range, committed after it
	 WHERE xid = ANY (ARRAY(SELECT x FROM pg_snapshot_xip($2::pg_snapshot) x WHERE x >= pg_snapshot_xmax($1::pg_snapshot)))
	   AND id <= $3::bigint AND shard BETWEEN $4::smallint AND $5::smallint %[2]s %[1]s)
	UNION ALL
	(SELECT xid, id, segment%[4]s FROM outbox.messages -- begun after it
	 WHERE xid >= pg_snapshot_xmax($2::pg_snapshot) AND shard BETWEEN $4::smallint AND $5::smallint %[2]s %[1]s)
	UNION ALL
	(SELECT xid, id, segment%[4]s FROM outbox.messages -- open when prev was taken, in the window, not passed
	 WHERE xid = ANY (ARRAY(SELECT x FROM pg_snapshot_xip($1::pg_snapshot) x WHERE pg_visible_in_snapshot(x, $2::pg_snapshot)))
	   AND id > $3::bigint AND shard BETWEEN $4::smallint AND $5::smallint %[2]s %[1]s)
	UNION ALL
	(SELECT xid, id, segment%[4]s FROM outbox.messages -- open when prev was taken, and when the window was opened
	 WHERE xid = ANY (ARRAY(SELECT x FROM pg_snapshot_xip($1::pg_snapshot) x WHERE NOT pg_visible_in_snapshot(x, $2::pg_snapshot)))
	   AND shard BETWEEN $4::smallint AND $5::smallint %[2]s %[1]s)`

// examined bounds the rows of an index that the first part looks at. examinedMore is whether there are more.
const (
	examined     = 20_000
	inWindow     = `xid >= pg_snapshot_xmax($1::pg_snapshot) AND xid < pg_snapshot_xmax($2::pg_snapshot)`
	examinedMore = `EXISTS (SELECT FROM outbox.messages WHERE ` + inWindow + ` %[2]s OFFSET %[3]d)`
)

// pendingInWindow looks at the newest first: while a relay is in the middle of a window, these are not passed.
const pendingInWindow = `
	SELECT coalesce((SELECT true FROM outbox.messages WHERE ` + inWindow + ` AND id > $3::bigint
		AND shard BETWEEN $4::smallint AND $5::smallint ORDER BY xid DESC, id DESC LIMIT 1), false)`

// reading is sql over the table that the cursor's destination reads.
func (c *cursor) reading(sql string) string {
	return schema.ReadingOf(c.Destination, sql)
}

func (c *cursor) args() []any {
	first, last := schema.Shards(c.Group, c.Groups)
	return []any{c.Prev, c.First, c.LastID, first, last}
}

// backlog counts up to countLimit and estimates by ids beyond: rolled back transactions leave gaps, so
// that the estimate is rather too high. The oldest is then at least as new as the message that was settled last.
func (c *cursor) backlog(ctx context.Context, tx pgx.Tx) (Backlog, error) {
	b := Backlog{Destination: c.Destination, ShardGroup: c.Group}
	failed := func(err error) (Backlog, error) {
		return b, fmt.Errorf("count what is pending for %s: %w", c.Destination, err)
	}
	var oldest *time.Time
	var lowest, newest int64
	var more bool
	err := tx.QueryRow(ctx, c.reading(fmt.Sprintf(`
		WITH pending AS MATERIALIZED (`+pendingParts+`),
		     oldest AS (SELECT xid, id FROM pending ORDER BY id LIMIT 1)
		SELECT (SELECT count(*) FROM pending),
		       (SELECT `+moment("m.created_at")+` FROM outbox.messages m WHERE m.xid = (SELECT xid FROM oldest) AND m.id = (SELECT id FROM oldest) LIMIT 1),
		       coalesce((SELECT id FROM oldest), 0),
		       coalesce((SELECT m.id FROM outbox.messages m ORDER BY m.xid DESC, m.id DESC LIMIT 1), 0),
		       `+examinedMore, fmt.Sprintf("LIMIT %d", countLimit+1), "", examined, "")),
		c.args()...).Scan(&b.Pending.N, &oldest, &lowest, &newest, &more)
	if err != nil {
		return failed(err)
	}
	if more && b.Pending.N == 0 {
		if err := tx.QueryRow(ctx, c.reading(pendingInWindow), c.args()...).Scan(&more); err != nil {
			return failed(err)
		}
		if more {
			b.Pending.N = 1
		}
	}
	if more && c.LastID > 0 {
		lowest = c.LastID + 1
		oldest = cmp.Or(c.LastAt, oldest)
	}
	if oldest != nil {
		b.Oldest = *oldest
	}
	if b.Pending.N > countLimit || more {
		b.Pending.Estimated = true
		b.Pending.N = max(b.Pending.N, (newest-lowest+1)/int64(c.Groups))
	}
	if b.Pending.N > 0 && c.settings.filters() {
		if err := c.narrow(ctx, tx, &b); err != nil {
			return failed(err)
		}
	}
	return b, nil
}

// What a sample of a backlog has: of messages that are counted one by one, about as many as this, spread over all; of
// more, those in some pages of the table.
const (
	sampledRows  = 1000
	sampledPages = 200
)

// narrow leaves out of a backlog what the destination doesn't select. Where headers don't decide it looks at
// everything that is counted. Otherwise it looks at a sample. What a sample lacks may wait nevertheless: so the backlog
// isn't empty then, and its age is that of the oldest message, selected or not.
func (c *cursor) narrow(ctx context.Context, tx pgx.Tx, b *Backlog) error {
	seen, wanted := int64(0), int64(0)
	var oldest time.Time
	look := func(sql string, args ...any) error {
		rows, err := tx.Query(ctx, c.reading(sql), args...)
		if err != nil {
			return err
		}
		var m outbox.Message
		var text *string
		var n int64
		into := []any{&m.Topic, &m.EventType, &m.AggregateType, &m.ContentType, &text, &n, &m.CreatedAt}
		_, err = pgx.ForEachRow(rows, into, func() error {
			m.Headers = headersOf(storedJSON(text))
			seen += n
			if c.settings.wants(&m) {
				wanted += n
				oldest = earliest(oldest, m.CreatedAt)
			}
			return nil
		})
		return err
	}
	columns := readable("topic") + ", " + readable("coalesce(event_type, '')") + ", " + readable("coalesce(aggregate_type, '')") + ", " +
		readable("coalesce(content_type, '')")
	each := columns + ", NULL::text, 1::bigint, " + moment("created_at")
	if c.settings.byHeaders() {
		each = columns + ", CASE WHEN " + readable("headers::text") + " = headers::text THEN headers::text END, 1::bigint, " +
			moment("created_at")
	}
	var err error
	switch {
	case b.Pending.Estimated:
		first, last := schema.Shards(c.Group, c.Groups)
		var pages int64
		err = tx.QueryRow(ctx, `SELECT coalesce(sum(pg_relation_size(i.inhrelid)), 0) / 8192 FROM pg_inherits i WHERE i.inhparent = $1::text::regclass`,
			schema.MessagesOf(c.Destination)).Scan(&pages)
		if err == nil { // REPEATABLE: the next look has the same pages, so that its answer is the same
			share := min(100, 100*float64(sampledPages)/float64(max(pages, 1)))
			err = look(`SELECT `+each+` FROM outbox.messages TABLESAMPLE SYSTEM ($6::double precision) REPEATABLE (1)
				WHERE shard BETWEEN $4::smallint AND $5::smallint AND NOT pg_visible_in_snapshot(xid, $1::text::pg_snapshot)
				  AND NOT (id <= $3::bigint AND pg_visible_in_snapshot(xid, $2::text::pg_snapshot))`, c.Prev, c.First, c.LastID, first, last, share)
		}
	case c.settings.byHeaders():
		err = look(fmt.Sprintf(`WITH pending AS MATERIALIZED (`+pendingParts+`)
			SELECT `+each+` FROM (SELECT *, row_number() OVER (ORDER BY id) AS n, count(*) OVER () AS total FROM pending) p
			WHERE n %% greatest(total / %[5]d, 1) = 0`, fmt.Sprintf("LIMIT %d", countLimit+1), "", examined, decidingColumns+", headers", sampledRows),
			c.args()...)
	default:
		err = look(fmt.Sprintf(`WITH pending AS MATERIALIZED (`+pendingParts+`)
			SELECT `+columns+`, NULL::text, count(*), min(`+moment("created_at")+`) FROM pending GROUP BY topic, event_type, aggregate_type, content_type`,
			fmt.Sprintf("LIMIT %d", countLimit+1), "", examined, decidingColumns), c.args()...)
	}
	if err != nil || seen == 0 { // of a few messages in a large table, none may be in the sample
		return err
	}
	all := b.Pending.N
	if seen >= all {
		b.Pending.N, b.Oldest = wanted, oldest
		return nil
	}
	b.Pending = Count{max(all*wanted/seen, 1), true}
	return nil
}

// decidingColumns are those that filters decide by, besides headers, and the age.
const decidingColumns = ", topic, event_type, aggregate_type, content_type, created_at"

// headersOf reads headers as a relay does; what it can't read decides nothing here.
func headersOf(raw json.RawMessage) []outbox.Header {
	if raw == nil {
		return nil
	}
	list, _ := headers.Parse(string(raw))
	return list
}

// waitsFor returns the segments that hold messages which the cursor has not passed; and those with so many of its
// oldest window that it would take long to see that all are passed.
func (c *cursor) waitsFor(ctx context.Context, tx pgx.Tx) ([]int, error) {
	of := "AND segment = s.n"
	rows, err := tx.Query(ctx, c.reading(fmt.Sprintf(`
		SELECT s.n FROM generate_series(0, $6::integer - 1) AS s (n)
		WHERE EXISTS (SELECT FROM (`+pendingParts+`) p) OR `+examinedMore+`
		ORDER BY s.n`, "LIMIT 1", of, examined, "")), append(c.args(), schema.SegmentCount)...)
	if err != nil {
		return nil, fmt.Errorf("look for the segments that %s needs: %w", c.Destination, err)
	}
	segments, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		return nil, fmt.Errorf("look for the segments that %s needs: %w", c.Destination, err)
	}
	return segments, nil
}
