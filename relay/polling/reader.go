package polling

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgoutbox/outbox/internal/cursors"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/line"
	"github.com/pgoutbox/outbox/relay/internal/messages"
	"github.com/pgoutbox/outbox/schema"
)

// reader runs the statements that read messages, each in a transaction of its own. Rows come in binary format and are
// decoded from the connection's buffer, without an allocation per row. One goroutine at a time.
type reader struct {
	conn    *pgx.Conn
	line    *line.Line // that conn belongs to, and then only poll and flush are prepared; nil: it is the reader's own
	rest    *rest
	decoder messages.Decoder
	pool    *messages.Pool

	destination string

	firstShard, lastShard []byte

	chunking chunking

	drawing cursors.SequenceWatch

	keep, poll, flush, chunks, single *pgconn.StatementDescription

	page, stretch statementPair
}

// statementPair is a statement that returns rows as it finds them, and one that returns the first of them by id.
type statementPair struct{ found, byID *pgconn.StatementDescription }

// keepSQL takes the snapshot that ends a window, and stores it where the next statement of the transaction finds it. At
// READ COMMITTED each statement sees what has committed before it, so the next statement sees everything that the
// snapshot sees. In the other order, a transaction that commits between the two would be visible in the snapshot,
// missing from the rows, and lost. keepSQL also stores the end of the write-ahead log: a commit is logged before it is
// visible, so everything that the snapshot sees is logged before that end. The last column is the last id that was
// drawn.
const keepSQL = `SELECT set_config('outbox.next', pg_current_snapshot()::text, true),
	set_config('outbox.logged', pg_current_wal_insert_lsn()::text, true), ` + cursors.LastSQL

// Statements with ranges have OFFSET 0 in the part that runs for each range. Without it, the planner might scan the
// whole index once and compare the entries with the ranges, because it doesn't know their number and width and takes
// that for cheaper.

// pollSQL reads the messages that the stored snapshot sees, of the ranges in $1 and $2. The first range has no upper
// end (the snapshot is its end); the others are transactions that were in progress before. LIMIT is inside, so a large
// window costs only one row more than the limit, and that row shows that the window is large; the rows are then no
// page. The first column reports whether everything that the snapshot sees is on disk.
const pollSQL = `
SELECT (SELECT pg_current_wal_flush_lsn() >= current_setting('outbox.logged')::pg_lsn AND ` + noStandby + `), w.* FROM (
	SELECT m.xid, ` + messages.Columns + `
	FROM unnest($1::xid8[], $2::xid8[]) r (lo, hi)
	CROSS JOIN LATERAL (
		SELECT * FROM outbox.messages m
		WHERE m.xid >= r.lo AND m.xid <= r.hi
		AND pg_visible_in_snapshot(m.xid, (SELECT current_setting('outbox.next')::pg_snapshot))
		AND m.shard BETWEEN $3::smallint AND $4::smallint
		OFFSET 0
	) m
	WHERE r.lo < r.hi OR pg_visible_in_snapshot(r.lo, (SELECT current_setting('outbox.next')::pg_snapshot))
	LIMIT $5::bigint
) w ORDER BY w.id`

// noStandby is the condition that a commit on this server's disk is safe. With synchronous standbys a failover may
// take it back, and not every role can see what a standby has received. Then only the cursor's commit, which waits for
// the standbys, makes it safe.
const noStandby = `current_setting('synchronous_standby_names') = ''`

// flushSQL reports whether the log is safe up to $1.
const flushSQL = `SELECT pg_current_wal_flush_lsn() >= $1::pg_lsn AND ` + noStandby

// pageSQL reads the messages of a window with $5 < id <= $6, of the ranges in $1 and $2. It compares the pairs as rows,
// so within one transaction the scan starts at $5 and ends at $6: a range that is one large transaction costs only what
// is read of it. The shard is part of the index, so rows of other shard groups are not read.
const pageSQL = `
SELECT m.xid, ` + messages.Columns + `
FROM unnest($1::xid8[], $2::xid8[]) r (lo, hi)
CROSS JOIN LATERAL (
	SELECT * FROM outbox.messages m
	WHERE (m.xid, m.id) > (r.lo, $5::bigint) AND (m.xid, m.id) <= (r.hi, $6::bigint)
	AND m.id > $5::bigint AND m.id <= $6::bigint
	AND pg_visible_in_snapshot(m.xid, $7::pg_snapshot)
	AND m.shard BETWEEN $3::smallint AND $4::smallint
	OFFSET 0
) m`

