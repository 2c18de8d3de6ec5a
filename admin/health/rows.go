package health

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/jobs"
	"github.com/pgoutbox/outbox/internal/printed"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/schema"
)

const (
	// countFor limits the time of a count in a user's table, which may have no index for it.
	countFor = time.Second

	// handledWithin is how much older than the last settlement a relay's own record of it may be: a relay writes that
	// every ten seconds, and loses what it has not written when it dies.
	handledWithin = 30 * time.Second

	// newestRows is how many of the newest rows are searched for rows that no relay has handled.
	newestRows = 1000
)

// smallTable is the size in bytes up to which a table is read as a whole to find its newest rows.
const smallTable = 64 << 20

// newestSQL returns how the newest rows of a table ($1) are found: by the column of their creation ($2) if an index
// leads with it. Without such an index, a number ($3) grows with time too. Any other id says nothing about time, so a
// small table is read as a whole.
const newestSQL = `
SELECT EXISTS (SELECT FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am am ON am.oid = c.relam
	JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
	WHERE i.indrelid = t.oid AND a.attname = $2 AND i.indpred IS NULL AND i.indisvalid AND am.amname = 'btree')
OR greatest(pg_relation_size(t.oid), (SELECT sum(pg_relation_size(relid)) FROM pg_partition_tree(t.oid))) <= $4::bigint
	AND NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = t.oid AND a.attname = $3
		AND a.atttypid IN ('smallint'::regtype, 'integer'::regtype, 'bigint'::regtype))
FROM (SELECT $1::text::regclass AS oid) t`

// countPassed looks at the newest rows for those that no relay has handled and that yet don't wait by the mapping. Of a
// strategy that marks no row, these are what waits. A status that the mapping doesn't name is told, and no more:
// writers may have some for rows that aren't to be delivered.
func (d *Destination) countPassed(ctx context.Context, tx pgx.Tx, name mapping.TableName, m mapping.Mapping, since time.Time,
	untold func(what, why string)) error {
	waits, dead, status := "false", "false", "NULL::text"
	var known []string // nil: rows have no status
	if m.Done.How != "" {
		waits = m.Unsettled()
	}
	if m.Done.How == mapping.DoneStatus {
		status = columnOf(m.Done.Column, "text")
		known = []string{m.Done.Waiting, m.Done.Value}
		if m.Failure.FailedValue != "" {
			dead = "m." + schema.QuoteIdentifier(m.Done.Column) + " = " + schema.QuoteLiteral(m.Failure.FailedValue)
			known = append(known, m.Failure.FailedValue)
		}
		if m.Claim.Status != "" {
			known = append(known, m.Claim.Status)
		}
	}
	newest, err := newestBy(ctx, tx, name, m)
	if err != nil {
		return err
	}
	var n, odd int64
	var oldest *time.Time
	var example string
	err = tx.QueryRow(ctx, fmt.Sprintf(`
		SELECT count(*) FILTER (WHERE passed), min(due) FILTER (WHERE passed), count(*) FILTER (WHERE odd AND NOT passed),
			coalesce(min(status) FILTER (WHERE odd AND NOT passed), 'NULL')
		FROM (SELECT *, coalesce(created > $1, false) AS passed, $3::text[] IS NOT NULL AND (status = ANY ($3)) IS NOT TRUE AS odd FROM (
			SELECT %s AS created, %s AS due, coalesce(%s, false) AS waits, coalesce(%s, false) AS dead, %s AS status
			FROM %s m WHERE %s IS NOT NULL ORDER BY %[7]s DESC LIMIT %[8]d) newest) s
		WHERE NOT waits AND NOT dead AND due <= clock_timestamp() - $2::bigint * interval '1 microsecond'`,
		columnOf(m.CreatedAt, "timestamptz"), dueOf(m), waits, dead, status, name, newest, newestRows),
		since, d.LagObjective.Microseconds(), known).Scan(&n, &oldest, &odd, &example)
	if err != nil {
		return err
	}
	if odd > 0 {
		untold("whether all rows were delivered", fmt.Sprintf("%s a status that the mapping does not name, such as %q, "+
			"and no relay delivers such rows", printed.Many(odd, "of the newest rows has", "of the newest rows have"), example))
	}
	found := admin.Count{N: n, Estimated: n == newestRows}
	if m.Done.How != "" {
		d.Table.Passed, d.Table.PassedSince = found, admin.Value(oldest)
		return nil
	}
	d.addWaiting(found, admin.Value(oldest))
	return nil
}

// addWaiting adds the rows that were found waiting, for a strategy that marks no rows.
func (d *Destination) addWaiting(found admin.Count, oldest time.Time) {
	if found.N > d.Pending.N {
		d.Pending = found
	}
	d.Oldest, d.Held.waiting = earliest(d.Oldest, oldest), earliest(d.Held.waiting, oldest)
}

// newestBy returns the column by which the newest rows are found: see newestSQL.
func newestBy(ctx context.Context, tx pgx.Tx, name mapping.TableName, m mapping.Mapping) (string, error) {
	var byAge bool
	err := tx.QueryRow(ctx, newestSQL, name.String(), m.CreatedAt, m.ID, smallTable).Scan(&byAge)
	if byAge {
		return "m." + schema.QuoteIdentifier(m.CreatedAt), err
	}
	return "m." + schema.QuoteIdentifier(m.ID), err
}

