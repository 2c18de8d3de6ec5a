package main

import (
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/inbox"
)

// An order may be charged twice as far as this table is concerned: the inbox alone prevents it.
const paymentTables = `
CREATE TABLE IF NOT EXISTS payments (
	no       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	order_id uuid NOT NULL,
	customer text NOT NULL,
	cents    int NOT NULL
)`

// payments is the service that charges customers.
type payments struct {
	place
	db     *pgxpool.Pool
	writer *outbox.Writer
	box    *inbox.Inbox
}

func openPayments(ctx context.Context, p place) (*payments, error) {
	s := &payments{place: p}
	var err error
	if s.writer, err = newWriter(); err != nil {
		return nil, err
	}
	if s.box, err = inbox.New("payments", inbox.Config{Gaps: inbox.GapReport}); err != nil {
		return nil, err
	}
	s.db, err = pgxpool.New(ctx, p.payments)
	return s, err
}

func (s *payments) close() { s.db.Close() }

// heard charges an order. One transaction has the record of the message, the payment and the event about it.
func (s *payments) heard(ctx context.Context, msg *outbox.Message) error {
	var e event
	if err := json.Unmarshal(msg.Payload, &e); err != nil {
		return outbox.Permanent(err)
	}
	result, err := s.box.Handle(ctx, s.db, msg, func(ctx context.Context, tx pgx.Tx, msg *outbox.Message) error {
		if _, err := tx.Exec(ctx, `INSERT INTO payments (order_id, customer, cents) VALUES ($1, $2, $3)`, e.Order, e.Customer, e.Cents); err != nil {
			return err
		}
		_, err := s.writer.Write(ctx, tx, outbox.Message{
			Topic: "payments", Key: e.Customer, EventType: "OrderPaid", ContentType: "application/json", Payload: msg.Payload,
		})
		return err
	})
	if err == nil {
		s.say("payments  order %s is charged: %d cents: %s", e.Order, e.Cents, result.Outcome)
	}
	return err
}
