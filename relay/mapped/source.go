package mapped

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"os"
	"sort"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/schema"
)

// source is what the strategies have in common.
type source struct {
	conn    *pgx.ConnConfig
	mapping mapping.Mapping
	cfg     Config
	owner   string
	active  atomic.Bool

	receipts receipts
}

func (s *source) init(conn *pgx.ConnConfig, m mapping.Mapping, cfg Config) (err error) {
	if s.cfg, err = cfg.withDefaults(conn, m); err != nil {
		return err
	}
	s.conn, s.mapping, s.owner = conn.Copy(), m, cfg.Name
	if s.owner == "" {
		host, _ := os.Hostname() // only for people
		s.owner = fmt.Sprintf("%s/%d/%s", host, os.Getpid(), rand.Text()[:8])
	}
	return nil
}

// NotesFailures reports whether the table has a column that every failure is to be seen in.
func (s *source) NotesFailures() bool {
	f, d := &s.mapping.Failure, &s.mapping.Done
	return d.How != "" && (f.Attempts != "" || f.Error != "" || f.LastAttempt != "" || f.NextAttempt != "" || d.AckAt != "")
}

var errActive = errors.New("mapped: the source already has a session")

// acquire runs start unless there is a session already.
func (s *source) acquire(ctx context.Context, start func(context.Context) (relay.Session, error)) (relay.Session, error) {
	if !s.active.CompareAndSwap(false, true) {
		return nil, errActive
	}
	session, err := start(ctx)
	if err != nil {
		s.active.Store(false)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, err
	}
	return session, nil
}

// open connects as many times as there are places in conns, and resolves the mapping. Unless it returns
// an error, the connections are the caller's. pooled is ErrTransactionPooler where their sessions are not.
func (s *source) open(ctx context.Context, conns ...**pgx.Conn) (t *table, pooled, err error) {
	defer func() {
		if err != nil {
			for _, c := range conns {
				hangUp(*c)
			}
		}
	}()
	for _, c := range conns {
		if *c, err = s.connect(ctx, &pooled); err != nil {
			return nil, pooled, err
		}
	}
	t, err = resolve(ctx, *conns[0], s.mapping)
	return t, pooled, err
}

// permanentMapping marks what waiting doesn't cure.
func permanentMapping(err error) error {
	if errors.Is(err, mapping.ErrMapping) {
		return outbox.Permanent(err)
	}
	return err
}

// awaitLock takes an advisory lock for the session, and says so once if that takes a while. It asks again
// and again: to wait in the server would hold up its vacuum. From here on the server ends the session when it is silent
// for as long as the lease.
func (s *source) awaitLock(ctx context.Context, conn *pgx.Conn, lock, what string) error {
	if _, err := conn.Exec(ctx, "SELECT set_config('idle_session_timeout', $1, false)", s.silence()); err != nil {
		return fmt.Errorf("prepare the connection: %w", err)
	}
	every := min(100*time.Millisecond, s.cfg.Lease/3)
	for waited := false; ; waited = true {
		var got bool
		if err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock("+lock+")").Scan(&got); err != nil {
			return fmt.Errorf("take the lock: %w", err)
		}
		if got {
			return nil
		}
		if !waited {
			s.cfg.Logger.Info("waiting: "+what, "relay", s.owner, "table", s.mapping.Table)
		}
		if err := pause(ctx, every); err != nil {
			return err
		}
	}
}

// lookSQL is looked up before each poll of a table that is ordered by a sequence: see horizon. Our own
// connections don't count. It must be a statement before the one that reads.
const lookSQL = `
SELECT coalesce((SELECT max(%s) FROM %s m WHERE %s > $1::bigint), $1::bigint)::bigint, ARRAY(
	SELECT l.virtualtransaction FROM pg_catalog.pg_locks l
	WHERE l.locktype = 'relation' AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())
	AND l.relation = ANY(ARRAY(SELECT p.relid FROM pg_catalog.pg_partition_tree(%d) p UNION SELECT %d::regclass)::oid[]) AND l.granted
	AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
	AND (l.pid = ANY($2::bigint[])) IS NOT TRUE
)::text[]`