// dueOf returns, in SQL, when a row m of the table may be delivered.
func dueOf(m mapping.Mapping) string {
	return fmt.Sprintf("greatest(%s, %s)", columnOf(m.CreatedAt, "timestamptz"), columnOf(m.DeliverAt, "timestamptz"))
}

// columnOf returns a column of a row m, cast to a type; NULL if the mapping has none.
func columnOf(name, kind string) string {
	if name == "" {
		return "NULL::" + kind
	}
	return "m." + schema.QuoteIdentifier(name) + "::" + kind
}

// bounded runs f in a savepoint, and each of its statements for a moment only: a failure of f leaves tx usable.
func bounded(ctx context.Context, tx pgx.Tx, f func(tx pgx.Tx) error) error {
	inner, err := tx.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = inner.Rollback(context.WithoutCancel(ctx)) }() // the settings go with it
	if _, err := inner.Exec(ctx, fmt.Sprintf("SET LOCAL statement_timeout = %d", countFor.Milliseconds())); err != nil {
		return err
	}
	return f(inner)
}

// countWaiting takes rows that have failed before for held ones.
func (d *Destination) countWaiting(ctx context.Context, tx pgx.Tx, name mapping.TableName, m mapping.Mapping,
	untold func(what, why string)) error {
	tried := "false"
	switch counted := 0; {
	case m.Failure.Attempts != "":
		if m.Claim.Counts {
			counted = 1 // the attempt that is being made
		}
		tried = fmt.Sprintf("coalesce(%s, 0) > %d", columnOf(m.Failure.Attempts, "bigint"), counted)
	case m.Failure.Error != "":
		tried = columnOf(m.Failure.Error, "text") + " IS NOT NULL"
	default:
		untold("failures", "no column is named for attempts or errors")
	}
	blocked := m.Blocked()
	switch {
	case blocked == "":
		blocked = "false"
	case tried != "false": // those behind them have the same mark
		blocked += " AND " + tried
	}
	var n, failed, blocks int64
	var oldest, waiting, since, blockedSince *time.Time
	var last string
	err := tx.QueryRow(ctx, fmt.Sprintf(`
		SELECT count(*), min(due) FILTER (WHERE due <= clock_timestamp()), min(due) FILTER (WHERE due <= clock_timestamp() AND NOT blocked),
		       count(*) FILTER (WHERE tried), min(coalesce(tried_at, due)) FILTER (WHERE tried AND NOT blocked),
		       count(*) FILTER (WHERE blocked), min(coalesce(tried_at, due)) FILTER (WHERE blocked),
		       coalesce((array_agg(error ORDER BY tried_at DESC NULLS LAST) FILTER (WHERE tried AND error IS NOT NULL))[1], '')
		FROM (SELECT %s AS due, %s AS tried, %s AS tried_at, %s AS error, coalesce(%s, false) AS blocked FROM %s m WHERE %s LIMIT %d) s`,
		dueOf(m), tried, columnOf(m.Failure.LastAttempt, "timestamptz"),
		columnOf(m.Failure.Error, "text"), blocked, name, m.Unsettled(), admin.CountLimit+1)).
		Scan(&n, &oldest, &waiting, &failed, &since, &blocks, &blockedSince, &last)
	if err != nil {
		return err
	}
	many := n > admin.CountLimit
	d.Pending, d.Oldest = admin.Count{N: n - failed, Estimated: many}, admin.Value(oldest)
	d.Held = Held{Messages: admin.Count{N: failed, Estimated: many}, Lanes: failed, LastError: last,
		FailingSince: admin.Value(since), waiting: admin.Value(waiting),
		Blocked: blocks, BlockedSince: admin.Value(blockedSince)}
	return nil
}

// countDead counts the dead letters of the destination's table. Those that are more than an operator has acknowledged
// are new: all, where the outbox has no table for that.
func (d *Destination) countDead(ctx context.Context, tx pgx.Tx, m mapping.Mapping, acknowledged bool) error {
	rows, err := jobs.DeadRowsOf(ctx, tx, d.Table.Strategy, m, false)
	if err != nil {
		return err
	}
	var known int64
	var knownAt *time.Time
	if acknowledged {
		err = tx.QueryRow(ctx, `SELECT coalesce(sum(messages), 0)::bigint, max(acknowledged_at) FROM outbox.tables_acknowledged WHERE destination = $1`,
			d.Name).Scan(&known, &knownAt)
		if err != nil {
			return err
		}
	}
	var n int64
	var since, newest *time.Time
	var last string
	err = tx.QueryRow(ctx, fmt.Sprintf(`
		SELECT count(*), min(at) FILTER (WHERE at > coalesce($1, '-infinity'::timestamptz)), max(at),
		       coalesce((array_agg(error ORDER BY at DESC NULLS LAST) FILTER (WHERE error IS NOT NULL))[1], '')
		FROM (SELECT %s AS at, %s AS error FROM %s m WHERE %s LIMIT %d) s`,
		rows.AtSQL(), rows.ErrorSQL(), rows.In.TableName(), rows.Where, known+admin.CountLimit+1), knownAt).Scan(&n, &since, &newest, &last)
	if err != nil {
		return err
	}
	more := n > known+admin.CountLimit
	d.Dead = Dead{Messages: admin.Count{N: n, Estimated: more}, Newest: admin.Value(newest),
		New: admin.Count{N: max(n-known, 0), Estimated: more}}
	if d.Dead.New.N > 0 {
		d.Dead.Since, d.Dead.LastError = admin.Value(since), last
	}
	return nil
}
