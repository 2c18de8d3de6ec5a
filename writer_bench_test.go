package outbox_test

import (
	"context"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
)

// One message through the Writer, against the same INSERT written by hand: the difference is the price
// of the Writer. Transactions are kept short of a thousand rows, and end in a rollback.
func BenchmarkWriteOne(b *testing.B) {
	var w outbox.Writer
	m := exampleMessage()
	inTransactions(b, func(ctx context.Context, tx pgx.Tx) error {
		_, err := w.Write(ctx, tx, m)
		return err
	})
}

func BenchmarkInsertByHand(b *testing.B) {
	m := exampleMessage()
	payload, header := m.Payload, `{"tenant":"7"}`
	inTransactions(b, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO outbox.messages
			(message_id, topic, key, aggregate_type, aggregate_id, event_type, payload, content_type, headers, deliver_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
			[16]byte(outbox.NewID()), m.Topic, nil, m.AggregateType, m.AggregateID, m.EventType, payload, m.ContentType, header, nil)
		return err
	})
}

func BenchmarkWriteHundred(b *testing.B) {
	var w outbox.Writer
	msgs := slices.Repeat([]outbox.Message{exampleMessage()}, 100)
	inTransactions(b, func(ctx context.Context, tx pgx.Tx) error {
		_, err := w.Write(ctx, tx, msgs...)
		return err
	})
}

func BenchmarkCopyTenThousand(b *testing.B) {
	var w outbox.Writer
	msgs := slices.Repeat([]outbox.Message{exampleMessage()}, 10_000)
	inTransactions(b, func(ctx context.Context, tx pgx.Tx) error {
		_, err := w.Copy(ctx, tx, each(msgs))
		return err
	})
}

func exampleMessage() outbox.Message {
	return outbox.Message{Topic: "orders", AggregateType: "order", AggregateID: "4711", EventType: "OrderPlaced",
		Payload: make([]byte, 256), ContentType: "application/json", Headers: []outbox.Header{{Name: "tenant", Value: "7"}}}
}

func inTransactions(b *testing.B, work func(ctx context.Context, tx pgx.Tx) error) {
	conn := connect(b, database(b))
	var tx pgx.Tx
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i%1000 == 0 {
			if tx != nil {
				if err := tx.Rollback(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			var err error
			if tx, err = conn.Begin(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
		if err := work(b.Context(), tx); err != nil {
			b.Fatal(err)
		}
	}
	if err := tx.Rollback(context.Background()); err != nil {
		b.Fatal(err)
	}
}
