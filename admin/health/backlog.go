package health

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/schema"
)

// Backlog describes the messages that one cursor has not passed yet.
type Backlog struct {
	Destination string `json:"destination"`
	ShardGroup  int    `json:"shard_group"`

	// Pending counts committed messages that are not settled: exact up to 10,000, by their ids beyond, and while a
	// relay is far in a large backlog.
	// Messages that the destination's filter leaves out don't count, as far as its relay has written the filter to the
	// database. Beyond 10,000, or beyond 1,000 if headers decide, this is an estimate from a sample, and at least 1.
	// Holds do not count.
	Pending admin.Count `json:"pending"`

	// Oldest is when the oldest pending message was inserted; zero if there is none. Where the filter was applied to a
	// sample, it is the oldest one that the cursor has not passed, selected or not.
	Oldest time.Time `json:"oldest,omitzero"`
}

// Backlogs measures every cursor's backlog. It costs a few bounded index scans for each: callers that repeat it should
// pause in proportion to what it took.
func Backlogs(ctx context.Context, db admin.DB) ([]Backlog, error) {
	var list []Backlog
	err := admin.Read(ctx, db, func(tx pgx.Tx) error {
		if err := admin.PreferIndexes(ctx, tx); err != nil {
			return err
		}
		cursors, err := admin.ReadCursors(ctx, tx)
		if err != nil {
			return err
		}
		for _, c := range cursors {
			b, err := ReadBacklog(ctx, tx, &c)
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

// examinedRows bounds the rows of an index that the first part looks at. examinedMore is whether there are more.
const (
	examinedRows = 20_000
	inWindow     = `xid >= pg_snapshot_xmax($1::pg_snapshot) AND xid < pg_snapshot_xmax($2::pg_snapshot)`
	examinedMore = `EXISTS (SELECT FROM outbox.messages WHERE ` + inWindow + ` %[2]s OFFSET %[3]d)`
)

// pendingInWindow looks at the newest first: while a relay is in the middle of a window, these are not passed.
const pendingInWindow = `
	SELECT coalesce((SELECT true FROM outbox.messages WHERE ` + inWindow + ` AND id > $3::bigint
		AND shard BETWEEN $4::smallint AND $5::smallint ORDER BY xid DESC, id DESC LIMIT 1), false)`

// ReadBacklog counts up to admin.CountLimit and estimates by ids beyond: rolled back transactions leave gaps, so
// that the estimate is rather too high. The oldest is then at least as new as the message that was settled last.
func ReadBacklog(ctx context.Context, tx pgx.Tx, c *admin.Cursor) (Backlog, error) {
	b := Backlog{Destination: c.Destination, ShardGroup: c.Group}
	failed := func(err error) (Backlog, error) {
		return b, fmt.Errorf("count what is pending for %s: %w", c.Destination, err)
	}
	var oldest *time.Time
	var lowest, newest int64
	var more bool
	err := tx.QueryRow(ctx, c.WithTable(fmt.Sprintf(`
		WITH pending AS MATERIALIZED (`+pendingParts+`),
		     oldest AS (SELECT xid, id FROM pending ORDER BY id LIMIT 1)
		SELECT (SELECT count(*) FROM pending),
		       (SELECT `+admin.JSONTime("m.created_at")+` FROM outbox.messages m WHERE m.xid = (SELECT xid FROM oldest) AND m.id = (SELECT id FROM oldest) LIMIT 1),
		       coalesce((SELECT id FROM oldest), 0),
		       coalesce((SELECT m.id FROM outbox.messages m ORDER BY m.xid DESC, m.id DESC LIMIT 1), 0),
		       `+examinedMore, fmt.Sprintf("LIMIT %d", admin.CountLimit+1), "", examinedRows, "")),
		c.Args()...).Scan(&b.Pending.N, &oldest, &lowest, &newest, &more)
	if err != nil {
		return failed(err)
	}
	if more && b.Pending.N == 0 {
		if err := tx.QueryRow(ctx, c.WithTable(pendingInWindow), c.Args()...).Scan(&more); err != nil {
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
	if b.Pending.N > admin.CountLimit || more {
		b.Pending.Estimated = true
		b.Pending.N = max(b.Pending.N, (newest-lowest+1)/int64(c.Groups))
	}
	if b.Pending.N > 0 && c.Settings.Filters() {
		if err := countSelected(ctx, tx, c, &b); err != nil {
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

// countSelected leaves out of a backlog what the destination doesn't select. Unless headers decide it, all counted
// messages are looked at. Otherwise a sample is. Since messages that the sample lacks may wait nevertheless, the
// backlog isn't empty then, and its age is that of the oldest message, selected or not.
func countSelected(ctx context.Context, tx pgx.Tx, c *admin.Cursor, b *Backlog) error {
	seen, wanted := int64(0), int64(0)
	var oldest time.Time
	look := func(sql string, args ...any) error {
		rows, err := tx.Query(ctx, c.WithTable(sql), args...)
		if err != nil {
			return err
		}
		var m outbox.Message
		var text *string
		var n int64
		into := []any{&m.Topic, &m.EventType, &m.AggregateType, &m.ContentType, &text, &n, &m.CreatedAt}
		_, err = pgx.ForEachRow(rows, into, func() error {
			m.Headers = admin.HeadersOf(admin.StoredJSON(text))
			seen += n
			if c.Settings.Wants(&m) {
				wanted += n
				oldest = earliest(oldest, m.CreatedAt)
			}
			return nil
		})
		return err
	}
	columns := admin.Readable("topic") + ", " + admin.Readable("coalesce(event_type, '')") + ", " +
		admin.Readable("coalesce(aggregate_type, '')") + ", " +
		admin.Readable("coalesce(content_type, '')")
	each := columns + ", NULL::text, 1::bigint, " + admin.JSONTime("created_at")
	if c.Settings.ByHeaders() {
		each = columns + ", CASE WHEN " + admin.Readable("headers::text") + " = headers::text THEN headers::text END, 1::bigint, " +
			admin.JSONTime("created_at")
	}
	var err error
	switch {
	case b.Pending.Estimated:
		first, last := schema.Shards(c.Group, c.Groups)
		var pages int64
		err = tx.QueryRow(ctx, `SELECT coalesce(sum(pg_relation_size(i.inhrelid)), 0) / 8192 FROM pg_inherits i WHERE i.inhparent = $1::text::regclass`,
			schema.TableOf(c.Destination)).Scan(&pages)
		if err == nil { // REPEATABLE: the next look has the same pages, so that its answer is the same
			share := min(100, 100*float64(sampledPages)/float64(max(pages, 1)))
			err = look(`SELECT `+each+` FROM outbox.messages TABLESAMPLE SYSTEM ($6::double precision) REPEATABLE (1)
				WHERE shard BETWEEN $4::smallint AND $5::smallint AND NOT pg_visible_in_snapshot(xid, $1::text::pg_snapshot)
				  AND NOT (id <= $3::bigint AND pg_visible_in_snapshot(xid, $2::text::pg_snapshot))`, c.Prev, c.First, c.LastID, first, last, share)
		}
	case c.Settings.ByHeaders():
		err = look(fmt.Sprintf(`WITH pending AS MATERIALIZED (`+pendingParts+`)
			SELECT `+each+` FROM (SELECT *, row_number() OVER (ORDER BY id) AS n, count(*) OVER () AS total FROM pending) p
			WHERE n %% greatest(total / %[5]d, 1) = 0`, fmt.Sprintf("LIMIT %d", admin.CountLimit+1), "", examinedRows, decidingColumns+", headers", sampledRows),
			c.Args()...)
	default:
		err = look(fmt.Sprintf(`WITH pending AS MATERIALIZED (`+pendingParts+`)
			SELECT `+columns+`, NULL::text, count(*), min(`+admin.JSONTime("created_at")+`) FROM pending GROUP BY topic, event_type, aggregate_type, content_type`,
			fmt.Sprintf("LIMIT %d", admin.CountLimit+1), "", examinedRows, decidingColumns), c.Args()...)
	}
	if err != nil || seen == 0 { // of a few messages in a large table, none may be in the sample
		return err
	}
	all := b.Pending.N
	if seen >= all {
		b.Pending.N, b.Oldest = wanted, oldest
		return nil
	}
	b.Pending = admin.Count{N: max(all*wanted/seen, 1), Estimated: true}
	return nil
}

// decidingColumns are those that filters decide by, besides headers, and the age.
const decidingColumns = ", topic, event_type, aggregate_type, content_type, created_at"

// waitsFor returns the segments that hold messages which the cursor has not passed. If its oldest window has so many
// messages in a segment that a proof would take long, it returns that segment too.
func waitsFor(ctx context.Context, tx pgx.Tx, c *admin.Cursor) ([]int, error) {
	of := "AND segment = s.n"
	rows, err := tx.Query(ctx, c.WithTable(fmt.Sprintf(`
		SELECT s.n FROM generate_series(0, $6::integer - 1) AS s (n)
		WHERE EXISTS (SELECT FROM (`+pendingParts+`) p) OR `+examinedMore+`
		ORDER BY s.n`, "LIMIT 1", of, examinedRows, "")), append(c.Args(), schema.SegmentCount)...)
	if err != nil {
		return nil, fmt.Errorf("look for the segments that %s needs: %w", c.Destination, err)
	}
	segments, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		return nil, fmt.Errorf("look for the segments that %s needs: %w", c.Destination, err)
	}
	return segments, nil
}

// readWaiting counts the messages that the first destination will begin with.
func (r *Report) readWaiting(ctx context.Context, tx pgx.Tx) error {
	if slices.ContainsFunc(r.Destinations, func(d Destination) bool { return !strings.HasPrefix(d.Name, schema.InboxPrefix) }) {
		return nil
	}
	const beginning = "1:1:" // as the table of cursors has it
	c := admin.Cursor{Destination: "a destination", Groups: 1, Prev: beginning, First: beginning}
	b, err := ReadBacklog(ctx, tx, &c)
	r.Waiting, r.WaitingSince = b.Pending, b.Oldest
	return err
}
