package replication

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/holds"
	"github.com/pgoutbox/outbox/schema"
)

func outcomesOf(s *relay.Settlement) bool {
	return len(s.Hold)+len(s.Dead)+len(s.HeldDelivered)+len(s.HeldRetry)+len(s.HeldDead) > 0
}

func (s *session) storeOutcomes(ctx context.Context, tx pgx.Tx, settlement *relay.Settlement) error {
	return holds.Careful(ctx, tx, settlement, s.storeAll)
}

// storeAll stores holds and dead letters. If a message has a row, the row is copied; a message that was only emitted
// has none, and is written as it came.
func (s *session) storeAll(ctx context.Context, tx pgx.Tx, settlement *relay.Settlement) error {
	if slices.ContainsFunc(settlement.Hold, func(h relay.Hold) bool { return emitted(h.Delivery) }) {
		if err := holds.Lock(ctx, tx, s.source.destination, settlement); err != nil {
			return fmt.Errorf("lock holds: %w", err)
		}
	}
	inTable := *settlement
	inTable.Hold, inTable.Dead = nil, nil
	for _, h := range settlement.Hold {
		if emitted(h.Delivery) {
			if err := s.holdEmitted(ctx, tx, &h); err != nil {
				return fmt.Errorf("hold an emitted message: %w", err)
			}
			continue
		}
		inTable.Hold = append(inTable.Hold, h)
	}
	for _, d := range settlement.Dead {
		if emitted(d.Delivery) {
			if err := s.buryEmitted(ctx, tx, &d); err != nil {
				return fmt.Errorf("store an emitted message as a dead letter: %w", err)
			}
			continue
		}
		inTable.Dead = append(inTable.Dead, d)
	}
	if err := awaitVisible(ctx, tx, &inTable); err != nil {
		return err
	}
	return s.Table.StoreOutcomes(ctx, tx, &inTable)
}

// awaitVisible waits until the rows to be copied are visible: the walsender sends a commit that is in the log, a moment
// before other sessions see it. After a bounded time it returns without an error; the copy then fails.
func awaitVisible(ctx context.Context, tx pgx.Tx, s *relay.Settlement) error {
	var xids []string
	for _, h := range s.Hold {
		xids = append(xids, strconv.FormatUint(h.Delivery.Ref, 10))
	}
	for _, d := range s.Dead {
		xids = append(xids, strconv.FormatUint(d.Delivery.Ref, 10))
	}
	if len(xids) == 0 {
		return nil
	}
	for range 200 {
		var visible bool
		err := tx.QueryRow(ctx, `SELECT bool_and(pg_visible_in_snapshot(x, pg_current_snapshot())) FROM unnest($1::text[]::xid8[]) x`, xids).Scan(&visible)
		if err != nil || visible {
			return err
		}
		if err := dial.Pause(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// emitted reports whether d has no row: every row has a transaction.
func emitted(d *relay.Delivery) bool { return d.Ref == 0 }

const emittedColumns = `(destination, lane, id, message_id, topic, key, shard, aggregate_type, aggregate_id, event_type, payload,
	content_type, headers, deliver_at, created_at, attempts`

const emittedValues = `VALUES ($1, $2, $3, $4::text::uuid, $5, nullif($6, ''), $7, nullif($8, ''), nullif($9, ''), nullif($10, ''), $11,
	nullif($12, ''), (SELECT json_object_agg(h.name, h.value) FROM unnest($13::text[], $14::text[]) h (name, value)), $15, $16, $17`

const holdEmittedSQL = `INSERT INTO outbox.holds ` + emittedColumns + `, retry_at, error) ` + emittedValues + `,
	CASE WHEN $18 THEN 'infinity' WHEN $19::bigint IS NULL AND NOT EXISTS (
		SELECT FROM outbox.holds h WHERE h.destination = $1 AND h.lane = $2 AND (h.id, h.message_id) < ($3::bigint, $4::text::uuid))
	THEN clock_timestamp() ELSE clock_timestamp() + $19::bigint * interval '1 microsecond' END, $20)
ON CONFLICT (destination, lane, id, message_id) DO UPDATE SET attempts = excluded.attempts, retry_at = excluded.retry_at, error = excluded.error`

func (s *session) holdEmitted(ctx context.Context, tx pgx.Tx, h *relay.Hold) error {
	var wait *int64
	if !h.RetryAt.IsZero() {
		us := max(time.Until(h.RetryAt), 0).Microseconds()
		wait = &us
	}
	_, err := tx.Exec(ctx, holdEmittedSQL, append(s.emittedArguments(h.Delivery), h.Blocked, wait, schema.Note(tx.Conn(), h.Err))...)
	return err
}

const buryEmittedSQL = `INSERT INTO outbox.dead_letters ` + emittedColumns + `, reason, error) ` + emittedValues + `, $18, coalesce($19, ''))
` + holds.DeadAgainSQL

func (s *session) buryEmitted(ctx context.Context, tx pgx.Tx, d *relay.Dead) error {
	_, err := tx.Exec(ctx, buryEmittedSQL, append(s.emittedArguments(d.Delivery), string(d.Reason), schema.Note(tx.Conn(), d.Err))...)
	return err
}

func (s *session) emittedArguments(d *relay.Delivery) []any {
	var names, values []string
	for _, h := range d.Headers {
		names, values = append(names, h.Name), append(values, h.Value)
	}
	var deliverAt *time.Time
	if !d.DeliverAt.IsZero() {
		deliverAt = &d.DeliverAt
	}
	return []any{s.source.destination, d.Lane(), d.Position, d.ID.String(), d.Topic, d.Key, d.Shard, d.AggregateType, d.AggregateID,
		d.EventType, d.Payload, d.ContentType, names, values, deliverAt, d.CreatedAt, d.Attempts}
}
