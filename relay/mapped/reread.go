package mapped

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/schema"
)

// reread reads rows by their ids if they still wait, in no order. clause is appended, to lock them.
func reread(ctx context.Context, conn *pgx.Conn, t *table, list []hold, clause string) ([]relay.Delivery, []row, error) {
	sql := fmt.Sprintf("SELECT %s FROM %s m WHERE %s = ANY($1::text[]::%s[]) AND %s %s",
		t.columns, t.name, t.id, t.idType, t.waiting, clause)
	var ds []relay.Delivery
	var rows []row
	read := func() (err error) {
		ds, rows, err = t.query(ctx, conn, nil, nil, sql, holdIDs(list))
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

// untaken returns which of the listed rows wait and could not be taken; taken has the others.
func untaken(ctx context.Context, conn *pgx.Conn, t *table, list []hold, taken []row, waits string) (map[string]bool, error) {
	if len(taken) == len(list) {
		return nil, nil
	}
	rows, err := conn.Query(ctx, fmt.Sprintf("SELECT %s::text FROM %s m WHERE %s = ANY($1::text[]::%s[]) AND %s AND %s = ANY($2::bigint[])",
		t.id, t.name, t.id, t.idType, waits, t.identitySQL()), holdIDs(list), identities(list))
	if err != nil {
		return nil, fmt.Errorf("read rows again: %w", explain(err))
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
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

// released returns the blocked heads that an operator has changed: their attempts were reset, or the time of the next
// attempt was changed. That is how an operator releases a blocked lane. A row that is gone is noticed when its lane is
// read.
func released(ctx context.Context, conn *pgx.Conn, t *table, blocked []hold) (refs []uint64, err error) {
	if len(blocked) == 0 {
		return nil, nil
	}
	ds, rows, err := reread(ctx, conn, t, blocked, "")
	if err != nil {
		return nil, err
	}
	there, known := make(map[string]*relay.Delivery, len(ds)), make(map[string]int64, len(ds))
	for i := range ds {
		there[rows[i].id], known[rows[i].id] = &ds[i], rows[i].identity
	}
	for _, b := range blocked {
		d := there[b.id]
		if known[b.id] != b.identity {
			d = nil
		}
		attempts := b.attempts
		if t.mapping.Claim.Counts {
			attempts-- // this row was not claimed, and was read as if it had been
		}
		counted := t.mapping.Failure.Attempts != "" && d != nil && d.Attempts < attempts
		timed := t.mapping.Failure.NextAttempt != "" && d != nil && !d.Blocked && (d.Invalid == nil || d.Attempts > 0)
		if d == nil || counted || timed {
			refs = append(refs, b.ref)
		}
	}
	return refs, nil
}

func identities(list []hold) []int64 {
	all := make([]int64, len(list))
	for i := range list {
		all[i] = list[i].identity
	}
	return all
}

func holdIDs(list []hold) []string {
	ids := make([]string, len(list))
	for i := range list {
		ids[i] = list[i].id
	}
	return ids
}
