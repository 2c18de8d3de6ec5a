// Two services and everything between them, in one program that shows what happens:
//
//	go run ./cmd/examples/shop
//
// The orders service takes an order over HTTP and commits its row together with the event. A relay carries
// the event to the broker; the payments service charges the customer, once, and says so in an event of its own;
// the orders service hears of it and marks the order as paid. Each service has a database of its own.
// PostgreSQL and NATS are started for the time of the program (make servers installs them).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/signal"
	"path"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/internal/servers"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	count := flag.Int("orders", 10, "how many orders to place")
	flag.Parse()
	if err := run(ctx, os.Stdout, *count); err != nil {
		fmt.Fprintln(os.Stderr, "shop:", err)
		os.Exit(1)
	}
}

// run starts servers and services, places orders, and waits until all are paid.
func run(ctx context.Context, out io.Writer, count int) (err error) {
	postgres, err := servers.StartPostgres(ctx, servers.PostgresConfig{Fsync: true})
	if err != nil {
		return fmt.Errorf("start PostgreSQL (make servers installs it): %w", err)
	}
	defer func() { err = errors.Join(err, postgres.Close()) }()
	broker, err := servers.StartNATS(ctx, servers.NATSConfig{})
	if err != nil {
		return fmt.Errorf("start NATS (make servers installs it): %w", err)
	}
	defer func() { err = errors.Join(err, broker.Close()) }()
	all := place{broker: broker.URL(), say: log.New(out, "", 0).Printf}
	for name, to := range map[string]*string{"orders": &all.orders, "payments": &all.payments} {
		if *to, err = createDatabase(ctx, postgres.URL("postgres"), name); err != nil {
			return err
		}
	}
	if err := all.prepare(ctx); err != nil {
		return err
	}
	running, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- all.serve(running)
		close(ended)
	}()
	defer func() {
		cancel()
		err = errors.Join(err, <-ended)
	}()

	shop, err := openOrders(ctx, all)
	if err != nil {
		return err
	}
	defer shop.close()
	front := httptest.NewServer(shop) // any http.Server
	defer front.Close()
	if err := order(front.URL, count); err != nil {
		return err
	}
	return all.settled(ctx, ended)
}

// order is a customer who places orders.
func order(front string, count int) error {
	for i := range count {
		body := fmt.Sprintf(`{"customer": "customer-%d", "cents": %d}`, i%3, 1000+100*i)
		answer, err := http.Post(front+"/orders", "application/json", strings.NewReader(body))
		if err != nil {
			return err
		}
		text, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if err != nil || answer.StatusCode != http.StatusCreated {
			return fmt.Errorf("place an order: %s %s %v", answer.Status, text, err)
		}
	}
	return nil
}

// settled waits until every order is paid, and compares the books of both services.
func (p place) settled(ctx context.Context, ended <-chan error) error {
	for {
		books, err := p.books(ctx)
		if err != nil {
			return err
		}
		if books.open == 0 {
			p.say("%d orders of %d cents, %d payments of %d cents: the books agree: %v",
				books.orders, books.ordered, books.payments, books.charged, books.agree())
			if !books.agree() {
				return errors.New("the books don't agree")
			}
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-ended:
			return fmt.Errorf("a service has ended: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// withDatabase returns the URL of another database of the same server.
func withDatabase(server, name string) (string, error) {
	u, err := url.Parse(server)
	if err != nil {
		return "", err
	}
	u.Path = path.Join("/", name)
	return u.String(), nil
}
