package find

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/admin"
)

// DeadGroup counts dead letters of one destination and topic whose errors are equal but for ids, numbers and quoted
// names.
type DeadGroup struct {
	Destination string `json:"destination"`
	Topic       string `json:"topic"`
	Reason      string `json:"reason"`
	Fingerprint string `json:"fingerprint"` // selects the group, see Selection

	Messages int64     `json:"messages"`
	New      int64     `json:"new"`   // not acknowledged
	Again    int64     `json:"again"` // requeued before, and failed again
	First    time.Time `json:"first"`
	Last     time.Time `json:"last"`

	// Of the newest one.
	Error     string    `json:"error"`
	MessageID outbox.ID `json:"message_id"`
}

// DeadGroups is the result of grouping dead letters.
type DeadGroups struct {
	Groups []DeadGroup `json:"groups"`
	// Looked is how many dead letters were counted; Partial means that there are more.
	Looked  int64 `json:"looked"`
	Partial bool  `json:"partial,omitempty"`
}

// GroupDead groups the dead letters that s selects by cause, the largest group first: at most 200 groups of 100,000
// dead letters.
func GroupDead(ctx context.Context, db admin.DB, s Selection) (g DeadGroups, err error) {
	if s.Blocked {
		return g, fmt.Errorf("group dead letters: blocked messages are no dead letters yet")
	}
	if err := s.Validate(); err != nil {
		return g, err
	}
	const most = 200
	err = admin.Read(ctx, db, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, fmt.Sprintf(`
			WITH looked AS (SELECT destination, topic, reason, fingerprint, acknowledged_at, deaths, dead_at FROM outbox.dead_letters WHERE %s LIMIT %d),
			grouped AS (
				SELECT destination, topic, reason, fingerprint, count(*) AS n, count(*) FILTER (WHERE acknowledged_at IS NULL) AS new,
				       count(*) FILTER (WHERE deaths > 1) AS again, min(dead_at) AS first, max(dead_at) AS last
				FROM looked GROUP BY 1, 2, 3, 4)
			SELECT destination, %s, reason, fingerprint, n, new, again, first, last, d.error, d.message_id::text, sum(n) OVER ()::bigint
			FROM grouped g, LATERAL (SELECT error, message_id FROM outbox.dead_letters d
				WHERE d.destination = g.destination AND d.fingerprint = g.fingerprint AND d.dead_at = g.last LIMIT 1) d
			ORDER BY n DESC, destination, topic, reason, fingerprint LIMIT %d`, s.Where(), admin.SampleLimit, admin.Readable("g.topic"), most), s.Args()...)
		if err != nil {
			return err
		}
		var d DeadGroup
		var id string
		_, err = pgx.ForEachRow(rows, []any{&d.Destination, &d.Topic, &d.Reason, &d.Fingerprint, &d.Messages, &d.New,
			&d.Again, &d.First, &d.Last,
			&d.Error, &id, &g.Looked}, func() (err error) {
			d.MessageID, err = outbox.ParseID(id)
			g.Groups = append(g.Groups, d)
			return err
		})
		return err
	})
	if err != nil {
		return g, fmt.Errorf("group dead letters: %w", err)
	}
	g.Partial = g.Looked >= admin.SampleLimit || len(g.Groups) == most
	return g, nil
}