func (t *table) lookSQL() string {
	return fmt.Sprintf(lookSQL, t.by, t.name, t.by, t.info.OID, t.info.OID)
}

// reader polls a table's waiting rows without changing them. One goroutine at a time.
type reader struct {
	conn    *pgx.Conn
	table   *table
	horizon horizon
	look    string // empty: the order tells nothing
	scan    string // $1 from, $2 ids to leave out, $3 limit
	scanAll string // the same, from the very beginning

	// claims says that the scans are those of claimSQL, and have $4: lanes to leave out.
	claims bool
	crowd  []int64 // what the next scan is to leave out
	hidden int64   // what the last one has seen of it
	news   bool    // that was not seen before: it is worth looking again soon

	least     int // rows of a page
	pageBytes int
	bytes     int // of a message, by what was read lately; 0: nothing was
}

// minPage is how many rows are read at once at least, where they are not large: a page has a cost of its
// own, so a small batch is a part of one. Of rows that are locked it is less: what a transaction has settled
// comes again if it is cut off before it commits.
const (
	minPage       = 1000
	minLockedPage = 200
)

// size is how many rows to read so that they have about pageBytes. What is read beyond the bytes is
// memory, so a session begins with few.
func (r *reader) size(limit int) int {
	const unknown = 256
	limit = max(limit, r.least)
	if r.bytes == 0 {
		return min(limit, unknown)
	}
	return min(limit, 1+r.pageBytes/r.bytes)
}

// observe learns how large messages are: quickly when they grow, slowly when they shrink.
func (r *reader) observe(ds []relay.Delivery) {
	if len(ds) == 0 {
		return
	}
	total := 0
	for i := range ds {
		total += len(ds[i].Payload) + 256
	}
	r.bytes = max(total/len(ds), r.bytes-r.bytes/4)
}

// newReader reads by the statements that scan makes of where they begin.
func newReader(t *table, conn *pgx.Conn, pageBytes int, scan func(from string) string) *reader {
	r := &reader{conn: conn, table: t, horizon: newHorizon(t.along), least: minPage, pageBytes: pageBytes}
	if t.along == alongSequence {
		r.look = t.lookSQL()
	}
	r.scan, r.scanAll = scan(t.fromSQL()), scan(fromStart)
	return r
}

// scanSQL reads waiting rows without claiming them.
func (t *table) scanSQL(from string) string {
	return fmt.Sprintf("SELECT %s FROM %s m WHERE %s AND %s AND %s ORDER BY %s LIMIT $3::bigint", t.columns, t.name, t.waiting, from, t.unknown(), t.order)
}

// unknown is the condition that a row is none of the ids $2.
func (t *table) unknown() string {
	return fmt.Sprintf("(%s = ANY($2::text[]::%s[])) IS NOT TRUE", t.id, t.idType)
}

