package mapping

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/sqlstate"
)

// WriterLock makes the writers of a table take turns, so that ids are drawn in the order in which transactions commit.
// It is for a reader of "id > last" that is not ours, and for the relay's strategy serial if ids are drawn before the
// INSERT. Call Take in the transaction right before the id is drawn, after everything else that locks something, and
// commit soon: until then every other writer waits. All writers of a table must take the same lock.
type WriterLock struct {
	// Key is the number of an advisory lock. It is used unless Table is given.
	Key int64

	// Table is locked in SHARE ROW EXCLUSIVE mode, which conflicts with itself. (ROW EXCLUSIVE, which an INSERT takes
	// anyway, does not: writers would not wait for each other, and a reader of ids would lose what commits late.)
	Table string
}

// ErrWritersDeadlock means that a transaction waited for the writers' lock while the transaction that has it waited for
// a lock of this one.
var ErrWritersDeadlock = errors.New("mapping: the writers' lock and another lock wait for each other")

// ErrWritersTimeout means that another transaction kept the writers' lock for too long.
var ErrWritersTimeout = errors.New("mapping: the writers' lock is held by another transaction for too long")

var errNoTransaction = errors.New("mapping: tx is nil: begin a transaction and pass it, so that the lock is kept until it ends")

// Take waits for the lock, which tx keeps until it ends. After an error tx can only be rolled back; errors wrap
// ErrWritersDeadlock and ErrWritersTimeout if that is the reason.
func (l WriterLock) Take(ctx context.Context, tx pgx.Tx) error {
	if tx == nil {
		return errNoTransaction
	}
	if l.Table == "" {
		_, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1::bigint)", l.Key)
		return explainLock(err)
	}
	name, err := ParseTableName(l.Table)
	if err != nil {
		return fmt.Errorf("mapping: take the writers' lock: %w", err)
	}
	_, err = tx.Exec(ctx, "LOCK TABLE "+name.String()+" IN SHARE ROW EXCLUSIVE MODE")
	return explainLock(err)
}

// explainLock adds what to do about these two errors.
func explainLock(err error) error {
	if err == nil {
		return nil
	}
	switch sqlstate.Of(err) {
	case "40P01":
		return fmt.Errorf("%w: roll back and try again; to avoid it, take the lock after everything else that the "+
			"transaction locks, right before the insert: %w",
			ErrWritersDeadlock, err)
	case "55P03", "57014":
		return fmt.Errorf("%w: roll back and try again; to find it, look for the oldest xact_start in pg_stat_activity "+
			"among the holders in pg_locks: %w",
			ErrWritersTimeout, err)
	}
	return fmt.Errorf("mapping: take the writers' lock: %w", err)
}
