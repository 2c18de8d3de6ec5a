// Package retention empties the segments of the outbox that every destination has passed.
package retention

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/cursors"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/internal/sqlstate"
	"github.com/pgoutbox/outbox/relay/internal/lease"
	"github.com/pgoutbox/outbox/schema"
)

// Retention empties the segments of outbox.messages, and of the stored inbox, that every cursor has passed. The cost
// doesn't depend on the number of messages in a segment, and nothing is left to be vacuumed. Any number of retentions
// may run, in one process or in several.
//
// Retention depends on moving cursors: a destination without a relay keeps every segment from being emptied, and
// Observe reports that.
type Retention struct {
	conn *pgx.ConnConfig
	cfg  Config
}

// Config tunes a [Retention]. The zero value means the stated defaults.
type Config struct {
	// Interval is the pause between two passes over the segments. A segment of the schema is written to for ten
	// minutes, so there is no hurry. Default 30 s.
	Interval time.Duration

	// Lend, if not nil, runs a function with a connection that the process has anyway, as Registration.Lend does. Run
	// asks on it whether there is anything to do, and opens a connection only if there is. nil: Run has a connection of
	// its own all the time.
	Lend func(ctx context.Context, f func(*pgx.Conn) error) error

	// Observe, if not nil, gets the result of each pass. It must not block.
	Observe func(Report)

	// Logger reports emptied segments and trouble; nil: slog.Default.
	Logger *slog.Logger
}

// Report is the result of one pass over the segments. Err is why it ended early, nil if it didn't.
type Report struct {
	Emptied []string // tables
	Kept    []KeptSegment
	Err     error
}

// KeptSegment is a segment that is no longer written to and could not be emptied, with the reason. Destination is "" if
// no destination is the reason.
type KeptSegment struct {
	Table       string
	Destination string
	Group       int
	Reason      string

	// Hidden means that the segment has messages that this role doesn't see.
	Hidden bool
}

// Defaults returns the RetentionConfig that the zero value stands for.
func Defaults() Config {
	cfg, _ := Config{}.withDefaults(nil) // without the required fields
	return cfg
}

func (cfg Config) withDefaults(conn *pgx.ConnConfig) (Config, error) {
	var faults settings.Faults
	faults.Need(conn != nil, "", "there is no connection config")
	settings.Positive(&faults, "Interval", &cfg.Interval, 30*time.Second)
	if cfg.Observe == nil {
		cfg.Observe = func(Report) {}
	}
	cfg.Logger = settings.Logger(cfg.Logger)
	return cfg, faults.Err()
}

// New returns a Retention that connects to nothing yet. conn is copied.
func New(conn *pgx.ConnConfig, cfg Config) (*Retention, error) {
	cfg, err := cfg.withDefaults(conn)
	if err != nil {
		return nil, fmt.Errorf("retention: %w", err)
	}
	return &Retention{conn: conn.Copy(), cfg: cfg}, nil
}

// Once looks at all segments once, and empties those that may be.
func (r *Retention) Once(ctx context.Context) (report Report, err error) {
	conn, err := r.connect(ctx)
	if err != nil {
		return report, err
	}
	defer dial.HangUp(conn)
	return r.pass(ctx, conn)
}

// connect returns no connection with an error.
func (r *Retention) connect(ctx context.Context) (*pgx.Conn, error) {
	conn, err := lease.Connect(ctx, r.conn, "retention")
	if err != nil {
		return nil, err
	}
	if err := cursors.RefuseStandby(ctx, conn); err != nil {
		dial.HangUp(conn)
		return nil, err
	}
	return conn, nil
}

// Run empties segments until ctx ends, and then returns nil. It replaces a lost connection.
func (r *Retention) Run(ctx context.Context) error {
	var conn *pgx.Conn
	defer func() { dial.HangUp(conn) }()
	for {
		if r.cfg.Lend != nil && !r.needed(ctx) {
			r.report(ctx, Report{})
		} else {
			conn = r.again(ctx, conn)
		}
		if r.cfg.Lend != nil {
			dial.HangUp(conn)
			conn = nil
		}
		if err := lease.Pause(ctx, r.cfg.Interval); err != nil {
			return nil
		}
	}
}

