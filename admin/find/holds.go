package find

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/schema"
)

// HeldLane is a lane whose messages wait in the database: its head, and how many there are.
type HeldLane struct {
	Destination string      `json:"destination"`
	Lane        string      `json:"lane"`     // the ordering key, or the id of a message without one
	Messages    admin.Count `json:"messages"` // counted up to 1,000; if estimated, there may be more
	Position    int64       `json:"position"`
	MessageID   outbox.ID   `json:"message_id"`
	Topic       string      `json:"topic"`
	Attempts    int         `json:"attempts"`
	Error       string      `json:"error,omitempty"` // empty for one that was paused or has a delivery time
	Since       time.Time   `json:"since"`
	Due         time.Time   `json:"due,omitzero"` // zero if it is blocked
	Blocked     bool        `json:"blocked,omitempty"`
}

// HoldFilter selects lanes. Fields that are set must all match.
type HoldFilter struct {
	Destination string
	Key         string
	Blocked     bool

	// After are those of the last lane of the page before.
	AfterDestination, AfterLane string
	Limit                       int // default 100, at most 1000
}

// heldLanesSQL walks from lane to lane along the primary key: it costs a step per lane, however many holds stand behind
// each head.
const heldLanesSQL = `
WITH RECURSIVE heads AS (
	(SELECT h.destination, h.lane, h.id, h.message_id, h.topic, h.attempts, h.error, h.held_at, h.retry_at FROM outbox.holds h
	WHERE (h.destination, h.lane) > ($1, $2) AND ($3 = '' OR h.destination = $3) ORDER BY h.destination, h.lane, h.id LIMIT 1)
	UNION ALL
	SELECT n.* FROM heads, LATERAL (
		SELECT h.destination, h.lane, h.id, h.message_id, h.topic, h.attempts, h.error, h.held_at, h.retry_at FROM outbox.holds h
		WHERE (h.destination, h.lane) > (heads.destination, heads.lane) AND ($3 = '' OR h.destination = $3)
		ORDER BY h.destination, h.lane, h.id LIMIT 1
	) n
)
SELECT destination, lane, (SELECT count(*) FROM (SELECT FROM outbox.holds b WHERE b.destination = h.destination AND b.lane = h.lane LIMIT $7) x),
	id, message_id::text, %s, attempts, coalesce(error, ''), held_at, nullif(retry_at, 'infinity'), coalesce(retry_at = 'infinity', false)
FROM heads h WHERE ($4 = '' OR lane = $4) AND (NOT $5 OR retry_at = 'infinity') LIMIT $6`

// laneCounted is how many messages of a lane are counted: a page has up to a thousand lanes.
const laneCounted = 1000

// Holds lists lanes whose messages wait in the database, by destination and lane.
func Holds(ctx context.Context, db admin.DB, f HoldFilter) (list []HeldLane, err error) {
	lane := ""
	if f.Key != "" {
		lane = schema.LaneOf(f.Key)
	}
	err = admin.Read(ctx, db, func(tx pgx.Tx) error {
		if err := admin.PreferIndexes(ctx, tx); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, fmt.Sprintf(heldLanesSQL, admin.Readable("topic")), f.AfterDestination, f.AfterLane,
			f.Destination, lane, f.Blocked, admin.PageSize(f.Limit), laneCounted)
		if err != nil {
			return err
		}
		list, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (h HeldLane, err error) {
			var id string
			var due *time.Time
			err = row.Scan(&h.Destination, &h.Lane, &h.Messages.N, &h.Position, &id, &h.Topic, &h.Attempts, &h.Error,
				&h.Since, &due, &h.Blocked)
			if err == nil {
				h.MessageID, err = outbox.ParseID(id)
			}
			h.Due, h.Messages.Estimated = admin.Value(due), h.Messages.N == laneCounted
			return h, err
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list held lanes: %w", err)
	}
	return list, nil
}
