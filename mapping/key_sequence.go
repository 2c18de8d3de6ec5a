package mapping

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/schema"
)

// KeySequence numbers the rows of each key in a table of your own: 1, 2, 3 and so on, without gaps.
//
// Locking the existing rows of a key, as is often done, doesn't protect a key that has no row yet: two transactions
// then draw the same number. Next locks the key itself.
type KeySequence struct {
	Table    string // such as "outbox" or "orders.outbox"
	Key      string // its column with the key
	Sequence string // its column with the number
}

// ErrIsolation means that a transaction can't see what has committed since it began.
var ErrIsolation = errors.New("mapping: the transaction's isolation level is not read committed")

// Next returns the next number of a key. Other transactions that need a number of the same key wait until tx ends. It
// takes one round trip, and looks up the highest number of a key, for which there should be an index on (key,
// sequence). tx must be READ COMMITTED, otherwise the error wraps ErrIsolation.
func (s KeySequence) Next(ctx context.Context, tx pgx.Tx, key string) (int64, error) {
	if tx == nil {
		return 0, errNoTransaction
	}
	name, err := ParseTableName(s.Table)
	if err != nil {
		return 0, fmt.Errorf("mapping: next number of a key: %w", err)
	}
	// There are two statements, so that the second sees everything that has committed before the lock was free.
	b := &pgx.Batch{}
	b.Queue("SELECT pg_advisory_xact_lock(hashtextextended($1::text || chr(10) || $2::text, 0))", name.String(), key)
	b.Queue(fmt.Sprintf("SELECT coalesce(max(%s), 0)::bigint + 1, current_setting('transaction_isolation') FROM %s "+
		"WHERE %s::text = $1::text",
		schema.QuoteIdentifier(s.Sequence), name, schema.QuoteIdentifier(s.Key)), key)
	results := tx.SendBatch(ctx, b)
	var next int64
	var isolation string
	_, err = results.Exec()
	if err == nil {
		err = results.QueryRow().Scan(&next, &isolation)
	}
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	switch {
	case err != nil:
		return 0, fmt.Errorf("mapping: next number of key %q: %w", key, explainLock(err))
	case isolation != "read committed" && isolation != "read uncommitted":
		return 0, fmt.Errorf("%w but %s: it would draw a number that another transaction has drawn since it began", ErrIsolation, isolation)
	}
	return next, nil
}