// again makes a pass, and returns the connection for the next one, nil if there is none.
func (r *Retention) again(ctx context.Context, conn *pgx.Conn) *pgx.Conn {
	if conn == nil || conn.IsClosed() {
		var err error
		if conn, err = r.connect(ctx); err != nil {
			r.report(ctx, Report{Err: err})
			return nil
		}
	}
	report, err := r.pass(ctx, conn)
	report.Err = err
	r.report(ctx, report)
	return conn
}

// somethingSQL reports whether a pass would find a segment or a row: it reads the ends of indexes alone, and jobs.
const somethingSQL = `SELECT EXISTS (` + segmentsSQL + `) OR EXISTS (SELECT FROM outbox.trash WHERE trashed_at < clock_timestamp() - interval '1 day')
	OR EXISTS (SELECT FROM outbox.jobs j WHERE j.ended_at < clock_timestamp() - interval '30 days'
		OR j.state = 'planned' AND j.planned_at < clock_timestamp() - interval '1 hour'
		OR j.ended_at < clock_timestamp() - interval '1 day' AND (EXISTS (SELECT FROM outbox.job_messages m WHERE m.job = j.id)
			OR EXISTS (SELECT FROM outbox.job_pages p WHERE p.job = j.id)))`

// needed asks on a connection that is lent whether a pass would find anything. A pass says what an error means.
func (r *Retention) needed(ctx context.Context) bool {
	needed := true
	_ = r.cfg.Lend(ctx, func(conn *pgx.Conn) error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dial.AnswerWithin)
		defer cancel()
		return conn.QueryRow(ctx, somethingSQL, schema.SegmentSeconds, schema.SegmentCount).Scan(&needed)
	})
	return needed && ctx.Err() == nil
}

func (r *Retention) report(ctx context.Context, report Report) {
	if ctx.Err() != nil {
		return
	}
	if report.Err != nil {
		r.cfg.Logger.Warn("segments could not be checked", "error", report.Err)
	}
	for _, table := range report.Emptied {
		r.cfg.Logger.Info("segment emptied", "segment", table)
	}
	for _, k := range report.Kept {
		level := slog.LevelDebug
		if k.Hidden {
			level = slog.LevelError
		}
		r.cfg.Logger.Log(ctx, level, "segment kept", "segment", k.Table, "reason", k.Reason)
	}
	r.cfg.Observe(report)
}

// segmentsSQL lists the segments that have pages and aren't written to now or next. It makes up their names and finds
// them in the catalogue, because what the catalogue prints depends on settings such as quote_all_identifiers, and the
// name decides whose cursors need the segment. The choice of the current segment only serves to keep out of the
// writers' way.
const segmentsSQL = `
SELECT p.parent || '_' || n FROM unnest(ARRAY['` + schema.OutboxMessages + `', '` + schema.InboxMessages + `']) p (parent), generate_series(0, $2 - 1) n,
	(SELECT date_part('epoch', clock_timestamp())::bigint / $1 % $2 AS segment) now,
	LATERAL (SELECT c.oid FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
		WHERE i.inhparent = p.parent::regclass AND i.inhrelid = to_regclass(p.parent || '_' || n) AND c.relkind = 'r'
		AND pg_get_expr(c.relpartbound, c.oid) = format('FOR VALUES IN (%L)', n)) s
WHERE n <> now.segment AND n <> (now.segment + 1) % $2 AND pg_relation_size(s.oid) > 0
ORDER BY n, p.parent DESC`

