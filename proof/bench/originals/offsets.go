package originals

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
)

// offset is a virtual partition's row.
type offset struct {
	id, partition, last int32
	transaction         uint64
	topic               string
}

// takePartition reserves the partition that was not looked at for longest. All false without one.
func (w *worker) takePartition(ctx context.Context, transactions bool) (o offset, found bool, err error) {
	columns, to := "outbox_offsets.id, partition, last_processed_id, topic", []any{&o.id, &o.partition, &o.last, &o.topic}
	if transactions {
		columns, to = columns+", last_processed_transaction_id", append(to, &o.transaction)
	}
	err = w.conn.QueryRow(ctx, `
UPDATE outbox_offsets SET available_after = $1
FROM (
  SELECT id FROM outbox_offsets WHERE available_after < now() ORDER BY available_after LIMIT 1 FOR UPDATE SKIP LOCKED
) locked_offsets
WHERE outbox_offsets.id = locked_offsets.id
RETURNING `+columns, time.Now().Add(lockTimeout)).Scan(to...)
	if errors.Is(err, pgx.ErrNoRows) {
		return o, false, nil
	}
	return o, err == nil, err
}

// partitions is as printed. Its "transaction_id > last" beside the rule for ties skips the rest of a
// transaction that a batch has cut: those messages are lost.
func (w *worker) partitions(ctx context.Context) (time.Duration, error) {
	return w.byTransaction(ctx, "transaction_id > $3 AND ")
}

// repaired is partitions with the least repair. The condition stays, because the index is read from there on.
func (w *worker) repaired(ctx context.Context) (time.Duration, error) {
	return w.byTransaction(ctx, "transaction_id >= $3 AND ")
}

func (w *worker) byTransaction(ctx context.Context, printed string) (time.Duration, error) {
	o, found, err := w.takePartition(ctx, true)
	if err != nil || !found {
		return nothing, err
	}
	batch, err := read(ctx, w.conn, true, `
SELECT id, topic, key, payload, transaction_id FROM outbox_messages
WHERE topic = $1 AND partition = $2 AND `+printed+`
  (transaction_id > $3 OR transaction_id = $3 AND id > $4) AND
  transaction_id < pg_snapshot_xmin(pg_current_snapshot())
ORDER BY transaction_id, id LIMIT $5`, o.topic, o.partition, o.transaction, o.last, w.Batch)
	if err != nil {
		return 0, err
	}
	if len(batch) == 0 {
		return 0, w.rest(ctx, o)
	}
	if err := w.publishInTransaction(ctx, batch); err != nil {
		return 0, err
	}
	last := batch[len(batch)-1]
	_, err = w.conn.Exec(ctx, `
UPDATE outbox_offsets SET available_after = now(), last_processed_transaction_id = $2, last_processed_id = $3 WHERE id = $1`, o.id, last.tx, last.id)
	return 0, err
}

// rest keeps workers from a partition without messages for a while.
func (w *worker) rest(ctx context.Context, o offset) error {
	_, err := w.conn.Exec(ctx, "UPDATE outbox_offsets SET available_after = $2 WHERE id = $1", o.id, time.Now().Add(nothing))
	return err
}

// publishInTransaction publishes all of a batch or, for those who read what is committed, nothing.
func (w *worker) publishInTransaction(ctx context.Context, batch []message) error {
	if err := w.client.BeginTransaction(); err != nil {
		return err
	}
	if _, err := w.publish(ctx, batch...); err != nil {
		return err
	}
	return w.client.EndTransaction(ctx, kgo.TryCommit)
}

// serialWrites relies on writers that take turns.
func (w *worker) serialWrites(ctx context.Context) (time.Duration, error) {
	o, found, err := w.takePartition(ctx, false)
	if err != nil || !found {
		return nothing, err
	}
	batch, err := read(ctx, w.conn, false, `
SELECT id, topic, key, payload FROM outbox_messages WHERE topic = $1 AND "partition" = $2 AND id > $3 ORDER BY id LIMIT $4`,
		o.topic, o.partition, o.last, w.Batch)
	if err != nil {
		return 0, err
	}
	if len(batch) == 0 {
		return 0, w.rest(ctx, o)
	}
	if _, err := w.publish(ctx, batch...); err != nil {
		return 0, err
	}
	_, err = w.conn.Exec(ctx, "UPDATE outbox_offsets SET available_after = now(), last_processed_id = $2 WHERE id = $1",
		o.id, batch[len(batch)-1].id)
	return 0, err
}