// stretchSQL is pageSQL for a single range, $1 to $2, which is the usual page of a backlog. Without the join it is
// cheaper by a tenth of a row.
const stretchSQL = `
SELECT m.xid, ` + messages.Columns + `
FROM outbox.messages m
WHERE (m.xid, m.id) > ($1::xid8, $5::bigint) AND (m.xid, m.id) <= ($2::xid8, $6::bigint)
AND m.id > $5::bigint AND m.id <= $6::bigint
AND pg_visible_in_snapshot(m.xid, $7::pg_snapshot)
AND m.shard BETWEEN $3::smallint AND $4::smallint`

// The ends of page statements. Sorting rows takes the server as long as finding them, so it sorts only when there are
// too many.
const (
	foundSQL = " LIMIT $8::bigint"
	byIDSQL  = " ORDER BY m.id LIMIT $8::bigint"
)

// chunksSQL cuts the transactions from $1 to $2 of a window into chunks of $3 messages, in the order of the index, and
// reads only the index. Of each chunk it returns how many messages there are, their ids, their first transaction, and
// the last one if there are $3. The next chunk begins with that one, which may continue, or behind a transaction that
// is a chunk of its own. $6 bounds the number of chunks, and so how long the statement takes. It includes messages that
// the window's snapshot doesn't see: a page leaves them out, and checking here would cost more.
//
// One statement for many chunks saves each of them a round trip, and preparing the scans of all segments anew: a third
// of the time.
const chunksSQL = `
WITH RECURSIVE c (count, low, high, first, last) AS (
	SELECT $3::bigint, NULL::bigint, NULL::bigint, NULL::xid8, $1::xid8
	UNION ALL
	SELECT n.* FROM c CROSS JOIN LATERAL (
		SELECT count(*), min(m.id), max(m.id), ends
		FROM (
			SELECT m.xid, m.id FROM outbox.messages m
			WHERE m.xid >= CASE WHEN c.first = c.last THEN (c.last::text::bigint + 1)::text::xid8 ELSE c.last END AND m.xid <= $2::xid8
			AND m.shard BETWEEN $4::smallint AND $5::smallint
			ORDER BY m.xid, m.id LIMIT $3::bigint
		) m
	) n WHERE c.count = $3::bigint
)
SELECT * FROM c OFFSET 1 LIMIT $6::bigint`

// ends are the first and the last transaction of a chunk. Before PostgreSQL 15 there is no min(xid8), and the list
// costs a fifth of the time.
func ends(conn *pgx.Conn) string {
	if dial.Major(conn) < 15 {
		return "(array_agg(m.xid))[1], (array_agg(m.xid))[$3::bigint]"
	}
	return "min(m.xid), max(m.xid)"
}

// singleSQL finds the first and last id of each transaction in $1, at the two ends of the index.
const singleSQL = `
SELECT r.xid, s.first, s.last FROM unnest($1::xid8[]) r (xid)
CROSS JOIN LATERAL (SELECT min(m.id), max(m.id) FROM outbox.messages m WHERE m.xid = r.xid) s (first, last)
WHERE s.first IS NOT NULL`

func newReader(ctx context.Context, conn *pgx.Conn, pool *messages.Pool, destination string, group, groups int) (*reader, error) {
	r := (&reader{conn: conn, pool: pool, destination: destination, chunking: usualCut}).forGroup(group, groups)
	for _, s := range []struct {
		to        **pgconn.StatementDescription
		name, sql string
	}{
		{&r.keep, "outbox_keep", keepSQL},
		{&r.poll, "outbox_poll", pollSQL},
		{&r.flush, "outbox_flush", flushSQL},
		{&r.page.found, "outbox_page", pageSQL + foundSQL},
		{&r.page.byID, "outbox_page_by_id", pageSQL + byIDSQL},
		{&r.stretch.found, "outbox_stretch", stretchSQL + foundSQL},
		{&r.stretch.byID, "outbox_stretch_by_id", stretchSQL + byIDSQL},
		{&r.chunks, "outbox_chunks", strings.Replace(chunksSQL, "ends", ends(conn), 1)},
		{&r.single, "outbox_single", singleSQL},
	} {
		sd, err := conn.PgConn().Prepare(ctx, s.name, schema.WithTableOf(destination, s.sql), nil)
		if err != nil {
			return nil, fmt.Errorf("prepare %s: %w", s.name, err)
		}
		*s.to = sd
	}
	var err error
	if r.rest, err = newRest(ctx, conn); err != nil {
		return nil, err
	}
	return r, nil
}

