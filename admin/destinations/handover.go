package destinations

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/schema"
)

// What a destination of the strategy replication can be read by.
const (
	ByLog   = "replication"
	ByTable = "snapshot"
)

// HandoverOptions tune a [Handover].
type HandoverOptions struct {
	// Abandon goes over to the table without a relay: for a destination without an owner, because the log can't be
	// read any more. What was delivered in the last moments comes twice, and messages that were emitted without a row
	// and not read are lost.
	Abandon bool

	// Observe, if not nil, is told once a second what is still waited for.
	Observe func(waitsFor string)
}

// Handover has the relay that owns the destination read the table from now on (ByTable) or the log (ByLog), and
// returns when it does: nothing is lost, comes twice or out of order by it. The relay goes on delivering meanwhile.
// When ctx ends earlier the wish stays, and is fulfilled when it can be. A destination that a relay owns can't be
// abandoned: ErrInUse.
//
// The relays have to be of the strategy replication, which does both. After a handover to the table the slot is
// gone, and they can be replaced by relays of the strategy snapshot. The way back begins with replacing those.
func Handover(ctx context.Context, db admin.DB, destination, to string, options HandoverOptions, action admin.Action) error {
	if to != ByLog && to != ByTable {
		return fmt.Errorf("handover: to %q: it must be %s or %s", to, ByLog, ByTable)
	}
	if options.Abandon && to != ByTable {
		return errors.New("handover: only the log can be abandoned, for the table")
	}
	err := admin.Write(ctx, db, action, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, "UPDATE outbox.slots SET mode = $2 WHERE destination = $1", destination, to)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return errors.New("it is not read with the strategy replication: set strategy: replication for it in the configuration of " +
				"its relays and restart them; the one that takes over goes on where the table's reader stood")
		}
		detail := map[string]any{"to": to, "abandoned": options.Abandon}
		if err := admin.Record(ctx, tx, action, "handover", destination, detail); err != nil {
			return err
		}
		if options.Abandon {
			return abandon(ctx, tx, destination, action.DryRun)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("hand destination %q over: %w", destination, err)
	}
	if action.DryRun {
		return nil
	}
	return awaitHandover(ctx, db, destination, to, options.Observe)
}

// abandon leaves the log for the cursor, of which everything that it sees is settled. The next epoch keeps a relay
// that is only late from writing on. The slot is dropped at once, whatever becomes of the transaction: so last.
func abandon(ctx context.Context, tx pgx.Tx, destination string, dry bool) error {
	tag, err := tx.Exec(ctx, `UPDATE outbox.cursors SET epoch = epoch + 1, updated_at = clock_timestamp()
		WHERE destination = $1 AND shard_group = 0 AND NOT (`+schema.LeasedSQL+`)`, destination)
	if err != nil {
		return err
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("%w: a relay owns the destination, and can hand it over: leave out --abandon, or stop that relay", admin.ErrInUse)
	}
	var slot string
	err = tx.QueryRow(ctx, `UPDATE outbox.slots SET position = NULL, partial_lsn = NULL, partial_count = 0, fallback = NULL,
		updated_at = clock_timestamp() WHERE destination = $1 RETURNING slot`, destination).Scan(&slot)
	if err != nil || dry {
		return err
	}
	_, err = tx.Exec(ctx, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
		WHERE slot_name = $1 AND plugin = 'pgoutput' AND database = current_database()`, slot)
	return err
}

func awaitHandover(ctx context.Context, db admin.DB, destination, to string, observe func(string)) error {
	timer := time.NewTicker(20 * time.Millisecond)
	defer timer.Stop()
	told := time.Now()
	for {
		var streams, slot, owned bool
		var oldest *string
		err := admin.Read(ctx, db, func(tx pgx.Tx) error {
			return tx.QueryRow(ctx, `SELECT p.position IS NOT NULL, s.slot_name IS NOT NULL, `+schema.LeasedSQL+`,
				(SELECT format('process %s has a transaction open since %s', a.pid, date_trunc('second', a.xact_start))
					FROM pg_stat_activity a WHERE a.backend_xid IS NOT NULL AND a.pid <> pg_backend_pid() ORDER BY a.xact_start LIMIT 1)
				FROM outbox.slots p
				JOIN outbox.cursors c ON c.destination = p.destination AND c.shard_group = 0
				LEFT JOIN pg_replication_slots s ON s.slot_name = p.slot
				WHERE p.destination = $1`, destination).Scan(&streams, &slot, &owned, &oldest)
		})
		if err != nil {
			return fmt.Errorf("wait for the handover of destination %q: %w", destination, err)
		}
		if to == ByLog && streams || to == ByTable && !streams && !slot {
			return nil
		}
		if observe != nil && time.Since(told) >= time.Second {
			told = time.Now()
			switch {
			case !owned:
				observe("no relay owns the destination: start one")
			case oldest != nil:
				observe("a replication slot begins when the transactions that are open have ended: " + *oldest)
			default:
				observe("messages in flight")
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the handover of destination %q, which goes on: %w", destination, ctx.Err())
		case <-timer.C:
		}
	}
}
