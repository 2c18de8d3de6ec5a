package replication

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/internal/sqlstate"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/wal"
)

// newSlot creates the destination's slot anew and returns where it begins. It waits for transactions that are open now,
// because decoding begins at a point from which it has seen complete transactions.
func (s *session) newSlot(ctx context.Context) (b boundary, err error) {
	conn, err := s.source.server().Connect(ctx)
	if err != nil {
		return b, err
	}
	defer dial.HangUp(conn)
	if err := s.dropSlot(ctx, conn); err != nil {
		return b, err
	}
	if b.version, err = Publication(ctx, conn, s.source.cfg.Publication); err != nil {
		return b, err
	}
	stream, err := s.source.server().ConnectWAL(ctx)
	if err != nil {
		return b, err
	}
	defer stream.HangUp()
	return b, b.create(ctx, stream.PgConn, conn, createSlot(s.source.cfg.Slot, conn, !s.source.cfg.WithoutFailover))
}

// createSlot returns the command. Since PostgreSQL 15 its options are in parentheses.
func createSlot(name string, conn *pgx.Conn, failover bool) string {
	command := "CREATE_REPLICATION_SLOT " + name + " LOGICAL pgoutput "
	switch v := dial.Major(conn); {
	case v < 15:
		return command + "EXPORT_SNAPSHOT"
	case v >= 17 && failover:
		return command + "(SNAPSHOT 'export', FAILOVER true)"
	default:
		return command + "(SNAPSHOT 'export')"
	}
}

// create runs command and reads the snapshot that it exports, which is valid until the next command.
func (b *boundary) create(ctx context.Context, stream *pgconn.PgConn, conn *pgx.Conn, command string) error {
	results, err := stream.Exec(ctx, command).ReadAll()
	if err != nil {
		return fmt.Errorf("create the replication slot: %w", err)
	}
	if len(results) != 1 || len(results[0].Rows) != 1 || len(results[0].Rows[0]) < 3 {
		return fmt.Errorf("create the replication slot: an unexpected answer")
	}
	row := results[0].Rows[0]
	if b.lsn, err = wal.ParseLSN(string(row[1])); err != nil {
		return err
	}
	return b.importSnapshot(ctx, conn, string(row[2]))
}

func (b *boundary) importSnapshot(ctx context.Context, conn *pgx.Conn, exported string) error {
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return fmt.Errorf("read the exported snapshot: %w", err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := tx.Exec(ctx, "SET TRANSACTION SNAPSHOT '"+exported+"'"); err != nil {
		return fmt.Errorf("read the exported snapshot: %w", err)
	}
	var text string
	if err := tx.QueryRow(ctx, "SELECT pg_current_snapshot()::text").Scan(&text); err != nil {
		return fmt.Errorf("read the exported snapshot: %w", err)
	}
	b.snapshot, err = normalised(text)
	return err
}

// normalised repairs the exported snapshot in one case: if nothing has committed since the oldest transaction ended,
// its xmax is before xmin, which pg_snapshot would refuse. Everything before xmin has ended.
func normalised(snapshot string) (string, error) {
	var xmin, xmax uint64
	if _, err := fmt.Sscanf(snapshot, "%d:%d:", &xmin, &xmax); err != nil {
		return "", fmt.Errorf("%q is not a pg_snapshot", snapshot)
	}
	if xmin > xmax {
		return fmt.Sprintf("%d:%d:", xmin, xmin), nil
	}
	return snapshot, nil
}

// dropSlot drops the destination's slot if there is one, and ends the process that streams from it. This session has
// the lease and keeps it meanwhile, so that process can only serve a session that has lost the lease.
func (s *session) dropSlot(ctx context.Context, conn *pgx.Conn) error {
	for {
		done, err := s.tryDropSlot(ctx, conn)
		if done || err != nil {
			return err
		}
		if err := s.source.server().Evict(ctx, conn, s.source.cfg.Slot); err != nil {
			return err
		}
		if err := dial.Pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

func (s *session) tryDropSlot(ctx context.Context, conn *pgx.Conn) (done bool, err error) {
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		// The lock prevents others from taking the lease until the slot is gone.
		tag, err := tx.Exec(ctx, "SELECT FROM outbox.cursors WHERE destination = $1 AND shard_group = 0 AND epoch = $2 FOR SHARE",
			s.source.destination, s.table.Epoch())
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return relay.ErrLeaseLost
		}
		_, err = tx.Exec(ctx, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = "+
			"ANY ($1::text[]) AND plugin = 'pgoutput' AND database = current_database()",
			[]string{s.source.cfg.Slot, s.formerSlot})
		return err
	})
	switch {
	case err == nil:
		return true, nil
	case sqlstate.Of(err) == "55006": // a process streams from it
		return false, nil
	case sqlstate.Of(err) == "42704": // another session has dropped it
		return false, nil
	case errors.Is(err, relay.ErrLeaseLost):
		return false, err
	}
	return false, fmt.Errorf("drop the replication slot: %w", err)
}

// abandonSlot drops a slot that is no longer read, so that it doesn't retain the log.
func (s *session) abandonSlot(ctx context.Context) error {
	conn, err := s.source.server().Connect(ctx)
	if err != nil {
		return err
	}
	defer dial.HangUp(conn)
	return s.dropSlot(ctx, conn)
}

// distrust removes the position, and reports whether this session has the lease.
func (s *session) distrust(ctx context.Context, conn *pgx.Conn, reason string) (owned bool, err error) {
	tag, err := conn.Exec(ctx, distrustSQL, s.source.destination, s.table.Epoch(), s.ttl().Microseconds(),
		s.source.cfg.Slot, s.source.cfg.Publication, reason)
	return tag.RowsAffected() == 1, err
}

// distrustSQL removes the position.
const distrustSQL = `
WITH owned AS (
	UPDATE outbox.cursors SET lease_until = clock_timestamp() + $3::bigint * interval '1 microsecond'
	WHERE destination = $1 AND shard_group = 0 AND epoch = $2 RETURNING destination
)
UPDATE outbox.slots s SET position = NULL, partial_lsn = NULL, partial_count = 0, fallback = NULL, slot = $4, publication = $5,
	fallback_lsn = NULL, lost_at = CASE WHEN $6 = '' THEN s.lost_at ELSE clock_timestamp() END,
	lost_reason = CASE WHEN $6 = '' THEN s.lost_reason ELSE $6 END, updated_at = clock_timestamp()
FROM owned WHERE s.destination = owned.destination`