// hangUp closes the connection. No call may be running.
func (r *reader) hangUp() {
	r.rest.close()
	if r.line == nil {
		dial.HangUp(r.conn)
	}
}

// forGroup returns a reader of a shard group that uses the same connection.
func (r *reader) forGroup(group, groups int) *reader {
	other := *r
	first, last := schema.Shards(group, groups)
	other.firstShard, other.lastShard = strconv.AppendInt(nil, int64(first), 10), strconv.AppendInt(nil, int64(last), 10)
	return &other
}

// A commit is on disk within a millisecond or two, and within ten where the disk is slow or busy.
const (
	flushWithin = 10 * time.Millisecond
	flushPause  = 250 * time.Microsecond
)

// poll is what pollWindow found: the messages that next sees and the previous snapshot doesn't, by id.
type poll struct {
	next cursors.Snapshot
	page *messages.Page // nil: none

	// large means that there are more messages than were requested, or more bytes than a page may have, which is too
	// much to sort at once; or that one of them can't be sent. The page then has some of them, to learn their size.
	large bool

	// onDisk means that the server had flushed all commits that next sees. Commits of writers with synchronous_commit =
	// off may not be flushed, and a crash may lose them. All are on disk when the log is flushed up to logged.
	onDisk bool
	logged []byte
}

// pollWindow takes a snapshot and reads what it sees and prev doesn't.
func (r *reader) pollWindow(ctx context.Context, prev *cursors.Snapshot, limit, maxBytes int) (p poll, err error) {
	err = r.with(ctx, func(ctx context.Context) error {
		p, err = r.askWindow(ctx, prev, limit, maxBytes)
		return err
	})
	return p, err
}

func (r *reader) askWindow(ctx context.Context, prev *cursors.Snapshot, limit, maxBytes int) (p poll, err error) {
	ranges := make([]cursors.Range, 1, 1+len(prev.Xip))
	ranges[0] = cursors.Range{Lo: prev.Xmax, Hi: math.MaxUint64}
	for _, x := range prev.Xip {
		ranges = append(ranges, cursors.Range{Lo: x, Hi: x})
	}
	lo, hi := cursors.Arrays(ranges)

	// This is one round trip and one transaction, which ends at the Sync. So even a pooler in transaction mode keeps
	// the two statements together.
	pipeline := r.conn.PgConn().StartPipeline(ctx)
	defer func() {
		if closeErr := pipeline.Close(); err == nil && closeErr != nil && !schema.IsDataError(closeErr) {
			err = fmt.Errorf("poll: %w", closeErr)
		}
		if err != nil && p.page != nil {
			r.pool.Put(p.page)
			p.page = nil
		}
	}()
	pipeline.SendQueryStatement(r.keep, nil, nil, messages.Text)
	pipeline.SendQueryStatement(r.poll, [][]byte{lo, hi, r.firstShard, r.lastShard, strconv.AppendInt(nil, int64(limit)+1, 10)},
		messages.Text, messages.Binary)
	pipeline.SendPipelineSync()
	if err := pipeline.Flush(); err != nil {
		return p, fmt.Errorf("poll: %w", err)
	}

	var text, drawn string
	err = results(pipeline, func(rows *pgconn.ResultReader) {
		for rows.NextRow() {
			text, p.logged, drawn = string(rows.Values()[0]), bytes.Clone(rows.Values()[1]), string(rows.Values()[2])
		}
	})
	if err != nil {
		return p, fmt.Errorf("take a snapshot: %w", err)
	}
	last, err := strconv.ParseInt(drawn, 10, 64)
	if err == nil {
		err = r.drawing.Check(last, r.destination)
	}
	if err != nil {
		return p, err
	}
	if text == prev.Text {
		p.next = *prev
	} else if p.next, err = cursors.Parse(text); err != nil {
		return p, fmt.Errorf("take a snapshot: %w", err)
	}

	var decodeErr error
	err = results(pipeline, func(rows *pgconn.ResultReader) {
		for rows.NextRow() {
			row := rows.Values()
			if p.page == nil {
				p.page = r.pool.Get()
				p.onDisk = len(row[0]) == 1 && row[0][0] == 1
			}
			p.large = p.large || len(p.page.Deliveries) == limit || p.page.Size() >= maxBytes
			if p.large || decodeErr != nil {
				continue
			}
			_, decodeErr = r.message(p.page, row[1:])
		}
	})
	if schema.IsDataError(err) {
		// A row can't be sent. Reading by pages finds it, and delivers the others.
		p.large, err = true, nil
	}
	if err == nil {
		err = decodeErr
	}
	if err != nil {
		return p, fmt.Errorf("poll: %w", err)
	}
	return p, nil
}

