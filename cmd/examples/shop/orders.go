package main

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/inbox"
)

const orderTables = `
CREATE TABLE IF NOT EXISTS orders (
	id       uuid PRIMARY KEY,
	customer text NOT NULL,
	cents    int NOT NULL CHECK (cents > 0),
	paid_at  timestamptz
)`

// orders is the service that takes orders.
type orders struct {
	place
	db     *pgxpool.Pool
	writer *outbox.Writer
	box    *inbox.Inbox
}

func openOrders(ctx context.Context, p place) (*orders, error) {
	o := &orders{place: p}
	var err error
	if o.writer, err = newWriter(); err != nil {
		return nil, err
	}
	if o.box, err = inbox.New("orders", inbox.Config{Gaps: inbox.GapReport}); err != nil {
		return nil, err
	}
	o.db, err = pgxpool.New(ctx, p.orders)
	return o, err
}

func (o *orders) close() { o.db.Close() }

// ServeHTTP places an order: its row and its event are committed together, or neither is.
func (o *orders) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var e event
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&e); err != nil || e.Customer == "" || e.Cents <= 0 {
		http.Error(w, `want {"customer": "…", "cents": 100}`, http.StatusBadRequest)
		return
	}
	id := outbox.NewID()
	e.Order = id.String()
	payload, err := json.Marshal(e)
	if err == nil {
		err = o.writer.InTx(r.Context(), o.db, func(tx pgx.Tx) error {
			if _, err := tx.Exec(r.Context(), `INSERT INTO orders (id, customer, cents) VALUES ($1, $2, $3)`, e.Order, e.Customer, e.Cents); err != nil {
				return err
			}
			_, err := o.writer.Write(r.Context(), tx, outbox.Message{
				Topic: "orders", Key: e.Customer, EventType: "OrderPlaced", ContentType: "application/json", Payload: payload,
			})
			return err
		})
	}
	if err != nil {
		http.Error(w, "the order was not placed: "+err.Error(), http.StatusInternalServerError)
		return
	}
	o.say("orders    order %s of %s is placed: %d cents", e.Order, e.Customer, e.Cents)
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(payload)
}

// heard marks an order as paid.
func (o *orders) heard(ctx context.Context, msg *outbox.Message) error {
	var e event
	if err := json.Unmarshal(msg.Payload, &e); err != nil {
		return outbox.Permanent(err)
	}
	result, err := o.box.Handle(ctx, o.db, msg, func(ctx context.Context, tx pgx.Tx, _ *outbox.Message) error {
		_, err := tx.Exec(ctx, `UPDATE orders SET paid_at = now() WHERE id = $1`, e.Order)
		return err
	})
	if err == nil {
		o.say("orders    order %s is paid: %s", e.Order, result.Outcome)
	}
	return err
}
