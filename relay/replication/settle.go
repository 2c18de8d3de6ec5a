package replication

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/cursors"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/wal"
)

// moveSQL stores a destination's progress, if the lease still has this epoch and the publication has the version that
// the stream was read through. It also takes a fallback: the snapshot is the statement's, so what it sees has
// committed before the position that is read after it.
//
// The publication is looked up by the same snapshot. So no fallback is taken, and none becomes the cursor, while
// inserts may not have been sent.
const moveSQL = `
WITH moved AS (
	UPDATE outbox.cursors SET prev = $3::text::pg_snapshot, windows = '{}', last_id = 0, delivered = delivered + $4,
		lease_until = clock_timestamp() + $5::bigint * interval '1 microsecond', updated_at = clock_timestamp()
	WHERE destination = $1 AND shard_group = 0 AND epoch = $2
	AND $6 = (` + versionSQL + `$10)
	RETURNING destination
)
UPDATE outbox.slots s SET position = $7::text::pg_lsn, partial_lsn = nullif($8::text, '0/0')::pg_lsn, partial_count = $9,
	publication_version = $6, fallback = $3::text::pg_snapshot, fallback_lsn = $11::text::pg_lsn, updated_at = clock_timestamp()
FROM moved WHERE s.destination = moved.destination
RETURNING pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text, s.mode, ` + standbysSQL

var errPublicationChanged = errors.New("the publication was dropped or changed, or a segment was made UNLOGGED, " +
	"while the log was being read through it")

// store writes the progress, and the other changes of settlement, if that isn't nil.
func (s *session) store(ctx context.Context, settlement *relay.Settlement) error {
	return s.table.Write(ctx, func(ctx context.Context, conn *pgx.Conn) (bool, error) {
		s.mu.Lock()
		if !s.streaming {
			s.mu.Unlock()
			return s.renew(ctx, conn, settlement)
		}
		delivered := 0
		if settlement != nil {
			delivered = settlement.Delivered
			if settlement.Through != nil {
				s.progress.Settle(settlement.Through.Window)
			}
		}
		at := s.progress.Mark
		prev, _ := s.table.Prev()
		prev = s.fallback.advance(at.Position, prev)
		s.mu.Unlock()

		next, err := s.move(ctx, conn, prev, delivered, at, settlement)
		if err != nil || next == nil {
			return false, err
		}
		if err := s.table.MoveTo(prev); err != nil {
			return false, err
		}
		seen, err := cursors.Parse(next.snapshot)
		if err != nil {
			return false, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.stored = at
		s.mode, s.standbys, s.end = next.mode, next.standbys, next.lsn
		s.unseen = slices.DeleteFunc(s.unseen, seen.Sees)
		s.fallback.note(next.snapshot, next.lsn)
		return true, nil
	})
}

// moved is what moveSQL returns.
type moved struct {
	snapshot string
	lsn      wal.LSN
	mode     mode
	standbys bool
}

// move returns nil if another relay has the lease.
func (s *session) move(ctx context.Context, conn *pgx.Conn, prev string,
	delivered int, at wal.Mark, settlement *relay.Settlement) (next *moved, err error) {
	if settlement == nil || !outcomesOf(settlement) {
		return s.moveRow(ctx, conn, prev, delivered, at)
	}
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, func(tx pgx.Tx) error {
		// This comes first, for its row lock: no other relay can take the lease from here until the commit.
		if next, err = s.moveRow(ctx, tx, prev, delivered, at); err != nil || next == nil {
			return err
		}
		return s.storeOutcomes(ctx, tx, settlement)
	})
	return next, err
}