// flushed waits a moment until the log is on disk up to end: the committing transaction flushes it.
func (r *reader) flushed(ctx context.Context, end []byte, alarm *alarm) (onDisk bool, err error) {
	err = r.with(ctx, func(ctx context.Context) error {
		onDisk, err = r.askFlushed(ctx, end, alarm)
		return err
	})
	return onDisk, err
}

func (r *reader) askFlushed(ctx context.Context, end []byte, alarm *alarm) (onDisk bool, err error) {
	for giveUp := time.Now().Add(flushWithin); ; {
		rows := r.conn.PgConn().ExecStatement(ctx, r.flush, [][]byte{end}, messages.Text, messages.Binary)
		for rows.NextRow() {
			v := rows.Values()[0]
			onDisk = len(v) == 1 && v[0] == 1
		}
		if _, err := rows.Close(); err != nil {
			return false, fmt.Errorf("ask how far the log is on disk: %w", err)
		}
		if onDisk || time.Now().After(giveUp) {
			return onDisk, nil
		}
		if err := alarm.pause(ctx, flushPause); err != nil {
			return false, err
		}
	}
}

// results passes the next statement's result to read.
func results(pipeline *pgconn.Pipeline, read func(*pgconn.ResultReader)) error {
	result, err := pipeline.GetResults()
	if err != nil {
		return err
	}
	rows, ok := result.(*pgconn.ResultReader)
	if !ok {
		return fmt.Errorf("unexpected answer %T", result)
	}
	read(rows)
	_, err = rows.Close()
	return err
}

// message decodes a row whose first column is the transaction.
func (r *reader) message(pg *messages.Page, row [][]byte) (*relay.Delivery, error) {
	if len(row) != 1+messages.ColumnCount || len(row[0]) != 8 {
		return nil, messages.ErrRow
	}
	d, err := r.decoder.Decode(pg, row[1:])
	if err == nil {
		d.Ref = binary.BigEndian.Uint64(row[0])
	}
	return d, err
}

// pages is a pipeline of requested pages. The server works on them while earlier ones are published. No other statement
// may use the connection until it is closed.
type pages struct {
	reader   *reader
	pipeline *pgconn.Pipeline
	asked    []pageQuery // in order
}

type pageQuery struct {
	after, through int64
	limit          int
	byID           bool // if there are more, return the first ones
}

func (r *reader) pages(ctx context.Context) *pages {
	return &pages{reader: r, pipeline: r.conn.PgConn().StartPipeline(ctx)}
}

// ask requests at most limit messages of a window with after < id <= through.
func (p *pages) ask(next *cursors.Snapshot, ranges []cursors.Range, q pageQuery) error {
	r := p.reader
	statements := r.page
	lo, hi := cursors.Arrays(ranges)
	if len(ranges) == 1 {
		statements = r.stretch
		lo, hi = strconv.AppendUint(nil, ranges[0].Lo, 10), strconv.AppendUint(nil, ranges[0].Hi, 10)
	}
	statement := statements.found
	if q.byID {
		statement = statements.byID
	}
	p.asked = append(p.asked, q)
	p.pipeline.SendQueryStatement(statement, r.pageArguments(lo, hi, next, q), messages.Text, messages.Binary)
	p.pipeline.SendPipelineSync() // each page is a transaction of its own
	if err := p.pipeline.Flush(); err != nil {
		return fmt.Errorf("ask for a page: %w", err)
	}
	return nil
}

func (r *reader) pageArguments(lo, hi []byte, next *cursors.Snapshot, q pageQuery) [][]byte {
	return [][]byte{
		lo, hi, r.firstShard, r.lastShard,
		strconv.AppendInt(nil, q.after, 10), strconv.AppendInt(nil, q.through, 10),
		[]byte(next.Text), strconv.AppendInt(nil, int64(q.limit)+1, 10),
	}
}

