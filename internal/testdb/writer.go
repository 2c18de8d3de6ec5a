package testdb

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
)

// Writer is a service's transaction, on a connection of its own, as the suite for sources drives it.
type Writer struct {
	conn   *pgx.Conn
	tx     pgx.Tx
	insert Insert
}

// Insert writes messages in a transaction.
type Insert func(ctx context.Context, tx pgx.Tx, ms []outbox.Message) error

// Begin starts a transaction.
func (db DB) Begin(ctx context.Context, insert Insert) (*Writer, error) {
	conn, err := pgx.Connect(ctx, db.URL)
	if err != nil {
		return nil, err
	}
	tx, err := conn.Begin(ctx)
	if err != nil {
		hangUp(conn)
		return nil, err
	}
	return &Writer{conn, tx, insert}, nil
}

// InsertRows inserts by plain SQL, as a program in any language would: sql has parameters for message id, topic, key,
// aggregate type and id, event type, payload, content type, headers and deliver-at, NULL for what is empty.
func InsertRows(sql string) Insert {
	return func(ctx context.Context, tx pgx.Tx, ms []outbox.Message) error {
		for i := range ms {
			if _, err := tx.Exec(ctx, sql, values(&ms[i])...); err != nil {
				return err
			}
		}
		return nil
	}
}

func values(m *outbox.Message) []any {
	text := func(s string) *string {
		if s == "" {
			return nil
		}
		return &s
	}
	var headers map[string]string
	for _, h := range m.Headers {
		if headers == nil {
			headers = make(map[string]string)
		}
		headers[h.Name] = h.Value
	}
	var id, deliverAt any
	if !m.ID.IsZero() {
		id = m.ID.String()
	}
	if !m.DeliverAt.IsZero() {
		deliverAt = m.DeliverAt
	}
	return []any{id, m.Topic, text(m.Key), text(m.AggregateType), text(m.AggregateID), text(m.EventType), m.Payload,
		text(m.ContentType), headers, deliverAt}
}

func (w *Writer) Insert(ctx context.Context, ms ...outbox.Message) error {
	return w.insert(ctx, w.tx, ms)
}

// Savepoint runs f in a subtransaction that is rolled back.
func (w *Writer) Savepoint(ctx context.Context, f func() error) error {
	if _, err := w.tx.Exec(ctx, "SAVEPOINT s"); err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	_, err := w.tx.Exec(ctx, "ROLLBACK TO SAVEPOINT s; RELEASE SAVEPOINT s")
	return err
}

// Lock stands for the row that a service changes: held until the transaction ends.
func (w *Writer) Lock(ctx context.Context, key string) error {
	_, err := w.tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtextextended($1, 1))", key)
	return err
}

func (w *Writer) Commit(ctx context.Context) error {
	defer hangUp(w.conn)
	return w.tx.Commit(ctx)
}

func (w *Writer) Rollback(ctx context.Context) error {
	defer hangUp(w.conn)
	return w.tx.Rollback(ctx)
}
