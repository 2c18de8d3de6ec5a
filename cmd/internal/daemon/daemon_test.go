package daemon

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/brokers"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
)

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }

// lines is a standard output that tells of each line.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
	came chan struct{}
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case l.came <- struct{}{}:
	default:
	}
	return l.text.Write(b)
}

func TestTwoDaemonsServeTwoDatabasesInOneProcess(t *testing.T) {
	t.Parallel()
	ctx := await.Context(t)
	var running sync.WaitGroup
	defer running.Wait()
	both, stop := context.WithCancel(ctx)
	defer stop()
	for _, topic := range []string{"orders", "invoices"} {
		conn, err := pgx.Connect(ctx, testdb.Installed(t).URL)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		writer, err := outbox.NewWriter(outbox.WriterConfig{})
		if err == nil {
			err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
				_, err := writer.Write(ctx, tx, outbox.Message{Topic: topic, Payload: []byte("{}")})
				return err
			})
		}
		if err != nil {
			t.Fatal(err)
		}
		cfg := fields.Default[config.Config]()
		cfg.Name, cfg.HTTP.Listen = "relay", "127.0.0.1:0"
		to := fields.Default[config.Destination]()
		to.Name, to.Broker.Stdout = "all", &brokers.Stdout{}
		cfg.Destinations = []config.Destination{to}
		out := &lines{came: make(chan struct{}, 1)}
		d, err := New([]Database{{Name: config.DefaultDatabase, Origin: "the test", Conn: conn.Config(), Config: cfg}},
			Options{Stdout: out, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() {
			if err := d.Run(both); err != nil {
				t.Errorf("%s: %v", topic, err)
			}
			if text := out.text.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, topic) {
				t.Errorf("%s: printed %q", topic, text)
			}
		})
		select {
		case <-out.came:
		case <-ctx.Done():
			t.Fatalf("%s: nothing came", topic)
		}
	}
}

// stuck is a broker whose calls don't return.
type stuck struct {
	called  chan struct{}
	release chan struct{}
}

func (b *stuck) Publish(context.Context, []*outbox.Message) []error {
	b.called <- struct{}{}
	<-b.release
	return nil
}

func (b *stuck) Close() error { <-b.release; return nil }

func TestADaemonEndsThoughItsBrokerHangs(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	ctx := await.Context(t)
	conn, err := pgx.Connect(ctx, testdb.Installed(t).URL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(ctx, "INSERT INTO outbox.messages (topic, payload) VALUES ('orders', '{}')"); err != nil {
		t.Fatal(err)
	}
	cfg := fields.Default[config.Config]()
	cfg.Name, cfg.HTTP.Listen = "relay", "127.0.0.1:0"
	to := fields.Default[config.Destination]()
	to.Name, to.Broker.Stdout, to.DrainTimeout, to.Lease = "all", &brokers.Stdout{}, await.Expiry(time.Millisecond), time.Hour
	cfg.Destinations = []config.Destination{to}
	d, err := New([]Database{{Name: config.DefaultDatabase, Origin: "the test", Conn: conn.Config(), Config: cfg}},
		Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	broker := &stuck{make(chan struct{}, 1), make(chan struct{})}
	defer close(broker.release)
	d.units[0].parts[0].broker.Broker = broker
	d.units[0].brokers = append(d.units[0].brokers, broker)
	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- d.Run(running) }()
	next := func() (err error) {
		select {
		case <-broker.called:
		case err = <-ended:
		case <-ctx.Done():
			t.Fatal("nothing comes")
		}
		return err
	}
	if err := next(); err != nil {
		t.Fatal(err)
	}
	stop()
	if err := next(); !errors.Is(err, relay.ErrHung) {
		t.Errorf("the daemon has ended with %v", err)
	}
	var left bool
	if err := conn.QueryRow(ctx, "SELECT lease_until > clock_timestamp() FROM outbox.cursors").Scan(&left); err != nil || !left {
		t.Errorf("the lease lasts: %v; %v", left, err)
	}
}
