package polling

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

func TestSnapshotIsASource(t *testing.T) {
	t.Parallel()
	relaytest.RunSource(t, func(t *testing.T) relaytest.SourceHarness { return snapshotHarness(newDatabase(t)) })
}

func TestSnapshotIsASourceOnTheOldestAndTheNewestPostgreSQL(t *testing.T) {
	t.Parallel()
	for _, major := range []string{"14", "18"} {
		t.Run("PostgreSQL "+major, func(t *testing.T) {
			t.Parallel()
			relaytest.RunSource(t, func(t *testing.T) relaytest.SourceHarness {
				return snapshotHarness(newDatabase(t, servers.PostgresConfig{Major: major}))
			})
		})
	}
}

func snapshotHarness(db database) relaytest.SourceHarness {
	return relaytest.SourceHarness{
		Open: func(t *testing.T, o relaytest.SourceOptions) relay.Source {
			db := database{t, db.url}
			s := db.source(o.Destination, SnapshotConfig{Group: o.Group, Groups: o.Groups, Lease: o.Lease})
			s.owner = o.Relay // what a registration under that name would give it
			return s
		},
		Begin: db.begin,
		Crash: func(s relay.Session) { crash(s.(*snapshotSession)) },
		DeadLetters: func(ctx context.Context, destination string) ([]relaytest.DeadLetter, error) {
			rows, err := db.connect().Query(ctx, `SELECT message_id, convert_from(payload, 'UTF8'), attempts, reason, error
				FROM outbox.dead_letters WHERE destination = $1 ORDER BY id`, destination)
			if err != nil {
				return nil, err
			}
			return pgx.CollectRows(rows, func(row pgx.CollectableRow) (d relaytest.DeadLetter, err error) {
				err = row.Scan((*[16]byte)(&d.ID), &d.Payload, &d.Attempts, &d.Reason, &d.Error)
				return d, err
			})
		},
	}
}

// writerTx is a writer's transaction on a connection of its own.
type writerTx struct {
	conn *pgx.Conn
	tx   pgx.Tx
}

func (db database) begin(ctx context.Context) (relaytest.SourceTx, error) {
	conn, err := pgx.ConnectConfig(ctx, db.config())
	if err != nil {
		return nil, err
	}
	tx, err := conn.Begin(ctx)
	if err != nil {
		hangUp(conn)
		return nil, err
	}
	return &writerTx{conn, tx}, nil
}

func (w *writerTx) Insert(ctx context.Context, ms ...outbox.Message) error {
	text := func(s string) *string {
		if s == "" {
			return nil
		}
		return &s
	}
	for i := range ms {
		m := &ms[i]
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
		_, err := w.tx.Exec(ctx, `INSERT INTO outbox.messages
			(message_id, topic, key, aggregate_type, aggregate_id, event_type, payload, content_type, headers, deliver_at)
			VALUES (coalesce($1::text::uuid, gen_random_uuid()), $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
			id, m.Topic, text(m.Key), text(m.AggregateType), text(m.AggregateID), text(m.EventType), m.Payload, text(m.ContentType), headers, deliverAt)
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *writerTx) Savepoint(ctx context.Context, f func() error) error {
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
func (w *writerTx) Lock(ctx context.Context, key string) error {
	_, err := w.tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtextextended($1, 1))", key)
	return err
}

func (w *writerTx) Commit(ctx context.Context) error {
	defer hangUp(w.conn)
	return w.tx.Commit(ctx)
}

func (w *writerTx) Rollback(ctx context.Context) error {
	defer hangUp(w.conn)
	return w.tx.Rollback(ctx)
}
