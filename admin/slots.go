package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/sqlstate"
)

// Slot is how a destination reads the write-ahead log.
type Slot struct {
	Name string `json:"name"`
	// Mode is what an operator wants: replication, or snapshot to have the table read.
	Mode string `json:"mode"`
	// Position is where the log is settled up to; "" while the table is read.
	Position string `json:"position,omitempty"`
	// Status is PostgreSQL's wal_status: reserved, extended, unreserved or lost; "" if there is no slot.
	Status string `json:"wal_status,omitempty"`
	// Kept is how many bytes of the log the server keeps for it.
	Kept int64 `json:"kept_bytes,omitempty"`

	// When a slot was lost last, and why.
	LostAt     time.Time `json:"lost_at,omitzero"`
	LostReason string    `json:"lost_reason,omitempty"`
}

// readSlots adds the slots of destinations that have one.
func (r *Report) readSlots(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, `SELECT p.destination, p.slot, p.mode, coalesce(p.position::text, ''), coalesce(s.wal_status, ''),
		coalesce(CASE WHEN pg_is_in_recovery() THEN 0 ELSE pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn) END, 0)::bigint,
		p.lost_at, coalesce(p.lost_reason, '')
		FROM outbox.slots p LEFT JOIN pg_replication_slots s ON s.slot_name = p.slot ORDER BY p.destination`)
	if err != nil {
		return err
	}
	var name string
	var s Slot
	var lost *time.Time
	_, err = pgx.ForEachRow(rows, []any{&name, &s.Name, &s.Mode, &s.Position, &s.Status, &s.Kept, &lost, &s.LostReason}, func() error {
		slot := s
		slot.LostAt = value(lost)
		r.destination(name).Slot = &slot
		return nil
	})
	return err
}

// dropSlot drops a destination's slot, which would keep the log forever, and its row. A slot is dropped at
// once, whatever becomes of the transaction: so it comes last.
func dropSlot(ctx context.Context, tx pgx.Tx, destination string, action Action) (slot string, err error) {
	err = tx.QueryRow(ctx, `DELETE FROM outbox.slots WHERE destination = $1 RETURNING slot`, destination).Scan(&slot)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", nil
	}
	if err != nil || action.DryRun {
		return slot, err
	}
	// One of another database or plugin only has the same name.
	_, err = tx.Exec(ctx, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
		WHERE slot_name = $1 AND plugin = 'pgoutput' AND database = current_database()`, slot)
	if sqlstate.Of(err) == "42501" {
		return slot, fmt.Errorf("its replication slot can only be dropped by a role that may replicate: run this as one, "+
			"or SELECT pg_drop_replication_slot('%s') first: %w", slot, err)
	}
	return slot, err
}
