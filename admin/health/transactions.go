package health

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/internal/printed"
	"github.com/pgoutbox/outbox/schema"
)

// readOpen finds writers by the lock that an INSERT takes and keeps until its transaction ends.
func (r *Report) readOpen(ctx context.Context, tx pgx.Tx) error {
	var err error
	r.Open, err = openTransactions(ctx, tx, `l.locktype = 'relation' AND l.mode = 'RowExclusiveLock'
		AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
		AND (l.relation = 'outbox.messages'::regclass
		     OR l.relation IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = 'outbox.messages'::regclass))`)
	r.Open = r.Open[:min(len(r.Open), 10)]
	return err
}

// openTransactions are those that have a lock of which the condition is true. The first one has drawn its number first,
// if the lock is that of its number, or else begun first. Any role may see locks.
func openTransactions(ctx context.Context, tx pgx.Tx, condition string, args ...any) ([]OpenTransaction, error) {
	rows, err := tx.Query(ctx, `
		SELECT DISTINCT ON (l.virtualtransaction)
		       coalesce(l.pid, 0), coalesce(p.gid, ''), coalesce(a.usename, p.owner, '')::text, coalesce(a.application_name, ''),
		       coalesce(a.state, ''), coalesce(a.xact_start, p.prepared), coalesce(left(regexp_replace(a.query, '[[:space:]]+', ' ', 'g'), 120), ''),
		       coalesce(age(l.transactionid), 0)
		FROM pg_locks l
		LEFT JOIN pg_stat_activity a ON a.pid = l.pid
		-- A prepared transaction has no pid, but holds the lock on its xid.
		LEFT JOIN pg_locks x ON l.pid IS NULL AND x.virtualtransaction = l.virtualtransaction AND x.locktype = 'transactionid'
		LEFT JOIN pg_prepared_xacts p ON p.transaction = x.transactionid
		WHERE l.granted AND `+condition+`
		ORDER BY l.virtualtransaction`, args...)
	if err != nil {
		return nil, fmt.Errorf("read open transactions: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (OpenTransaction, error) {
		var t OpenTransaction
		var since *time.Time
		err := row.Scan(&t.PID, &t.Prepared, &t.User, &t.Application, &t.State, &since, &t.Query, &t.age)
		t.Since = admin.Value(since)
		return t, err
	})
	if err != nil {
		return nil, fmt.Errorf("read open transactions: %w", err)
	}
	slices.SortStableFunc(list, func(a, b OpenTransaction) int {
		return cmp.Or(cmp.Compare(b.age, a.age), a.Since.Compare(b.Since))
	})
	return list, nil
}

// describe names the transaction: its process, user and program.
func (t OpenTransaction) describe(at time.Time) string {
	if t.Prepared != "" {
		return fmt.Sprintf("the prepared transaction %q", t.Prepared)
	}
	text := fmt.Sprintf("the transaction of process %d (", t.PID)
	for _, part := range []struct{ name, value string }{{"user", t.User}, {"application", t.Application}} {
		if part.value != "" {
			text += part.name + " " + part.value + ", "
		}
	}
	text += cmp.Or(t.State, "state unknown")
	if !t.Since.IsZero() {
		text += fmt.Sprintf(", open for %s", printed.Span(at.Sub(t.Since)))
	}
	if t.Query != "" && t.Query != "<insufficient privilege>" {
		text += ", statement: " + t.Query
	}
	return text + ")"
}

// advice returns what to do about a transaction that others wait for. Terminating it loses its work, so it is never the
// next command.
func (t OpenTransaction) advice() string {
	sql := fmt.Sprintf("SELECT pg_terminate_backend(%d)", t.PID)
	if t.Prepared != "" {
		sql = "ROLLBACK PREPARED " + schema.QuoteLiteral(t.Prepared)
	}
	return "have its owner end it; this SQL ends it and undoes what it did: " + sql
}

var errLocked = errors.New("the outbox's tables are locked")

// lockedFor is how long a relay must have waited for a transaction until the verdict names it. Transactions of
// operators and other relays last milliseconds.
const lockedFor = "1 second"

// awaitLocks is how long a statement waits for a lock. After that the report names who has the lock.
const awaitLocks = 2 * time.Second

// readHolders reads no table of the outbox, so it waits for no lock. Locks on a whole table, and on rows of the
// cursors, count although no relay waits at the moment: relays give up after a while, and try again later.
func (r *Report) readHolders(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, `
		WITH waiting AS (
			SELECT DISTINCT l.pid, regexp_replace(a.application_name, '^outbox [^ ]+ ', '') AS relay
			FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
			WHERE NOT l.granted AND l.waitstart < clock_timestamp() - interval '`+lockedFor+`'
			  AND a.datname = current_database() AND a.application_name LIKE 'outbox %'
		), holding AS (
			SELECT p.pid, w.relay, NULL AS mode FROM waiting w, unnest(pg_blocking_pids(w.pid)) AS p (pid)
			UNION
			SELECT l.pid, NULL, l.mode FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
			WHERE l.granted AND l.locktype = 'relation' AND l.pid IS NOT NULL
			  AND (l.mode = 'AccessExclusiveLock' OR l.mode IN ('RowShareLock', 'RowExclusiveLock') AND c.relname = 'cursors')
			  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND c.relnamespace = 'outbox'::regnamespace
		)
		SELECT a.pid, coalesce(a.usename, '')::text, coalesce(a.application_name, ''), coalesce(a.state, ''), a.xact_start,
		       coalesce(left(regexp_replace(a.query, '[[:space:]]+', ' ', 'g'), 120), ''), array_remove(array_agg(DISTINCT h.relay), NULL),
		       coalesce(bool_or(h.mode = 'AccessExclusiveLock'), false), coalesce(bool_or(h.mode LIKE 'Row%'), false)
		FROM holding h JOIN pg_stat_activity a ON a.pid = h.pid
		WHERE a.application_name NOT LIKE 'outbox %' AND coalesce(a.xact_start < clock_timestamp() - interval '`+lockedFor+`', true)
		GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY a.xact_start`)
	if err != nil {
		return fmt.Errorf("look for locks: %w", err)
	}
	r.Holders, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (Holder, error) {
		var h Holder
		var since *time.Time
		err := row.Scan(&h.PID, &h.User, &h.Application, &h.State, &since, &h.Query, &h.Relays, &h.Table, &h.Cursors)
		h.Since = admin.Value(since)
		return h, err
	})
	if err != nil {
		return fmt.Errorf("look for locks: %w", err)
	}
	return nil
}