// poll returns the next waiting rows in order, at most limit. own are the processes whose locks are ours;
// leave lists the ids of rows behind a bound that are known already. before runs in the same round trip
// first, if it is not empty.
func (r *reader) poll(ctx context.Context, limit int, own []uint32, leave func(from int64) []string, before string) (ds []relay.Delivery, rows []row, err error) {
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

// pollFor is poll; bare leaves out the texts of rows.
func (r *reader) pollFor(ctx context.Context, limit int, own []uint32, leave func(from int64) []string, before string, bare bool) (ds []relay.Delivery, rows []row, err error) {
	started := time.Now()
	from, full := r.horizon.from(started)
	floor := r.horizon.bound // looking up the highest number needn't begin at the beginning

	p := r.conn.PgConn().StartPipeline(ctx)
	defer func() {
		if closeErr := p.Close(); err == nil && closeErr != nil {
			err = fmt.Errorf("poll: %w", explain(closeErr))
		}
	}()
	text := func(n int64) []byte { return strconv.AppendInt(nil, n, 10) }
	if before != "" {
		p.SendQueryParams(before, nil, nil, nil, nil)
	}
	if r.look != "" {
		p.SendQueryParams(r.look, [][]byte{text(floor), pidArray(own)}, nil, nil, nil)
	}
	ids := textArray(leave(from))
	scan := r.scan
	if full {
		scan = r.scanAll
	}
	if bare {
		scan = r.table.without(scan)
	}
	args := [][]byte{text(from), ids, text(int64(limit))}
	if r.claims {
		args = append(args, laneArray(r.crowd))
	}
	p.SendQueryParams(scan, args, nil, nil, binaryFormat)
	if err := p.Sync(); err != nil {
		return nil, nil, fmt.Errorf("poll: %w", err)
	}
	results := &results{pipeline: p}
	if before != "" {
		results.skip()
	}
	highest, writers := int64(math.MinInt64), []string(nil)
	if r.look != "" {
		highest, writers = results.look()
	}
	seen := sight{hidden: math.MaxInt64}
	var extra func(*relay.Delivery, *row, [][]byte) error
	if r.claims {
		extra = seen.read
	}
	ds, rows, err = results.rows(r.table, extra)
	if err != nil {
		return nil, nil, fmt.Errorf("poll: %w", explain(err))
	}
	if r.claims {
		sort.Sort(byPlace{ds, rows}) // what an UPDATE returns is in no order
		r.crowd = nil
		if seen.taken == limit {
			r.crowd = seen.crowd
		}
		r.news = seen.hidden != math.MaxInt64 && seen.hidden != r.hidden || len(r.crowd) > 0
		r.hidden = seen.hidden
	} else {
		seen.taken = len(rows)
	}
	seen.last = math.MinInt64
	if len(rows) > 0 {
		seen.last = rows[len(rows)-1].by
	}
	seen.complete = seen.taken < limit
	r.observe(ds)
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

var binaryFormat = []int16{1}

// results reads the answers of a pipeline one after the other; the first error sticks.
type results struct {
	pipeline *pgconn.Pipeline
	err      error
}

func (r *results) next() *pgconn.ResultReader {
	if r.err != nil {
		return nil
	}
	for {
		x, err := r.pipeline.GetResults()
		if err != nil {
			r.err = err
			return nil
		}
		switch x := x.(type) {
		case *pgconn.ResultReader:
			return x
		case *pgconn.PipelineSync:
		default:
			r.err = errors.New("the server sent fewer answers than there were questions")
			return nil
		}
	}
}

func (r *results) skip() {
	if x := r.next(); x != nil {
		_, r.err = x.Close()
	}
}

func (r *results) look() (highest int64, writers []string) {
	x := r.next()
	if x == nil {
		return 0, nil
	}
	answer := x.Read()
	if answer.Err != nil || len(answer.Rows) != 1 || len(answer.Rows[0]) != 2 {
		r.err = answer.Err
		if r.err == nil {
			r.err = errRow
		}
		return 0, nil
	}
	highest, r.err = strconv.ParseInt(string(answer.Rows[0][0]), 10, 64)
	if r.err == nil {
		r.err = pgtype.NewMap().Scan(pgtype.TextArrayOID, pgtype.TextFormatCode, answer.Rows[0][1], &writers)
	}
	return highest, writers
}

func (r *results) rows(t *table, extra func(*relay.Delivery, *row, [][]byte) error) ([]relay.Delivery, []row, error) {
	x := r.next()
	if x == nil {
		return nil, nil, r.err
	}
	return t.collect(x, extra)
}

// laneArray writes the literal of a bigint[], or NULL if there is nothing in it: the planner leaves the condition out then.
func laneArray(lanes []int64) []byte {
	if len(lanes) == 0 {
		return nil
	}
	return intArray(lanes)
}

// textArray writes the literal of a text[].
func textArray(all []string) []byte {
	b := []byte{'{'}
	for i, s := range all {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '"')
		for _, c := range []byte(s) {
			if c == '"' || c == '\\' {
				b = append(b, '\\')
			}
			b = append(b, c)
		}
		b = append(b, '"')
	}
	return append(b, '}')
}

func pidArray(pids []uint32) []byte {
	b := []byte{'{'}
	for i, pid := range pids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(pid), 10)
	}
	return append(b, '}')
}

