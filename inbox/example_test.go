package inbox_test

import (
	"context"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/inbox"
	"github.com/pgoutbox/outbox/relay/polling"
)

// A consumer that applies each message once.
func ExampleInbox_Handle() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		panic(err)
	}
	defer pool.Close()
	box, err := inbox.New("payments", inbox.Config{})
	if err != nil {
		panic(err)
	}

	msg := outbox.Message{ID: outbox.NewID(), Topic: "orders", Key: "4711"} // as a broker delivered it
	for range 2 {
		result, err := box.Handle(ctx, pool, &msg, func(ctx context.Context, tx pgx.Tx, msg *outbox.Message) error {
			_, err := tx.Exec(ctx, `UPDATE orders SET paid = true WHERE id = $1`, msg.Key)
			return err
		})
		if err != nil {
			panic(err) // don't acknowledge
		}
		fmt.Println(result.Outcome)
	}

	// It prints:
	//	applied
	//	duplicate
}

// A worker applies what was stored.
func ExampleNewWorker() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		panic(err)
	}
	defer pool.Close()
	box, err := inbox.New("payments", inbox.Config{})
	if err != nil {
		panic(err)
	}
	source, err := polling.NewSnapshot(pool.Config().ConnConfig, box.Destination(), polling.SnapshotConfig{})
	if err != nil {
		panic(err)
	}
	worker, err := inbox.NewWorker(box, source, pool, func(ctx context.Context, tx pgx.Tx, msg *outbox.Message) error {
		_, err := tx.Exec(ctx, `UPDATE orders SET paid = true WHERE id = $1`, msg.Key)
		return err
	}, inbox.WorkerConfig{})
	if err != nil {
		panic(err)
	}

	// In the consumer: store, then acknowledge.
	if _, err := box.Store(ctx, pool, &outbox.Message{ID: outbox.NewID(), Topic: "orders", Key: "4711"}); err != nil {
		panic(err)
	}
	if err := worker.Run(ctx); err != nil {
		panic(err)
	}
}
