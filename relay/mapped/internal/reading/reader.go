// Package reading polls a table for waiting rows: what it may take of them, in which order, and from where on.
package reading

import (
	"context"
	"fmt"
	"math"
	"sort"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/mapped/internal/existing"
	"github.com/pgoutbox/outbox/schema"
)

// Reader polls a table's waiting rows without changing them. One goroutine at a time.
type Reader struct {
	Conn    *pgx.Conn
	table   *existing.Table
	horizon Horizon
	look    string // empty: the order says nothing about uncommitted rows
	scan    string // $1 from, $2 ids to leave out, $3 limit
	scanAll string // the same, without a bound

	// Claims means that the scans are those of claimSQL, and have $4: lanes to leave out.
	Claims bool
	drawn  int64   // what the sequence had drawn at the last look
	crowd  []int64 // lanes that the next scan leaves out
	hidden int64   // the first hidden row that the last scan saw
	News   bool    // it had not been seen before, so polling again soon is worth it

	Page PageSize
	free *existing.FreeLists
}

// NewReader uses the statements that scan returns for a beginning.
func NewReader(conn *pgx.Conn, t *existing.Table, scan func(t *existing.Table, from string) string,
	page PageSize, free *existing.FreeLists) *Reader {
	r := &Reader{Conn: conn, table: t, free: free, horizon: NewHorizon(t), Page: page}
	if t.Along == existing.AlongSequence {
		r.look = LookSQL(t, true)
	}
	r.scan, r.scanAll = scan(t, t.FromSQL()), scan(t, existing.FromStart)
	return r
}

// Poll returns the next waiting rows in order, at most limit. own are the processes that hold our locks. leave lists
// the ids of rows behind a bound that are already known. before, if not empty, runs first in the same round trip.
func (r *Reader) Poll(ctx context.Context, limit int, own []uint32,
	leave func(from int64) []string, before string) (ds []relay.Delivery, rows []existing.Row, err error) {
	ds, rows, err = r.PollFor(ctx, limit, own, leave, before, false)
	if !schema.IsDataError(err) {
		return ds, rows, err
	}
	if before != "" {
		if _, err := r.Conn.Exec(ctx, "ROLLBACK"); err != nil {
			return nil, nil, fmt.Errorf("poll: %w", err)
		}
	}
	if ds, rows, err = r.PollFor(ctx, limit, own, leave, before, true); err == nil {
		err = r.table.Fill(ctx, r.Conn, ds, rows, false)
	}
	return ds, rows, err
}

