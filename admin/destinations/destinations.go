// Package destinations changes a destination: it hands it over between table and log, rebases, moves and drops it.
package destinations

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/internal/sqlstate"
)

// Dropped lists what Drop removed, or would remove.
type Dropped struct {
	Destination string `json:"destination"`
	Cursors     int64  `json:"cursors"`
	// Pending is what had not been delivered and never will be.
	Pending     admin.Count `json:"pending"`
	Holds       int64       `json:"holds"`
	DeadLetters int64       `json:"dead_letters"`
	// Tables counts what relays noted about a table of its own, which stays as it is.
	Tables int64 `json:"tables,omitempty"`
	// Slot is its replication slot; "" if it had none.
	Slot string `json:"slot,omitempty"`
}

// Drop removes a destination that is no longer needed: its cursors, which would keep
// segments from being emptied forever, its holds and its dead letters. It is an ErrInUse while a relay
// holds its lease and an ErrNotFound if there is nothing of that name. A destination that comes back
// under the name later begins with everything that is still in the outbox. So it is an ErrInUse too while the relay
// that had the lease, and didn't give it back, still has the session: it is frozen or cut off, and would come back.
func Drop(ctx context.Context, db admin.DB, name string, action admin.Action) (Dropped, error) {
	out := Dropped{Destination: name}
	err := admin.Write(ctx, db, action, func(tx pgx.Tx) error {
		if err := admin.PreferIndexes(ctx, tx); err != nil {
			return err
		}
		// The rows stay locked: a relay can't take the lease from here on.
		if _, err := tx.Exec(ctx, `SELECT FROM outbox.cursors WHERE destination = $1 FOR UPDATE`, name); err != nil {
			return err
		}
		cursors, err := admin.ReadCursors(ctx, tx)
		if err != nil {
			return err
		}
		for i := range cursors {
			c := &cursors[i]
			if c.Destination != name {
				continue
			}
			if c.Live {
				return fmt.Errorf("%w: relay %s delivers to it: take it out of that relay's configuration and restart "+
					"it first", admin.ErrInUse, c.Owner)
			}
			b, err := health.ReadBacklog(ctx, tx, c)
			if err != nil {
				return err
			}
			out.Pending = out.Pending.Plus(b.Pending)
		}
		if err := refuseHolder(ctx, tx, name); err != nil {
			return err
		}
		for _, t := range []struct {
			table string
			n     *int64
		}{{"outbox.cursors", &out.Cursors}, {"outbox.holds", &out.Holds}, {"outbox.dead_letters", &out.DeadLetters},
			{"outbox.tables", &out.Tables}, {"outbox.tables_acknowledged", new(int64)}, {"outbox.brokers", new(int64)}} {
			tag, err := tx.Exec(ctx, `DELETE FROM `+t.table+` WHERE destination = $1`, name)
			if err != nil {
				return err
			}
			*t.n = tag.RowsAffected()
		}
		if out.Cursors+out.Holds+out.DeadLetters+out.Tables == 0 {
			return fmt.Errorf("%w: there is no such destination", admin.ErrNotFound)
		}
		err = admin.Record(ctx, tx, action, "drop_destination", name, map[string]any{
			"cursors": out.Cursors, "pending": out.Pending.N, "holds": out.Holds, "dead_letters": out.DeadLetters})
		if err != nil {
			return err
		}
		out.Slot, err = dropSlot(ctx, tx, name, action)
		return err
	})
	if err != nil {
		return Dropped{}, fmt.Errorf("drop destination %s: %w", name, err)
	}
	return out, nil
}

// holderSQL finds a session of a relay that delivered to a destination last and has not given the lease back, of those
// that were there then: a relay that was started again under its name may deliver elsewhere. The server cuts names.
const holderSQL = `
SELECT h.owner, a.pid FROM (
	SELECT owner, lease_until - lease AS seen FROM outbox.cursors WHERE destination = $1 AND lease_until > '-infinity'
	UNION ALL SELECT owner, updated_at FROM outbox.tables WHERE destination = $1
) h JOIN pg_stat_activity a ON a.datname = current_database() AND starts_with('outbox relay ' || h.owner, a.application_name)
	AND (a.application_name = 'outbox relay ' || h.owner OR octet_length(a.application_name) > 55) AND a.backend_start <= h.seen
ORDER BY a.pid LIMIT 1`

func refuseHolder(ctx context.Context, tx pgx.Tx, name string) error {
	var owner string
	var pid int
	switch err := tx.QueryRow(ctx, holderSQL, name).Scan(&owner, &pid); {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("look for the relay that delivered last: %w", err)
	}
	return fmt.Errorf("%w: relay %s delivered to it last and still has a session, frozen or cut off perhaps: it would make the "+
		"destination anew and send everything once more. Stop it, or take the destination out of its configuration; if its "+
		"host is gone, run: SELECT pg_terminate_backend(%d)", admin.ErrInUse, owner, pid)
}

// dropSlot drops a destination's slot, which would keep the log forever, and its row. A slot is dropped at
// once, whatever becomes of the transaction: so it comes last.
func dropSlot(ctx context.Context, tx pgx.Tx, destination string, action admin.Action) (slot string, err error) {
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
