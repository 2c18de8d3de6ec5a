// A relay in the service's own process, woken at once by its writer.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/jsonl"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/polling"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	conn, err := pgx.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	waker := relay.NewWaker()
	source, err := polling.NewSnapshot(conn, "orders", polling.SnapshotConfig{Wake: waker})
	if err != nil {
		log.Fatal(err)
	}
	broker := jsonl.New(os.Stdout) // or kafka.New, nats.New
	defer broker.Close()
	orders, err := relay.New(source, broker, relay.Config{Name: "orders"})
	if err != nil {
		log.Fatal(err)
	}
	writer, err := outbox.NewWriter(outbox.WriterConfig{Wake: waker.Wake})
	if err != nil {
		log.Fatal(err)
	}
	go serve(ctx, conn, writer)
	if err := orders.Run(ctx); err != nil { // until Ctrl-C; then it drains
		log.Fatal(err)
	}
}

// serve is the service: it commits an event, with whatever else belongs into the transaction.
func serve(ctx context.Context, conn *pgx.ConnConfig, writer *outbox.Writer) {
	db, err := pgx.ConnectConfig(ctx, conn)
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close(ctx)
	err = writer.InTx(ctx, db, func(tx pgx.Tx) error {
		_, err := writer.Write(ctx, tx, outbox.Message{Topic: "orders", Key: "order-2", Payload: []byte(`{"total": 7}`)})
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
}