// pass looks at each segment once.
func (r *Retention) pass(ctx context.Context, conn *pgx.Conn) (report Report, err error) {
	rows, err := conn.Query(ctx, segmentsSQL, schema.SegmentSeconds, schema.SegmentCount)
	if err != nil {
		return report, fmt.Errorf("list segments: %w", err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return report, fmt.Errorf("list segments: %w", err)
	}
	for _, table := range tables {
		kept, err := r.empty(ctx, conn, table)
		if err != nil {
			return report, fmt.Errorf("empty segment %s: %w", table, schema.ExplainHidden(err))
		}
		if kept == nil {
			report.Emptied = append(report.Emptied, table)
		} else {
			report.Kept = append(report.Kept, *kept)
		}
	}
	for _, forget := range forgetSQL {
		if _, err := conn.Exec(ctx, forget); err != nil {
			return report, fmt.Errorf("empty the trash: %w", schema.ExplainHidden(err))
		}
	}
	return report, nil
}

// forgetSQL deletes what operators discarded a day ago, the lists of jobs that ended a day ago, jobs that were listed
// an hour ago and not started, and jobs that ended thirty days ago. A pass deletes no more than takes a moment.
var forgetSQL = []string{
	`DELETE FROM outbox.trash WHERE (destination, id, message_id) IN (
	SELECT destination, id, message_id FROM outbox.trash
	WHERE trashed_at < clock_timestamp() - interval '1 day' ORDER BY trashed_at LIMIT 10000)`,
	`DELETE FROM outbox.job_messages WHERE (job, n) IN (
	SELECT m.job, m.n FROM outbox.jobs j JOIN outbox.job_messages m ON m.job = j.id
	WHERE j.ended_at < clock_timestamp() - interval '1 day' LIMIT 10000)`,
	`DELETE FROM outbox.job_pages WHERE job IN (
	SELECT id FROM outbox.jobs WHERE verb = 'replay' AND ended_at < clock_timestamp() - interval '1 day' LIMIT 10)`,
	`DELETE FROM outbox.jobs WHERE id IN (
	SELECT id FROM outbox.jobs WHERE ended_at < clock_timestamp() - interval '30 days'
	OR state = 'planned' AND planned_at < clock_timestamp() - interval '1 hour' LIMIT 10)`,
}

// empty truncates a segment if no cursor needs it.
func (r *Retention) empty(ctx context.Context, conn *pgx.Conn, table string) (*KeptSegment, error) {
	// This first check takes no lock: the lock would hold up writers, maybe for nothing.
	if kept, err := neededBy(ctx, conn, table); kept != nil || err != nil {
		return kept, err
	}
	if kept, err := outOfSight(ctx, conn, table); kept != nil || err != nil {
		return kept, err
	}
	// Readers lock a segment for moments; long transactions that wrote to it keep their lock for long.
	const attempts = 10
	for attempt := 1; ; attempt++ {
		kept, err := r.truncate(ctx, conn, table)
		if sqlstate.Of(err) != lockNotAvailable {
			return kept, err
		}
		if attempt == attempts {
			return &KeptSegment{Table: table, Reason: "another transaction has locked it: a writer that is still open, or a backup"}, nil
		}
		if err := lease.Pause(ctx, 20*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// sightSQL compares what this role sees in a segment with the server's own count of committed rows, which no policy,
// index or catalogue entry affects. It looks at no more than 32 blocks, spread evenly by their position on disk,
// without an index. Rolled back rows also leave blocks without a visible row, and aren't counted. The count alone can
// be too high by what a session reports late.
const sightSQL = `
SELECT s.live, s.seen FROM (
	SELECT pg_stat_get_live_tuples($1::text::regclass) AS live, count(*) FILTER (WHERE b.n = 0) AS blank, count(*) AS looked,
		(sum(b.n) * max(t.blocks) / count(*))::bigint AS seen
	FROM (SELECT pg_relation_size($1::text::regclass) / current_setting('block_size')::bigint AS blocks) t
	CROSS JOIN LATERAL (SELECT i * t.blocks / least(t.blocks, 32) AS block FROM generate_series(0, least(t.blocks, 32) - 1) i) p
	CROSS JOIN LATERAL (SELECT count(*) AS n FROM ONLY %s m
		WHERE m.ctid >= format('(%%s,0)', p.block)::tid AND m.ctid < format('(%%s,0)', p.block + 1)::tid) b
) s WHERE s.blank * 2 >= s.looked AND s.live > 2 * s.seen`

// outOfSight keeps a segment that has rows of which this role sees next to nothing: cursors have passed the segment
// because the relay saw nothing either.
func outOfSight(ctx context.Context, conn *pgx.Conn, table string) (*KeptSegment, error) {
	var live, seen int64
	err := conn.QueryRow(ctx, fmt.Sprintf(sightSQL, table), table).Scan(&live, &seen)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("compare what is seen with what is there: %w", err)
	}
	return &KeptSegment{Table: table, Hidden: true,
		Reason: fmt.Sprintf("the server has counted %d messages in it and this role sees %d: find out what hides them; "+
			"if the count is wrong, run: ANALYZE %s", live, seen, table)}, nil
}

const lockNotAvailable = "55P03"

// truncate decides under the lock, which ensures that no open transaction has written to the segment. The check of the
// cursors is a later statement, so it sees all rows. A transaction that comes later waits, and writes into the empty
// segment. NOWAIT, because a wait for this lock would block all writers.
func (r *Retention) truncate(ctx context.Context, conn *pgx.Conn, table string) (kept *KeptSegment, err error) {
	err = lease.InTransaction(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "LOCK TABLE ONLY "+table+" IN ACCESS EXCLUSIVE MODE NOWAIT"); err != nil {
			return err
		}
		if kept, err = neededBy(ctx, tx, table); kept != nil || err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "TRUNCATE TABLE ONLY "+table)
		return err
	})
	return kept, err
}

