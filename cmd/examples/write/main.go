// Write an order and its event in one transaction.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
)

var writer outbox.Writer

func placeOrder(ctx context.Context, db *pgx.Conn, id, body string) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "INSERT INTO orders (id, body) VALUES ($1, $2)", id, body); err != nil {
			return err
		}
		_, err := writer.Write(ctx, tx, outbox.Message{
			Topic: "orders", Key: id, EventType: "order.placed", Payload: []byte(body),
		})
		return err
	})
}

func main() {
	ctx := context.Background()
	db, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close(ctx)
	if _, err := db.Exec(ctx, "CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, body text)"); err != nil {
		log.Fatal(err)
	}
	if err := placeOrder(ctx, db, "order-1", `{"total": 42}`); err != nil {
		log.Fatal(err)
	}
	fmt.Println("order-1 is placed, its event will follow")
}