// reread reads rows by their ids if they still wait, in no order. clause follows, to lock them.
func (t *table) reread(ctx context.Context, conn *pgx.Conn, list []hold, clause string) ([]relay.Delivery, []row, error) {
	ids := make([]string, len(list))
	for i := range list {
		ids[i] = list[i].id
	}
	sql := fmt.Sprintf("SELECT %s FROM %s m WHERE %s = ANY($1::text[]::%s[]) AND %s %s", t.columns, t.name, t.id, t.idType, t.waiting, clause)
	var ds []relay.Delivery
	var rows []row
	read := func() (err error) {
		ds, rows, err = t.collect(conn.PgConn().ExecParams(ctx, sql, [][]byte{textArray(ids)}, nil, nil, binaryFormat), nil)
		return err
	}
	err := t.attempt(ctx, conn, read)
	if schema.IsDataError(err) {
		sql = t.without(sql)
		if err = read(); err == nil {
			err = t.fill(ctx, conn, ds, rows, false)
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read rows again: %w", explain(err))
	}
	return ds, rows, nil
}

// untaken returns which of the listed rows wait though they could not be taken: taken has the others.
func (t *table) untaken(ctx context.Context, conn *pgx.Conn, list []hold, taken []row, waits string) (map[string]bool, error) {
	if len(taken) == len(list) {
		return nil, nil
	}
	ids := make([]string, len(list))
	for i := range list {
		ids[i] = list[i].id
	}
	rows, err := conn.Query(ctx, fmt.Sprintf("SELECT %s::text FROM %s m WHERE %s = ANY($1::text[]::%s[]) AND %s", t.id, t.name, t.id, t.idType, waits), ids)
	if err != nil {
		return nil, fmt.Errorf("read rows again: %w", explain(err))
	}
	if ids, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
		return nil, fmt.Errorf("read rows again: %w", explain(err))
	}
	untaken := make(map[string]bool, len(ids))
	for _, id := range ids {
		untaken[id] = true
	}
	for i := range taken {
		delete(untaken, taken[i].id)
	}
	return untaken, nil
}

// released returns the heads among blocked that somebody has changed: their attempts were set back, or
// the time of the next one. That is how an operator lets a blocked lane go on; a row that is gone is found
// when its lane is read.
func (t *table) released(ctx context.Context, conn *pgx.Conn, blocked []hold) (refs []uint64, err error) {
	if len(blocked) == 0 {
		return nil, nil
	}
	ds, rows, err := t.reread(ctx, conn, blocked, "")
	if err != nil {
		return nil, err
	}
	there := make(map[string]*relay.Delivery, len(ds))
	for i := range ds {
		there[rows[i].id] = &ds[i]
	}
	for _, b := range blocked {
		d := there[b.id]
		attempts := b.attempts
		if t.mapping.Claim.Counts {
			attempts-- // the row was not claimed, and is read as if it was
		}
		counted := t.mapping.Failure.Attempts != "" && d != nil && d.Attempts < attempts
		timed := t.mapping.Failure.NextAttempt != "" && d != nil && d.DeliverAt.Before(time.Now().AddDate(1000, 0, 0))
		if d == nil || counted || timed {
			refs = append(refs, b.ref)
		}
	}
	return refs, nil
}

// numbered says that ids are whole numbers.
func (t *table) numbered() bool { return t.info.Column(t.mapping.ID).Kind == mapping.KindInteger }

// maxHolds is how many rows may wait for another attempt.
func (s *source) maxHolds() int {
	if s.cfg.MaxHolds > 0 {
		return s.cfg.MaxHolds
	}
	return 100_000
}