// neededSQL lists the cursors over the segment's table that need one of its rows, that is, one that their prev doesn't
// see. The snapshots of a cursor of another cluster mean nothing here, so it counts as needing everything. If there is
// no cursor, one row reports that.
const neededSQL = `
SELECT c.destination, c.shard_group::integer, foreign_cursor
FROM outbox.cursors c
CROSS JOIN LATERAL (SELECT
	c.system_identifier <> (SELECT s.system_identifier FROM pg_control_system() s)
	OR pg_snapshot_xmax(c.prev) > pg_snapshot_xmax(pg_current_snapshot()) AS foreign_cursor
) f
WHERE (c.destination LIKE '%[2]s%%') = $1 AND (foreign_cursor
	OR EXISTS (SELECT FROM ONLY %[1]s m WHERE m.xid >= pg_snapshot_xmax(c.prev))
	OR EXISTS (SELECT FROM ONLY %[1]s m WHERE m.xid = ANY (ARRAY(SELECT pg_snapshot_xip(c.prev)))))
UNION ALL
SELECT '', -1, false WHERE NOT EXISTS (SELECT FROM outbox.cursors c WHERE (c.destination LIKE '%[2]s%%') = $1)
ORDER BY 1, 2 LIMIT 1`

func neededBy(ctx context.Context, db cursors.Querier, table string) (*KeptSegment, error) {
	rows, err := db.Query(ctx, fmt.Sprintf(neededSQL, table, schema.InboxPrefix), strings.HasPrefix(table, schema.InboxMessages))
	if err != nil {
		return nil, fmt.Errorf("ask who needs it: %w", err)
	}
	kept, err := pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (*KeptSegment, error) {
		k := &KeptSegment{Table: table}
		var foreign bool
		err := row.Scan(&k.Destination, &k.Group, &foreign)
		switch {
		case k.Group < 0:
			k.Group = 0
			k.Reason = "no destination has a cursor yet"
		case foreign:
			k.Reason = "the cursor of destination " + strconv.Quote(k.Destination) +
				" is from another cluster: run: outbox rebase --destination " + k.Destination
		default:
			k.Reason = "destination " + strconv.Quote(k.Destination) + " has not settled all of it"
		}
		return k, err
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return replayedFrom(ctx, db, table)
	}
	if err != nil {
		return nil, fmt.Errorf("ask who needs it: %w", err)
	}
	return kept, nil
}

// replayedFrom reports that a replay still reads the segment.
func replayedFrom(ctx context.Context, db cursors.Querier, table string) (*KeptSegment, error) {
	segment, ok := strings.CutPrefix(table, schema.OutboxMessages+"_")
	if !ok {
		return nil, nil
	}
	rows, err := db.Query(ctx, schema.ReplayedBy(segment))
	if err != nil {
		return nil, fmt.Errorf("ask whether it is replayed: %w", err)
	}
	job, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[int64])
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ask whether it is replayed: %w", err)
	}
	return &KeptSegment{Table: table, Reason: fmt.Sprintf("job %d replays from it; to end that: outbox jobs stop %[1]d", job)}, nil
}
