package replication

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/relay/internal/dial"
	"github.com/pgoutbox/outbox/schema"
)

// HandoverConfig says who hands over, for the audit.
type HandoverConfig struct {
	Actor  string // required
	Reason string

	// Abandon goes over to the table without a relay: for a destination that nobody owns, because the log can't be
	// read any more. What was delivered in the last moments comes twice, and messages that were emitted without a row and
	// not read are lost.
	Abandon bool

	// Observe, if not nil, is told once a second what is still waited for.
	Observe func(waitsFor string)
}

// ErrNotReplicated says that no relay reads the destination with the strategy replication.
var ErrNotReplicated = errors.New("the destination is not read with the strategy replication")

// ErrOwned says that a destination can't be abandoned, because a relay owns it.
var ErrOwned = errors.New("a relay owns the destination")

// Handover has the relay that owns the destination read the table from now on (ModeSnapshot) or the log
// (ModeReplication), and returns when it does: nothing is lost, comes twice or out of order by it. The relay goes on
// delivering meanwhile. When ctx ends earlier the wish stays, and is fulfilled when it can be.
//
// The relays have to be of the strategy replication, which does both. After a handover to ModeSnapshot the slot is
// gone, and they can be replaced by relays of the strategy snapshot. The way back begins with replacing those.
func Handover(ctx context.Context, conn *pgx.Conn, destination string, to Mode, cfg HandoverConfig) error {
	if cfg.Actor == "" {
		return errors.New("replication: handover: there is no actor for the audit")
	}
	if to != ModeReplication && to != ModeSnapshot {
		return fmt.Errorf("replication: handover: to %q: it must be %s or %s", to, ModeReplication, ModeSnapshot)
	}
	if cfg.Abandon && to != ModeSnapshot {
		return errors.New("replication: handover: only the log can be abandoned, for the table")
	}
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, "UPDATE outbox.slots SET mode = $2 WHERE destination = $1", destination, to)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return fmt.Errorf("%w: set strategy: replication for it in the configuration of its relays and restart them; "+
				"the one that takes over goes on where the table's reader stood", ErrNotReplicated)
		}
		_, err = tx.Exec(ctx, `INSERT INTO outbox.audit (actor, verb, destination, detail, reason)
			VALUES ($1, 'handover', $2, jsonb_build_object('to', $3::text, 'abandoned', $5::boolean), nullif($4, ''))`,
			cfg.Actor, destination, to, cfg.Reason, cfg.Abandon)
		if err == nil && cfg.Abandon {
			err = abandon(ctx, tx, destination)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("hand destination %q over: %w", destination, err)
	}
	return awaitHandover(ctx, conn, destination, to, cfg.Observe)
}

// abandon leaves the log for the cursor, of which everything that it sees is settled. The next epoch keeps a relay
// that is only late from writing on. The slot is dropped at once, whatever becomes of the transaction: so last.
func abandon(ctx context.Context, tx pgx.Tx, destination string) error {
	tag, err := tx.Exec(ctx, `UPDATE outbox.cursors SET epoch = epoch + 1, updated_at = clock_timestamp()
		WHERE destination = $1 AND shard_group = 0 AND NOT (`+schema.Leased+`)`, destination)
	if err != nil {
		return err
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("%w, and can hand it over: leave out --abandon, or stop that relay", ErrOwned)
	}
	var slot string
	err = tx.QueryRow(ctx, `UPDATE outbox.slots SET position = NULL, partial_lsn = NULL, partial_count = 0, fallback = NULL,
		updated_at = clock_timestamp() WHERE destination = $1 RETURNING slot`, destination).Scan(&slot)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
		WHERE slot_name = $1 AND plugin = 'pgoutput' AND database = current_database()`, slot)
	return err
}

func awaitHandover(ctx context.Context, conn *pgx.Conn, destination string, to Mode, observe func(string)) error {
	told := time.Now()
	for {
		var streams, slot, owned bool
		var oldest *string
		err := conn.QueryRow(ctx, `SELECT p.position IS NOT NULL, s.slot_name IS NOT NULL, `+schema.Leased+`,
			(SELECT format('process %s has a transaction open since %s', a.pid, date_trunc('second', a.xact_start))
				FROM pg_stat_activity a WHERE a.backend_xid IS NOT NULL AND a.pid <> pg_backend_pid() ORDER BY a.xact_start LIMIT 1)
			FROM outbox.slots p
			JOIN outbox.cursors c ON c.destination = p.destination AND c.shard_group = 0
			LEFT JOIN pg_replication_slots s ON s.slot_name = p.slot
			WHERE p.destination = $1`, destination).Scan(&streams, &slot, &owned, &oldest)
		if err != nil {
			return fmt.Errorf("wait for the handover of destination %q: %w", destination, err)
		}
		if to == ModeReplication && streams || to == ModeSnapshot && !streams && !slot {
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
		if err := dial.Pause(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("wait for the handover of destination %q, which goes on: %w", destination, err)
		}
	}
}
