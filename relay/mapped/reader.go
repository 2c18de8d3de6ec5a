package mapped

import (
	"context"
	"fmt"
	"math"
	"sort"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/schema"
)

// reader polls a table's waiting rows without changing them. One goroutine at a time.
type reader struct {
	conn    *pgx.Conn
	table   *table
	horizon horizon
	look    string // empty: the order says nothing about uncommitted rows
	scan    string // $1 from, $2 ids to leave out, $3 limit
	scanAll string // the same, without a bound

	// claims means that the scans are those of claimSQL, and have $4: lanes to leave out.
	claims bool
	drawn  int64   // what the sequence had drawn at the last look
	crowd  []int64 // lanes that the next scan leaves out
	hidden int64   // the first hidden row that the last scan saw
	news   bool    // it had not been seen before, so polling again soon is worth it

	page pageSize
	free *freeLists
}

// newReader uses the statements that scan returns for a beginning.
func newReader(conn *pgx.Conn, t *table, scan func(t *table, from string) string, page pageSize, free *freeLists) *reader {
	r := &reader{conn: conn, table: t, free: free, horizon: newHorizon(t), page: page}
	if t.along == alongSequence {
		r.look = lookSQL(t, true)
	}
	r.scan, r.scanAll = scan(t, t.fromSQL()), scan(t, fromStart)
	return r
}

// poll returns the next waiting rows in order, at most limit. own are the processes that hold our locks. leave lists
// the ids of rows behind a bound that are already known. before, if not empty, runs first in the same round trip.
func (r *reader) poll(ctx context.Context, limit int, own []uint32,
	leave func(from int64) []string, before string) (ds []relay.Delivery, rows []row, err error) {
	ds, rows, err = r.pollFor(ctx, limit, own, leave, before, false)
	if !schema.IsDataError(err) {
		return ds, rows, err
	}
	if before != "" {
		if _, err := r.conn.Exec(ctx, "ROLLBACK"); err != nil {
			return nil, nil, fmt.Errorf("poll: %w", err)
		}
	}
	if ds, rows, err = r.pollFor(ctx, limit, own, leave, before, true); err == nil {
		err = r.table.fill(ctx, r.conn, ds, rows, false)
	}
	return ds, rows, err
}

// pollFor does the work of poll; bare leaves out the texts of rows.
func (r *reader) pollFor(ctx context.Context, limit int, own []uint32,
	leave func(from int64) []string, before string, bare bool) (ds []relay.Delivery, rows []row, err error) {
	started := time.Now()
	from, full := r.horizon.from(started)
	floor := r.horizon.bound // the search for the highest number can begin at the bound

	scan := r.scan
	if full {
		scan = r.scanAll
	}
	if bare {
		scan = r.table.without(scan)
	}
	args := []any{from, leave(from), limit}
	if r.claims {
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
	seen := sight{hidden: math.MaxInt64}
	var extra readExtra
	if r.claims {
		extra = seen.read
	}
	results := r.conn.SendBatch(ctx, b)
	if before != "" {
		_, err = results.Exec()
	}
	if err == nil && r.look != "" {
		err = results.QueryRow().Scan(&highest, &writers, &drawn)
	}
	if err == nil {
		answer, _ := results.Query() // its error is returned with the rows
		ds, rows, err = r.table.collect(answer, r.free, extra)
	}
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	if err == nil && drawn != nil {
		if *drawn < r.drawn { // what it draws now is behind the bound, where no order is kept
			err = fmt.Errorf("the sequence of table %s was set back: the session ends, and the next one reads the table "+
				"from the beginning", r.table.name)
		}
		r.drawn = *drawn
	}
	if err != nil {
		return ds, rows, fmt.Errorf("poll: %w", explain(err))
	}
	if r.claims {
		if seen.taken > 0 && len(rows) == 0 && seen.crowd == nil {
			return nil, nil, outbox.Permanent(r.table.errUndone()) // what was found could be locked, and not be claimed
		}
		sort.Sort(byPlace{ds, rows}) // UPDATE … RETURNING returns rows in no order
		r.crowd = nil
		if seen.taken == limit {
			r.crowd = seen.crowd
		}
		r.news = seen.hidden != math.MaxInt64 && seen.hidden != r.hidden || len(r.crowd) > 0
		r.hidden = seen.hidden
	} else {
		seen.taken = len(rows)
	}
	seen.first, seen.last = math.MaxInt64, math.MinInt64
	if len(rows) > 0 {
		seen.first, seen.last = rows[0].by, rows[len(rows)-1].by
	}
	seen.complete = seen.taken < limit
	r.page.observe(ds)
	r.horizon.scanned(time.Now(), full, time.Since(started), highest, writers, seen)
	return ds, rows, nil
}

type byPlace struct {
	ds   []relay.Delivery
	rows []row
}

func (b byPlace) Len() int           { return len(b.rows) }
func (b byPlace) Less(i, j int) bool { return b.rows[i].place < b.rows[j].place }
func (b byPlace) Swap(i, j int) {
	b.ds[i], b.ds[j] = b.ds[j], b.ds[i]
	b.rows[i], b.rows[j] = b.rows[j], b.rows[i]
}
