package mapping

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/schema"
)

// KeySequence numbers the rows of each key in a table of one's own: 1, 2, 3 and so on, without gaps.
//
// To lock the rows that a key has already, as is often done, keeps nobody out of a key that has none
// yet: two transactions then draw the same number. Next locks the key itself.
type KeySequence struct {
	Table    string // such as "outbox" or "orders.outbox"
	Key      string // its column with the key
	Sequence string // its column with the number
}

// ErrIsolation means that a transaction can't see what has committed since it began.
var ErrIsolation = errors.New("mapping: the transaction's isolation level is not read committed")

// Next returns the next number of a key. Other transactions that want one of the same key wait until tx
// ends. It costs one round trip, and asks for the highest number of a key, for which there should be an
// index on (key, sequence). tx must be READ COMMITTED, or the error wraps ErrIsolation.
func (s KeySequence) Next(ctx context.Context, tx pgx.Tx, key string) (int64, error) {
	if tx == nil {
		return 0, errNoTransaction
	}
	name, err := ParseTableName(s.Table)
	if err != nil {
		return 0, fmt.Errorf("mapping: next number of a key: %w", err)
	}
	// Two statements: the second sees what has committed until the lock was free.
	b := &pgx.Batch{}
	b.Queue("SELECT pg_advisory_xact_lock(hashtextextended($1::text || chr(10) || $2::text, 0))", name.String(), key)
	b.Queue(fmt.Sprintf("SELECT coalesce(max(%s), 0)::bigint + 1, current_setting('transaction_isolation') FROM %s WHERE %s::text = $1::text",
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
