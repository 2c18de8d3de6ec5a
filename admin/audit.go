package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// AuditEntry is one recorded action of an operator.
type AuditEntry struct {
	ID          int64           `json:"id"`
	At          time.Time       `json:"at"`
	Actor       string          `json:"actor"`
	Verb        string          `json:"verb"`
	Destination string          `json:"destination,omitempty"`
	Reason      string          `json:"reason,omitempty"`
	Detail      json.RawMessage `json:"detail"`
}

// AuditFilter selects entries. Fields that are set must all match.
type AuditFilter struct {
	Actor       string
	Verb        string
	Destination string
	Since       time.Time
	Before      int64 // only entries with a smaller ID: that of the last one of the page before
	Limit       int   // default 100, at most 1000
}

// Audit lists what operators did, newest first.
func Audit(ctx context.Context, db DB, f AuditFilter) (list []AuditEntry, err error) {
	var since any
	if !f.Since.IsZero() {
		since = f.Since
	}
	err = Read(ctx, db, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT id, at, actor, verb, coalesce(destination, ''), coalesce(reason, ''), detail FROM outbox.audit
			WHERE ($1 = '' OR actor = $1) AND ($2 = '' OR verb = $2) AND ($3 = '' OR destination = $3)
			AND ($4::timestamptz IS NULL OR at >= $4) AND ($5::bigint = 0 OR id < $5) ORDER BY id DESC LIMIT $6`,
			f.Actor, f.Verb, f.Destination, since, f.Before, PageSize(f.Limit))
		if err == nil {
			list, err = pgx.CollectRows(rows, pgx.RowToStructByPos[AuditEntry])
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the audit: %w", err)
	}
	return list, nil
}
