package destinations

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/schema"
)

// Moved is the result of Move.
type Moved struct {
	Destination string   `json:"destination"`
	From        []string `json:"from"`
	// To are the names of the broker that a relay has refused; none: whichever the next relay has.
	To []string `json:"to"`
}

// Move lets a destination deliver to another broker than it did: to the one that a relay has refused last,
// or, if none has, to whichever the next relay has. Everything else stays: what the old broker has got isn't sent
// again, and what is held or dead goes to the new one. It is an ErrNotFound if no broker is recorded, and an ErrInUse
// while a relay delivers to the old one.
func Move(ctx context.Context, db admin.DB, name string, action admin.Action) (Moved, error) {
	out := Moved{Destination: name, To: []string{}}
	err := admin.Write(ctx, db, action, func(tx pgx.Tx) error {
		var by *string
		err := tx.QueryRow(ctx, `SELECT identity, coalesce(refused, '{}'), refused_by FROM outbox.brokers WHERE destination = $1 FOR UPDATE`, name).
			Scan(&out.From, &out.To, &by)
		if errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("%w: no broker is recorded for a destination of this name; the next relay records the one that it has",
				admin.ErrNotFound)
		}
		if err != nil {
			return err
		}
		if err := refuseDeliverer(ctx, tx, name, admin.Value(by)); err != nil {
			return err
		}
		sql := `UPDATE outbox.brokers SET identity = refused, relay = refused_by, recorded_at = clock_timestamp(),
			refused = NULL, refused_by = NULL, refused_at = NULL WHERE destination = $1`
		if by == nil {
			sql = `DELETE FROM outbox.brokers WHERE destination = $1`
		}
		if _, err := tx.Exec(ctx, sql, name); err != nil {
			return err
		}
		return admin.Record(ctx, tx, action, "move_destination", name, map[string]any{"from": out.From, "to": out.To})
	})
	if err != nil {
		return Moved{}, fmt.Errorf("move destination %s: %w", name, err)
	}
	return out, nil
}

// delivererSQL finds relays that deliver: those that are refused, or can't work with the database, don't.
const delivererSQL = `
SELECT DISTINCT owner FROM (
	SELECT owner, state FROM outbox.cursors WHERE destination = $1 AND ` + schema.LeasedSQL + `
	UNION ALL SELECT owner, state FROM outbox.tables WHERE destination = $1
	AND session IN (SELECT application_name FROM pg_stat_activity WHERE datname = current_database())) d
WHERE owner <> $2 AND state <> 'broken' ORDER BY owner`

func refuseDeliverer(ctx context.Context, tx pgx.Tx, name, refusedBy string) error {
	rows, err := tx.Query(ctx, delivererSQL, name, refusedBy)
	if err != nil {
		return fmt.Errorf("look for relays that deliver: %w", err)
	}
	owners, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(owners) == 0 {
		return err
	}
	return fmt.Errorf("%w: %s delivers to the broker that is recorded: stop it, or give it the new broker in its configuration, "+
		"and run this again", admin.ErrInUse, strings.Join(owners, ", "))
}