// read takes the next answer. cut means that there were more messages than a page has room for, by their number or
// their bytes. Then the page is only usable if it was requested by id.
func (p *pages) read(maxBytes int) (pg *messages.Page, q pageQuery, cut bool, err error) {
	pg, q = p.reader.pool.Get(), p.asked[0]
	var decodeErr error
	err = p.answer(func(rows *pgconn.ResultReader) {
		for rows.NextRow() {
			n := len(pg.Deliveries)
			if cut = cut || n == q.limit || n > 0 && pg.Size() >= maxBytes; cut || decodeErr != nil {
				continue
			}
			_, decodeErr = p.reader.message(pg, rows.Values())
		}
	})
	if err == nil {
		err = decodeErr
	}
	if err != nil {
		p.reader.pool.Put(pg)
		return nil, q, false, fmt.Errorf("read a page: %w", err)
	}
	if !q.byID && !cut {
		pg.Sort()
	}
	return pg, q, cut, nil
}

// discard gives up all requests.
func (p *pages) discard() error {
	for len(p.asked) > 0 {
		if err := p.answer(func(*pgconn.ResultReader) {}); err != nil {
			return fmt.Errorf("leave a page: %w", err)
		}
	}
	return nil
}

// answer passes the answer to the oldest open request to read.
func (p *pages) answer(read func(*pgconn.ResultReader)) error {
	p.asked = append(p.asked[:0], p.asked[1:]...)
	if err := results(p.pipeline, read); err != nil {
		return err
	}
	_, err := p.pipeline.GetResults() // of the Sync
	return err
}

func (p *pages) close() error { return p.pipeline.Close() }

// span is what chunksSQL finds.
type span struct {
	count int64
	ids   idRange
	first uint64 // transaction
	last  uint64 // if there are as many as were asked for
}

type idRange struct{ first, last int64 }

// spans returns the first chunks of a range of transactions, as many as a statement measures. The last of them has
// fewer messages than a chunk if nothing is left.
func (r *reader) spans(ctx context.Context, within cursors.Range) ([]span, error) {
	rows := r.conn.PgConn().ExecStatement(ctx, r.chunks, [][]byte{
		strconv.AppendUint(nil, within.Lo, 10), strconv.AppendUint(nil, within.Hi, 10), strconv.AppendInt(nil, r.chunking.chunk, 10),
		r.firstShard, r.lastShard, strconv.AppendInt(nil, int64(r.chunking.atOnce), 10),
	}, messages.Text, messages.Binary)
	var found []span
	for rows.NextRow() {
		v := rows.Values()
		s := span{count: int64(messages.Int8(v[0]))}
		if s.count > 0 {
			s.ids = idRange{int64(messages.Int8(v[1])), int64(messages.Int8(v[2]))}
			s.first, s.last = messages.Int8(v[3]), messages.Int8(v[4])
		}
		found = append(found, s)
	}
	if _, err := rows.Close(); err != nil {
		return nil, fmt.Errorf("measure a backlog: %w", err)
	}
	return found, nil
}

// transactions finds the ids of whole transactions; it leaves out those without messages.
func (r *reader) transactions(ctx context.Context, xids []cursors.Range) ([]chunk, error) {
	if len(xids) == 0 {
		return nil, nil
	}
	lo, _ := cursors.Arrays(xids)
	rows := r.conn.PgConn().ExecStatement(ctx, r.single, [][]byte{lo}, messages.Text, messages.Binary)
	var found []chunk
	for rows.NextRow() {
		v := rows.Values()
		x := messages.Int8(v[0])
		ids := idRange{int64(messages.Int8(v[1])), int64(messages.Int8(v[2]))}
		found = append(found, chunk{xids: cursors.Range{Lo: x, Hi: x}, ids: ids})
	}
	if _, err := rows.Close(); err != nil {
		return nil, fmt.Errorf("measure a backlog: %w", err)
	}
	return found, nil
}

// chunking is how a backlog is divided into chunks.
type chunking struct {
	chunk  int64 // messages
	atOnce int   // chunks that a statement measures
}

// A page looks at all index entries of its chunks, so a chunk is smaller than a page. Smaller chunks cost more memory,
// 32 bytes each, and more time when the backlog is measured. A statement measures so many chunks that it takes a tenth
// of a second, and a few seconds where most rows are of other shard groups.
var usualCut = chunking{chunk: 2000, atOnce: 250}

// chunk is a range of the index: its transactions have no messages outside these ids. A transaction larger than a chunk
// is a chunk of its own; the index finds ids within it.
type chunk struct {
	xids cursors.Range
	ids  idRange
}