// PollFor does the work of Poll; bare leaves out the texts of rows.
func (r *Reader) PollFor(ctx context.Context, limit int, own []uint32,
	leave func(from int64) []string, before string, bare bool) (ds []relay.Delivery, rows []existing.Row, err error) {
	started := time.Now()
	from, full := r.horizon.from(started)
	floor := r.horizon.Bound // the search for the highest number can begin at the bound

	scan := r.scan
	if full {
		scan = r.scanAll
	}
	if bare {
		scan = r.table.Without(scan)
	}
	args := []any{from, leave(from), limit}
	if r.Claims {
		args = append(args, r.crowd)
	}
	b := &pgx.Batch{}
	if before != "" {
		b.Queue(before)
	}
	if r.look != "" {
		b.Queue(r.look, floor, own)
	}
	b.Queue(scan, args...)

	highest, writers := int64(math.MinInt64), []string(nil)
	var drawn *int64
	seen := Scan{Hidden: math.MaxInt64}
	var extra existing.ReadExtra
	if r.Claims {
		extra = seen.Read
	}
	results := r.Conn.SendBatch(ctx, b)
	if before != "" {
		_, err = results.Exec()
	}
	if err == nil && r.look != "" {
		err = results.QueryRow().Scan(&highest, &writers, &drawn)
	}
	if err == nil {
		answer, _ := results.Query() // its error is returned with the rows
		ds, rows, err = r.table.Collect(answer, r.free, extra)
	}
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	if err == nil && drawn != nil {
		if *drawn < r.drawn { // what it draws now is behind the bound, where no order is kept
			err = fmt.Errorf("the sequence of table %s was set back: the session ends, and the next one reads the table "+
				"from the beginning", r.table.Name)
		}
		r.drawn = *drawn
	}
	if err != nil {
		return ds, rows, fmt.Errorf("poll: %w", existing.Explain(err))
	}
	if r.Claims {
		if seen.taken > 0 && len(rows) == 0 && seen.crowd == nil {
			return nil, nil, outbox.Permanent(r.table.ErrUndone()) // what was found could be locked, and not be claimed
		}
		sort.Sort(byPlace{ds, rows}) // UPDATE … RETURNING returns rows in no order
		r.crowd = nil
		if seen.taken == limit {
			r.crowd = seen.crowd
		}
		r.News = seen.Hidden != math.MaxInt64 && seen.Hidden != r.hidden || len(r.crowd) > 0
		r.hidden = seen.Hidden
	} else {
		seen.taken = len(rows)
	}
	seen.first, seen.last = math.MaxInt64, math.MinInt64
	if len(rows) > 0 {
		seen.first, seen.last = rows[0].By, rows[len(rows)-1].By
	}
	seen.Complete = seen.taken < limit
	r.Page.Observe(ds)
	r.horizon.Advance(time.Now(), full, time.Since(started), highest, writers, seen)
	return ds, rows, nil
}

type byPlace struct {
	ds   []relay.Delivery
	rows []existing.Row
}

func (b byPlace) Len() int           { return len(b.rows) }
func (b byPlace) Less(i, j int) bool { return b.rows[i].Place < b.rows[j].Place }
func (b byPlace) Swap(i, j int) {
	b.ds[i], b.ds[j] = b.ds[j], b.ds[i]
	b.rows[i], b.rows[j] = b.rows[j], b.rows[i]
}

// lookFormat runs before each poll of a table that is ordered by a sequence: see Horizon. It leaves out our own
// connections. It must be an earlier statement than the one that reads. It finds the table by its name, as the poll
// does: another table can have that name now. An INSERT into a partition, or a child, need not lock its parent.
const lookFormat = `
SELECT coalesce((SELECT max(%[1]s) FROM %[2]s m WHERE %[1]s > $1::bigint), $1::bigint)::bigint, ARRAY(
	SELECT l.virtualtransaction FROM pg_catalog.pg_locks l
	WHERE l.locktype = 'relation' AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())
	AND l.relation = ANY(ARRAY(WITH RECURSIVE tree AS (
		SELECT to_regclass(%[3]s)::oid AS oid
		UNION ALL
		SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN tree t ON i.inhparent = t.oid
	) SELECT t.oid FROM tree t)) AND l.granted
	AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
	AND (l.pid = ANY($2::bigint[])) IS NOT TRUE
)::text[]`

// LookSQL looks for the highest number behind $1, and for writers; with drawn, also for what the sequence of the order
// has drawn. $2 are our own processes.
func LookSQL(t *existing.Table, drawn bool) string {
	last := "NULL::bigint"
	if drawn {
		last = drawnSQL(t.Ordered())
	}
	return fmt.Sprintf("SELECT l.*, %s FROM (%s) l", last, fmt.Sprintf(lookFormat, t.By, t.Name, schema.QuoteLiteral(t.Name)))
}

// drawnSQL is the last number that the sequence of c has drawn, at least that of every row that the statement sees. It
// is NULL if the sequence has drawn none, or if this role may not read it.
func drawnSQL(c *mapping.TableColumn) string {
	return fmt.Sprintf("CASE WHEN has_sequence_privilege(%[1]d::oid, 'USAGE, SELECT') THEN "+
		"pg_sequence_last_value(%[1]d::oid::regclass) END", c.Sequence)
}
