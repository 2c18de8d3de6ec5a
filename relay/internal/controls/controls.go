// Package controls reads what operators ask of a destination: outbox.controls, which the verbs of package admin write.
package controls

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/relay"
)

// readSQL tells ends as durations from now, since the clocks of the database and of the relay need not agree. A year is
// long enough: the controls are read again before.
const readSQL = `
SELECT topic, lane, coalesce(rate, 0), CASE WHEN isfinite(until)
	THEN least(extract(epoch FROM until - clock_timestamp()) * 1000000, 31536000000000)::bigint END
FROM outbox.controls WHERE destination = $1 AND until > clock_timestamp()`

// Read returns what is asked of a destination now, for one of its shard groups: each gets an equal part of the rate.
func Read(ctx context.Context, conn *pgx.Conn, destination string, groups int) (c relay.Controls, err error) {
	now := time.Now()
	rows, err := conn.Query(ctx, readSQL, destination)
	if err != nil {
		return c, fmt.Errorf("read the controls: %w", err)
	}
	var p relay.Pause
	var rate float64
	var left *int64
	_, err = pgx.ForEachRow(rows, []any{&p.Topic, &p.Lane, &rate, &left}, func() error {
		if rate > 0 {
			c.Rate = rate / float64(groups)
			return nil
		}
		p.Until = time.Time{}
		if left != nil {
			p.Until = now.Add(time.Duration(*left) * time.Microsecond)
		}
		c.Pauses = append(c.Pauses, p)
		return nil
	})
	if err != nil {
		return c, fmt.Errorf("read the controls: %w", err)
	}
	return c, nil
}
