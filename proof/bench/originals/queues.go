package originals

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// nothing is how long those with an empty outbox sleep.
const nothing = 5 * time.Second

// longTx publishes within the transaction that holds the rows. Two workers invert the order of a key.
func (w *worker) longTx(ctx context.Context) (time.Duration, error) {
	wait := nothing
	err := pgx.BeginFunc(ctx, w.conn, func(tx pgx.Tx) error {
		batch, err := read(ctx, tx, false,
			"SELECT id, topic, key, payload FROM outbox_messages ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED", w.Batch)
		if err != nil || len(batch) == 0 {
			return err
		}
		wait = 0
		if _, err := w.publish(ctx, batch...); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "DELETE FROM outbox_messages WHERE id = ANY($1)", ids(batch))
		return err
	})
	return wait, err
}

// advisoryLock lets one worker at a time work, in the order of the table.
func (w *worker) advisoryLock(ctx context.Context) (time.Duration, error) {
	if _, err := w.conn.Exec(ctx, "SELECT pg_catalog.pg_advisory_lock(-1613257171, -31457281)"); err != nil {
		return 0, err
	}
	batch, err := read(ctx, w.conn, false, "SELECT id, topic, key, payload FROM outbox_messages ORDER BY id LIMIT $1", w.Batch)
	if err != nil {
		return 0, err
	}
	if len(batch) > 0 {
		if _, err := w.publish(ctx, batch...); err != nil {
			return 0, err
		}
		if _, err := w.conn.Exec(ctx, "DELETE FROM outbox_messages WHERE id = ANY($1)", ids(batch)); err != nil {
			return 0, err
		}
	}
	_, err = w.conn.Exec(ctx, "SELECT pg_catalog.pg_advisory_unlock(-1613257171, -31457281)")
	if len(batch) == 0 {
		return nothing, err
	}
	return 0, err
}

// shortTx reserves a batch by time in one statement, and deletes it in another. RETURNING has no order: that
// of keys is left to chance.
func (w *worker) shortTx(ctx context.Context) (time.Duration, error) {
	batch, err := read(ctx, w.conn, false, `
UPDATE outbox.outbox_messages SET available_after = $2
FROM (
  SELECT id FROM outbox.outbox_messages WHERE available_after < now() ORDER BY available_after LIMIT $1 FOR UPDATE SKIP LOCKED
) locked_messages
WHERE outbox_messages.id = locked_messages.id
RETURNING outbox_messages.id, topic, key, payload`, w.Batch, time.Now().Add(lockTimeout))
	if err != nil {
		return 0, err
	}
	if len(batch) == 0 {
		return nothing, nil
	}
	if _, err := w.publish(ctx, batch...); err != nil {
		return 0, err
	}
	_, err = w.conn.Exec(ctx, "DELETE FROM outbox.outbox_messages WHERE id = ANY($1)", ids(batch))
	return 0, err
}

// lockTimeout is how long rows and partitions stay reserved; no article gives a number.
const lockTimeout = 30 * time.Second
