package health

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/admin"
)

func (r *Report) readHeld(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, fmt.Sprintf(`
		SELECT destination, count(*), count(DISTINCT lane), count(*) FILTER (WHERE retry_at = 'infinity'),
		       min(nullif(retry_at, 'infinity')), coalesce((array_agg(error ORDER BY held_at DESC) FILTER (WHERE error IS NOT NULL))[1], ''),
		       min(held_at) FILTER (WHERE error IS NOT NULL AND retry_at <> 'infinity'), min(held_at) FILTER (WHERE retry_at = 'infinity'),
		       min(due) FILTER (WHERE NOT delayed), min(due) FILTER (WHERE NOT meant AND NOT blocked),
		       count(DISTINCT lane) FILTER (WHERE delayed)
		FROM (SELECT destination, lane, retry_at, held_at, error, `+admin.JSONTime("CASE WHEN job IS NULL THEN greatest(created_at, deliver_at) ELSE held_at END")+` AS due,
		             coalesce(bool_or(error IS NULL AND deliver_at > clock_timestamp()) OVER its_lane, false) AS delayed,
		             coalesce(bool_or(error IS NULL AND retry_at > clock_timestamp()) OVER its_lane, false) AS meant,
		             coalesce(bool_or(retry_at = 'infinity') OVER its_lane, false) AS blocked
		      FROM (SELECT destination, lane, created_at, deliver_at, retry_at, held_at, error, job FROM outbox.holds LIMIT %d) s
		      WINDOW its_lane AS (PARTITION BY destination, lane)) h
		GROUP BY destination`, admin.SampleLimit))
	if err != nil {
		return fmt.Errorf("count holds: %w", err)
	}
	var total int64
	var name string
	var h Held
	var next, failing, blocked, oldest, waiting *time.Time
	_, err = pgx.ForEachRow(rows, []any{&name, &h.Messages.N, &h.Lanes, &h.Blocked, &next, &h.LastError, &failing,
		&blocked, &oldest, &waiting, &h.Delayed}, func() error {
		held := h
		held.NextRetry, held.FailingSince, held.BlockedSince = admin.Value(next), admin.Value(failing), admin.Value(blocked)
		held.Oldest, held.waiting = admin.Value(oldest), admin.Value(waiting)
		total += held.Messages.N
		d := r.destination(name)
		d.Held, d.Oldest = held, earliest(d.Oldest, held.Oldest)
		return nil
	})
	if err != nil {
		return fmt.Errorf("count holds: %w", err)
	}
	for i := range r.Destinations {
		r.Destinations[i].Held.Messages.Estimated = total >= admin.SampleLimit
	}
	return nil
}

func (r *Report) readDead(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, fmt.Sprintf(`
		SELECT destination, reason, count(*), max(dead_at)
		FROM (SELECT destination, reason, dead_at FROM outbox.dead_letters LIMIT %d) d GROUP BY destination, reason`, admin.SampleLimit))
	if err != nil {
		return fmt.Errorf("count dead letters: %w", err)
	}
	var total int64
	for rows.Next() {
		var name, reason string
		var n int64
		var newest time.Time
		if err := rows.Scan(&name, &reason, &n, &newest); err != nil {
			return fmt.Errorf("count dead letters: %w", err)
		}
		total += n
		d := &r.destination(name).Dead
		if d.Reasons == nil {
			d.Reasons = map[string]int64{}
		}
		d.Reasons[reason] = n
		d.Messages.N += n
		if newest.After(d.Newest) {
			d.Newest = newest
		}
	}
	for i := range r.Destinations {
		r.Destinations[i].Dead.Messages.Estimated = total >= admin.SampleLimit
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("count dead letters: %w", err)
	}
	return r.readNewDead(ctx, tx)
}

// readNewDead goes by an index that has what is not acknowledged: however much is, a new death is seen.
func (r *Report) readNewDead(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, fmt.Sprintf(`
		SELECT n.destination, n.letters, n.since, n.letters >= %d,
		       (SELECT d.error FROM outbox.dead_letters d WHERE d.destination = n.destination AND d.acknowledged_at IS NULL ORDER BY d.dead_at DESC LIMIT 1)
		FROM (SELECT destination, count(*) AS letters, min(dead_at) AS since
		      FROM (SELECT destination, dead_at FROM outbox.dead_letters WHERE acknowledged_at IS NULL LIMIT %[1]d) s GROUP BY destination) n`, admin.SampleLimit))
	if err != nil {
		return fmt.Errorf("count new dead letters: %w", err)
	}
	var name string
	var d Dead
	_, err = pgx.ForEachRow(rows, []any{&name, &d.New.N, &d.Since, &d.New.Estimated, &d.LastError}, func() error {
		dead := &r.destination(name).Dead
		dead.New, dead.Since, dead.LastError = d.New, d.Since, d.LastError
		return nil
	})
	if err != nil {
		return fmt.Errorf("count new dead letters: %w", err)
	}
	return nil
}
