package jobs

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/admin"
)

// Retried is the result of [Retry].
type Retried struct {
	admin.Target
	Keys int64 `json:"keys"` // a message without a key counts as one
	// More says that there may be more of them: as many were made due as one call may.
	More bool `json:"more,omitempty"`
}

// retryMost bounds a call: it changes a row for each key, in one transaction.
const retryMost = 100_000

// retrySQL makes those due that have failed and wait for their time. What is due, blocked, paused or has a delivery
// time of its own stays. Rows are locked in the order that settlements keep.
const retrySQL = `
WITH failing AS (
	SELECT h.destination, h.lane, h.id, h.message_id FROM outbox.holds h
	WHERE h.destination = $1 AND ($2 = '' OR h.topic = $2) AND ($3 = '' OR h.lane = $3)
	AND h.retry_at > clock_timestamp() AND h.retry_at < 'infinity' AND h.error IS NOT NULL ORDER BY h.retry_at LIMIT $4
), locked AS (
	SELECT h.destination, h.lane, h.id, h.message_id FROM outbox.holds h JOIN failing f USING (destination, lane, id, message_id)
	WHERE h.retry_at > clock_timestamp() AND h.retry_at < 'infinity' ORDER BY h.id, h.message_id FOR UPDATE OF h
)
UPDATE outbox.holds h SET retry_at = clock_timestamp() FROM locked l
WHERE h.destination = l.destination AND h.lane = l.lane AND h.id = l.id AND h.message_id = l.message_id`

// Retry has the keys of a target tried again at once that wait because their message failed. The attempt counts like
// any other. If no key waits so, it is an ErrNotFound; so is a destination with a table of its own, whose relay alone
// knows the times.
func Retry(ctx context.Context, db admin.DB, target admin.Target, action admin.Action) (out Retried, err error) {
	out.Target = target
	err = admin.Write(ctx, db, action, func(tx pgx.Tx) error {
		if target.Destination == "" {
			return errors.New("no destination is named")
		}
		if err := admin.SeenDestination(ctx, tx, target.Destination); err != nil {
			return err
		}
		var own bool
		err := tx.QueryRow(ctx, `SELECT NOT EXISTS (SELECT FROM outbox.cursors WHERE destination = $1)`, target.Destination).Scan(&own)
		if err != nil {
			return err
		}
		if own {
			return fmt.Errorf("%w: %s reads a table of its own, and its relay has the times of attempts in memory: start the relay again, "+
				"and, if the mapping has failure.next_attempt, set that column of the rows to NULL before",
				admin.ErrNotFound, target.Destination)
		}
		if err := admin.PreferIndexes(ctx, tx); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, retrySQL, target.Destination, target.Topic, target.Lane(), retryMost)
		if err != nil {
			return err
		}
		if out.Keys = tag.RowsAffected(); out.Keys == 0 {
			return fmt.Errorf("%w: no key there has failed and waits for its next attempt", admin.ErrNotFound)
		}
		out.More = out.Keys == retryMost
		detail := map[string]any{"topic": target.Topic, "key": target.Key, "keys": out.Keys}
		return admin.Record(ctx, tx, action, "retry", target.Destination, detail)
	})
	if err != nil {
		return out, fmt.Errorf("retry %v: %w", target, err)
	}
	return out, nil
}
