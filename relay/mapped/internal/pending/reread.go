package pending

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/mapped/internal/existing"
)

// Reread reads rows by their ids if they still wait, in no order. clause is appended, to lock them.
func Reread(ctx context.Context, conn *pgx.Conn, t *existing.Table, list []Hold, clause string) ([]relay.Delivery, []existing.Row, error) {
	sql := fmt.Sprintf("SELECT %s FROM %s m WHERE %s = ANY($1::text[]::%s[]) AND %s %s",
		t.Columns, t.Name, t.ID, t.IDType, t.Waiting, clause)
	ds, rows, err := t.QueryEach(ctx, conn, nil, nil, false, sql, holdIDs(list))
	if err != nil {
		return nil, nil, fmt.Errorf("read rows again: %w", existing.Explain(err))
	}
	return ds, rows, nil
}

// Untaken returns which of the listed rows wait and could not be taken; taken has the others.
func Untaken(ctx context.Context, conn *pgx.Conn, t *existing.Table, list []Hold, taken []existing.Row,
	waits string) (map[string]bool, error) {
	if len(taken) == len(list) {
		return nil, nil
	}
	rows, err := conn.Query(ctx, fmt.Sprintf("SELECT %s::text FROM %s m WHERE %s = ANY($1::text[]::%s[]) AND %s AND %s = ANY($2::bigint[])",
		t.ID, t.Name, t.ID, t.IDType, waits, t.IdentitySQL()), holdIDs(list), Identities(list))
	if err != nil {
		return nil, fmt.Errorf("read rows again: %w", existing.Explain(err))
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("read rows again: %w", existing.Explain(err))
	}
	untaken := make(map[string]bool, len(ids))
	for _, id := range ids {
		untaken[id] = true
	}
	for i := range taken {
		delete(untaken, taken[i].ID)
	}
	return untaken, nil
}

// Released returns the blocked heads that an operator has changed: their attempts were reset, or the time of the next
// attempt was changed. That is how an operator releases a blocked lane. A row that is gone is noticed when its lane is
// read.
func Released(ctx context.Context, conn *pgx.Conn, t *existing.Table, blocked []Hold) (refs []uint64, err error) {
	if len(blocked) == 0 {
		return nil, nil
	}
	ds, rows, err := Reread(ctx, conn, t, blocked, "")
	if err != nil {
		return nil, err
	}
	found, identities := make(map[string]*relay.Delivery, len(ds)), make(map[string]int64, len(ds))
	for i := range ds {
		found[rows[i].ID], identities[rows[i].ID] = &ds[i], rows[i].Identity
	}
	for _, b := range blocked {
		d := found[b.ID]
		if identities[b.ID] != b.Identity {
			d = nil
		}
		attempts := b.Attempts
		if t.Mapping.Claim.Counts {
			attempts-- // this row was not claimed, and was read as if it had been
		}
		counted := t.Mapping.Failure.Attempts != "" && d != nil && d.Attempts < attempts
		timed := t.Mapping.Failure.NextAttempt != "" && d != nil && !d.Blocked && (d.Invalid == nil || d.Attempts > 0)
		if d == nil || counted || timed {
			refs = append(refs, b.Ref)
		}
	}
	return refs, nil
}

// Identities lists the identities of rows.
func Identities(list []Hold) []int64 {
	all := make([]int64, len(list))
	for i := range list {
		all[i] = list[i].Identity
	}
	return all
}

func holdIDs(list []Hold) []string {
	ids := make([]string, len(list))
	for i := range list {
		ids[i] = list[i].ID
	}
	return ids
}
