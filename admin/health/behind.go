package health

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/schema"
)

// What a strategy waits for. By transaction: the oldest one of the cluster, of those that are open in the snapshot. By
// number: those that have written to the table, or may have.
const (
	// Transactions that a strategy waits for. xmin waits for the oldest open transaction of the cluster. serial waits
	// for those that have written to the table, or may have.
	openXIDs = `l.locktype = 'transactionid' AND l.transactionid IN (SELECT x::xid FROM pg_snapshot_xip(pg_current_snapshot()) x)`
	writesTo = `l.locktype = 'relation' AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
		AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
		AND l.relation IN (WITH RECURSIVE tree AS (
			SELECT to_regclass($1)::oid AS oid UNION ALL SELECT i.inhrelid FROM pg_inherits i JOIN tree t ON i.inhparent = t.oid
		) SELECT oid FROM tree)`
)

// countUnread counts, among the newest rows, those that no offset has reached, and those of them that wait for a
// transaction. While rows are set aside, held, the offsets stay before rows that were delivered: so only the latter
// count.
func (d *Destination) countUnread(ctx context.Context, tx pgx.Tx, name mapping.TableName, m mapping.Mapping, held bool) error {
	offsets, err := mapping.ParseTableName(m.Offsets.Table)
	if err != nil {
		return err
	}
	place, reached, waits := "m."+schema.QuoteIdentifier(m.ID), "o.last_processed_id", "true"
	condition, args := writesTo, []any{name.String()}
	if d.Table.Strategy == mapping.XMin {
		x := "m." + schema.QuoteIdentifier(m.Offsets.Transaction)
		place, reached = "("+x+", "+place+")", "(o.last_processed_transaction_id, o.last_processed_id)"
		waits = x + " >= pg_snapshot_xmin(pg_current_snapshot())"
		condition, args = openXIDs, nil
	}
	open, err := openTransactions(ctx, tx, condition, args...)
	if err != nil {
		return err
	}
	if len(open) == 0 {
		waits = "false"
	}
	reached += " >= " + place
	if m.Offsets.Topic != "" {
		reached += " AND o.topic = " + columnOf(m.Offsets.Topic, "text")
	}
	if m.Offsets.Partition != "" {
		reached += " AND o.partition = " + columnOf(m.Offsets.Partition, "bigint")
	}
	newest, err := newestBy(ctx, tx, name, m)
	if err != nil {
		return err
	}
	var n, kept int64
	var oldest, since *time.Time
	err = tx.QueryRow(ctx, fmt.Sprintf(`
		SELECT count(*), min(due) FILTER (WHERE due <= clock_timestamp()), count(*) FILTER (WHERE waits), min(due) FILTER (WHERE waits AND due <= clock_timestamp())
		FROM (SELECT %s AS due, %s AS waits, NOT EXISTS (SELECT FROM %s o WHERE %s) AS unread
			FROM (SELECT * FROM %s m WHERE %s IS NOT NULL ORDER BY %[6]s DESC LIMIT %[7]d) m) s
		WHERE unread AND (waits OR NOT $1)`, dueOf(m), waits, offsets, reached, name, newest, newestRows), held).
		Scan(&n, &oldest, &kept, &since)
	if err != nil {
		return err
	}
	d.addWaiting(admin.Count{N: n, Estimated: n == newestRows}, admin.Value(oldest))
	if kept > 0 {
		d.Table.Behind, d.Table.Kept, d.Table.KeptSince = &open[0], admin.Count{N: kept, Estimated: kept == newestRows}, admin.Value(since)
	}
	return nil
}

// findLocked looks for a transaction of another program that has locked rows which wait. A row that several have locked
// tells of none.
func (d *Destination) findLocked(ctx context.Context, tx pgx.Tx, m mapping.Mapping) error {
	name, err := mapping.ParseTableName(m.Table)
	if err != nil {
		return err
	}
	rows := fmt.Sprintf("(SELECT m.xmax, %s AS due FROM %s m WHERE %s LIMIT %d) m", dueOf(m), name, m.Unsettled(), admin.CountLimit)
	const others = "l.locktype = 'transactionid' AND coalesce(a.application_name, '') NOT LIKE 'outbox %'"
	t := d.Table
	return bounded(ctx, tx, func(tx pgx.Tx) error {
		open, err := openTransactions(ctx, tx, others+" AND l.transactionid = ANY (ARRAY(SELECT DISTINCT m.xmax FROM "+rows+"))")
		if err != nil || len(open) == 0 {
			return err
		}
		var since *time.Time
		err = tx.QueryRow(ctx, "SELECT count(*), min(due) FILTER (WHERE due <= clock_timestamp()) FROM "+rows+
			" WHERE m.xmax IN (SELECT l.transactionid FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid WHERE l.granted AND "+
			others+")").Scan(&t.Kept.N, &since)
		t.Behind, t.KeptSince, t.Locked = &open[0], admin.Value(since), true
		return err
	})
}
