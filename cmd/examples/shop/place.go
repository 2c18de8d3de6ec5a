package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/consume"
	"github.com/pgoutbox/outbox/broker/nats"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/polling"
	"github.com/pgoutbox/outbox/schema"
)

// place says where everything is.
type place struct {
	orders, payments string // databases
	broker           string
	say              func(format string, args ...any)

	// meddle stands between broker and handlers, for tests. Default: none.
	meddle func(consume.Handler) consume.Handler
}

// stream holds the topics of both services.
const stream = "SHOP"

// prepare makes tables and stream. What is there already stays.
func (p place) prepare(ctx context.Context) error {
	for url, tables := range map[string]string{p.orders: orderTables, p.payments: paymentTables} {
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			return err
		}
		_, err = schema.Up(ctx, conn, schema.UpConfig{})
		if err == nil {
			_, err = conn.Exec(ctx, tables)
		}
		if err = errors.Join(err, conn.Close(ctx)); err != nil {
			return fmt.Errorf("prepare a database: %w", err)
		}
	}
	nc, err := natsgo.Connect(p.broker)
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	_, err = js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: stream, Subjects: []string{"shop.>"}})
	return err
}

func createDatabase(ctx context.Context, server, name string) (string, error) {
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()); err != nil {
		return "", err
	}
	return withDatabase(server, name)
}

// serve runs what runs behind the HTTP front until ctx ends: a relay and a consumer for each service. In a real
// system these are processes of their own, and "outbox relay" is the relay.
func (p place) serve(ctx context.Context) error {
	orders, err := openOrders(ctx, p)
	if err != nil {
		return err
	}
	defer orders.close()
	payments, err := openPayments(ctx, p)
	if err != nil {
		return err
	}
	defer payments.close()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all sync.WaitGroup
	errs := make(chan error, 4)
	for _, run := range []func(context.Context) error{
		func(ctx context.Context) error { return p.relay(ctx, p.orders, "orders") },
		func(ctx context.Context) error { return p.relay(ctx, p.payments, "payments") },
		func(ctx context.Context) error { return p.consume(ctx, "orders", "shop.payments", orders.heard) },
		func(ctx context.Context) error { return p.consume(ctx, "payments", "shop.orders", payments.heard) },
	} {
		all.Go(func() {
			errs <- run(ctx)
			cancel() // one that ends takes the others with it
		})
	}
	all.Wait()
	close(errs)
	for e := range errs {
		err = errors.Join(err, e)
	}
	return err
}

// relay delivers what a service has committed.
func (p place) relay(ctx context.Context, database, name string) error {
	conn, err := pgx.ParseConfig(database)
	if err != nil {
		return err
	}
	source, err := polling.NewSnapshot(conn, name, polling.SnapshotConfig{})
	if err != nil {
		return err
	}
	broker, err := nats.New(p.broker, nats.Config{Subject: "shop.{topic}", Stream: stream})
	if err != nil {
		return err
	}
	defer broker.Close()
	r, err := relay.New(source, broker, relay.Config{Name: name})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// consume hands a service what it listens to.
func (p place) consume(ctx context.Context, name, subject string, handle consume.Handler) error {
	if p.meddle != nil {
		handle = p.meddle(handle)
	}
	consumer, err := nats.NewConsumer(p.broker, nats.Config{}, nats.ConsumerConfig{
		Stream: stream, Durable: name, Subjects: []string{subject},
		AckWait:  2 * time.Second, // what a killed process had comes again soon
		Handling: consume.Config{Parallel: 4},
	}, handle)
	if err != nil {
		return err
	}
	return consumer.Run(ctx)
}

// books are what both services have written down.
type books struct{ orders, ordered, open, payments, charged int }

func (b books) agree() bool { return b.orders == b.payments && b.ordered == b.charged && b.open == 0 }

func (p place) books(ctx context.Context) (b books, err error) {
	read := func(url, query string, to ...any) error {
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			return err
		}
		defer conn.Close(ctx)
		return conn.QueryRow(ctx, query).Scan(to...)
	}
	err = read(p.orders, `SELECT count(*), coalesce(sum(cents), 0), count(*) FILTER (WHERE paid_at IS NULL) FROM orders`, &b.orders, &b.ordered, &b.open)
	if err == nil {
		err = read(p.payments, `SELECT count(*), coalesce(sum(cents), 0) FROM payments`, &b.payments, &b.charged)
	}
	return b, err
}

// event is what both services tell each other.
type event struct {
	Order    string `json:"order"`
	Customer string `json:"customer"`
	Cents    int    `json:"cents"`
}

// writer numbers the messages of each key, so that "outbox verify" can tell whether any is missing.
func newWriter() (*outbox.Writer, error) {
	return outbox.NewWriter(outbox.WriterConfig{Sequences: true})
}