type queryRower interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func (s *session) moveRow(ctx context.Context, db queryRower, prev string, delivered int, at wal.Mark) (*moved, error) {
	var next moved
	var lsn string
	s.mu.Lock()
	covers := s.fallback.covers
	s.mu.Unlock()
	err := db.QueryRow(ctx, moveSQL, s.source.destination, s.table.Epoch(), prev, delivered, s.ttl().Microseconds(), s.version,
		at.Position.String(), at.Partial.Commit.String(), at.Partial.Count, s.source.cfg.Publication, covers.String()).
		Scan(&next.snapshot, &lsn, &next.mode, &next.standbys)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, s.whyNotMoved(ctx, db)
	}
	if err == nil {
		next.lsn, err = wal.ParseLSN(lsn)
	}
	if err != nil {
		return nil, fmt.Errorf("move the position: %w", err)
	}
	return &next, nil
}

// whyNotMoved returns nil if the lease was lost.
func (s *session) whyNotMoved(ctx context.Context, db queryRower) error {
	var mine bool
	err := db.QueryRow(ctx, `SELECT EXISTS (SELECT FROM outbox.cursors WHERE destination = $1 AND shard_group = 0 AND epoch = $2)`,
		s.source.destination, s.table.Epoch()).Scan(&mine)
	if err != nil {
		return fmt.Errorf("ask for the lease: %w", err)
	}
	if mine {
		return fmt.Errorf("%w: %q", errPublicationChanged, s.source.cfg.Publication)
	}
	return nil
}

// renew is store while the table is read. The table's own settlement moves the cursor, so settlement can only have
// holds here: it began while the log was read.
func (s *session) renew(ctx context.Context, conn *pgx.Conn, settlement *relay.Settlement) (owned bool, err error) {
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, func(tx pgx.Tx) error {
		delivered := 0
		if settlement != nil {
			delivered = settlement.Delivered
		}
		tag, err := tx.Exec(ctx, `UPDATE outbox.cursors SET lease_until = clock_timestamp() + $3::bigint * interval '1 microsecond',
			delivered = delivered + $4 WHERE destination = $1 AND shard_group = 0 AND epoch = $2`,
			s.source.destination, s.table.Epoch(), s.ttl().Microseconds(), delivered)
		if owned = tag.RowsAffected() == 1; err != nil || !owned || settlement == nil {
			return err
		}
		return s.storeOutcomes(ctx, tx, settlement)
	})
	return owned, err
}

// Settle moves the position and writes holds and dead letters in one transaction.
func (s *session) Settle(ctx context.Context, settlement relay.Settlement) error {
	s.mu.Lock()
	streaming := s.streaming
	s.mu.Unlock()
	if !streaming {
		return s.table.Settle(ctx, settlement)
	}
	if err := s.store(ctx, &settlement); err != nil {
		return err
	}
	select {
	case s.settled <- struct{}{}:
	default:
	}
	return nil
}

func (s *session) Lanes(ctx context.Context, after string, limit int) ([]string, string, error) {
	return s.table.Lanes(ctx, after, limit)
}

func (s *session) Due(ctx context.Context, q relay.DueQuery) ([]relay.HeldLane, error) {
	return s.table.Due(ctx, q)
}

func (s *session) Controls(ctx context.Context) (relay.Controls, error) { return s.table.Controls(ctx) }

func (s *session) Held(ctx context.Context, lanes []string, limit int) ([][]relay.Delivery, error) {
	return s.table.Held(ctx, lanes, limit)
}

func (s *session) Recognize(ctx context.Context, identity []string) error {
	return s.table.Recognize(ctx, identity)
}

var _ relay.Coupled = (*session)(nil)

// Confirm stores the progress; it fails if another relay has the lease.
func (s *session) Confirm(ctx context.Context) error { return s.store(ctx, nil) }

// Passed uses the fallback cursor, which lags a little. Messages that were emitted without a row have no transaction to
// compare, and stay in doubt.
func (s *session) Passed(ref uint64, position int64) bool {
	return ref != 0 && s.table.Passed(ref, position)
}

// Whole is true: the log has no shard groups.
func (s *session) Whole() bool { return true }

func (s *session) Expires() time.Time { return s.table.Expires() }

// standbysSQL reports whether commits wait for synchronous standbys. The server sends the log before they have it.
const standbysSQL = "current_setting('synchronous_standby_names') <> ''"
