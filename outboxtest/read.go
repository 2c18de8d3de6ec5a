package outboxtest

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/headers"
)

// All columns have types that both pgx and any database/sql driver can scan.
const selectMessages = `
SELECT id, message_id::text, topic, coalesce(key, ''), coalesce(aggregate_type, ''), coalesce(aggregate_id, ''),
       coalesce(event_type, ''), payload, coalesce(content_type, ''), coalesce(headers::text, '{}'), deliver_at, created_at
FROM outbox.messages ORDER BY id`

type rows interface {
	Next() bool
	Scan(dest ...any) error
	Err() error
}

func read(ctx context.Context, q any) ([]outbox.Message, error) {
	switch q := q.(type) {
	case interface {
		Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	}:
		found, err := q.Query(ctx, selectMessages)
		if err != nil {
			return nil, err
		}
		defer found.Close()
		return scan(found)
	case interface {
		QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	}:
		found, err := q.QueryContext(ctx, selectMessages)
		if err != nil {
			return nil, err
		}
		defer func() { _ = found.Close() }()
		return scan(found)
	}
	return nil, fmt.Errorf("%T can't query: pass a pgx.Tx, *pgx.Conn, *pgxpool.Pool, *sql.Tx, *sql.Conn or *sql.DB", q)
}

func scan(found rows) ([]outbox.Message, error) {
	var all []outbox.Message
	for found.Next() {
		var m outbox.Message
		var id, stored string
		var deliverAt sql.NullTime
		err := found.Scan(&m.Position, &id, &m.Topic, &m.Key, &m.AggregateType, &m.AggregateID,
			&m.EventType, &m.Payload, &m.ContentType, &stored, &deliverAt, &m.CreatedAt)
		if err != nil {
			return nil, err
		}
		if m.ID, err = outbox.ParseID(id); err != nil {
			return nil, err
		}
		if m.Headers, err = headers.Parse(stored); err != nil {
			return nil, fmt.Errorf("message %s of topic %q: %w", id, m.Topic, err)
		}
		m.DeliverAt, m.CreatedAt = deliverAt.Time, m.CreatedAt.UTC()
		if deliverAt.Valid {
			m.DeliverAt = m.DeliverAt.UTC()
		}
		all = append(all, m)
	}
	return all, found.Err()
}
