package originals

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// events gives its row locks up before it publishes: a second worker takes the same rows.
func (w *worker) events(ctx context.Context) (time.Duration, error) {
	var batch []message
	err := pgx.BeginFunc(ctx, w.conn, func(tx pgx.Tx) (err error) {
		batch, err = read(ctx, tx, false, `
SELECT id, aggregate_type, aggregate_id, payload FROM outbox_events WHERE published_at IS NULL ORDER BY created_at LIMIT $1 FOR UPDATE SKIP LOCKED`, w.Batch)
		return err
	})
	if err != nil {
		return 0, err
	}
	if len(batch) == 0 {
		return 300 * time.Millisecond, nil
	}
	for _, m := range batch {
		if _, err := w.publish(ctx, m); err != nil {
			return 0, err
		}
		if _, err := w.conn.Exec(ctx, "UPDATE outbox_events SET published_at = now() WHERE id = $1", m.id); err != nil {
			return 0, err
		}
	}
	return 0, nil
}

// scheduled publishes a batch at once, within a transaction, and notes the broker's partition of each.
func (w *worker) scheduled(ctx context.Context) (time.Duration, error) {
	wait := time.Second // the interval is left open
	err := pgx.BeginFunc(ctx, w.conn, func(tx pgx.Tx) error {
		batch, err := read(ctx, tx, false, `
SELECT id, topic, key, payload FROM outbox_event WHERE published_time IS NULL ORDER BY created_time ASC LIMIT $1 FOR UPDATE SKIP LOCKED`, w.Batch)
		if err != nil || len(batch) == 0 {
			return err
		}
		wait = 0
		results, err := w.publish(ctx, batch...)
		if err != nil {
			return err
		}
		partitions := make(map[string]int32) // of a topic: each has one
		for _, r := range results {
			partitions[r.Record.Topic] = r.Record.Partition
		}
		marks := &pgx.Batch{}
		for _, m := range batch {
			marks.Queue(`UPDATE outbox_event SET published_time = now(), published = true, ack_time = now(), partition_id = $2, updated_time = now() WHERE id = $1`,
				m.id, strconv.Itoa(int(partitions[m.topic])))
		}
		return tx.SendBatch(ctx, marks).Close()
	})
	return wait, err
}

// What the articles of polling and statuses set: it bounds their rates.
const (
	ten     = 10
	aSecond = time.Second
)

// polling publishes and marks one message after the other, within a transaction.
func (w *worker) polling(ctx context.Context) (time.Duration, error) {
	err := pgx.BeginFunc(ctx, w.conn, func(tx pgx.Tx) error {
		batch, err := read(ctx, tx, false, `
SELECT id, aggregate_type, aggregate_id, payload FROM outbox WHERE processed_at IS NULL ORDER BY created_at LIMIT $1 FOR UPDATE SKIP LOCKED`, ten)
		if err != nil {
			return err
		}
		for _, m := range batch {
			if _, err := w.publish(ctx, m); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, "UPDATE outbox SET processed_at = NOW() WHERE id = $1", m.id); err != nil {
				return err
			}
		}
		return nil
	})
	return aSecond, err
}

// statuses takes ten messages of each kind once a second: its rate is that.
func (w *worker) statuses(ctx context.Context) (time.Duration, error) {
	for i, types := range [2][]string{{"ad_create", "ad_close", "ad_update"}, {"order_create", "order_complete", "order_cancel"}} {
		batch, err := read(ctx, w.conn, false, `
SELECT id, transaction_type, transaction_ref_id, payload FROM p2p.transaction_outbox
WHERE status = 'pending' AND transaction_type = ANY($2) ORDER BY create_time LIMIT $1`, ten, types)
		if err != nil {
			return 0, err
		}
		for _, m := range batch {
			err := w.conn.QueryRow(ctx, `
UPDATE p2p.transaction_outbox SET status = 'processing', last_attempt_time = NOW(), retry_count = retry_count + 1
WHERE id = $1 AND status = 'pending' RETURNING id`, m.id).Scan(nil)
			if errors.Is(err, pgx.ErrNoRows) {
				continue // another worker has it
			}
			if err != nil {
				return 0, err
			}
			m.topic = w.Topics[i]
			if _, err := w.publish(ctx, m); err != nil {
				return 0, err
			}
			err = pgx.BeginFunc(ctx, w.conn, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "UPDATE p2p.transaction_outbox SET status = 'processed', processed_time = NOW() WHERE id = $1", m.id)
				return err
			})
			if err != nil {
				return 0, err
			}
		}
	}
	return aSecond, nil
}
