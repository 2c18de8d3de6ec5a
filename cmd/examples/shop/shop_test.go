package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/consume"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
)

// TestMain is also the services' process, which a test kills.
func TestMain(m *testing.M) {
	if at := os.Getenv("SHOP_SERVE"); at != "" {
		part := strings.Split(at, " ")
		all := place{orders: part[0], payments: part[1], broker: part[2], say: func(string, ...any) {}, meddle: unreliable}
		go func() { // whoever has started this has ended
			_, _ = io.Copy(io.Discard, os.Stdin)
			os.Exit(1)
		}()
		fmt.Fprintln(os.Stderr, all.serve(context.Background()))
		os.Exit(1)
	}
	servers.Main(m)
}

// unreliable delivers like a broker at its worst: what was applied comes again, and some handlers are cut off in
// the middle.
func unreliable(handle consume.Handler) consume.Handler {
	var applied sync.Map
	return func(ctx context.Context, msg *outbox.Message) error {
		if rand.N(4) == 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, rand.N(4*time.Millisecond))
			defer cancel()
		}
		if err := handle(ctx, msg); err != nil {
			return outbox.Unavailable(err)
		}
		if _, again := applied.LoadOrStore(msg.ID, true); !again {
			return outbox.Unavailable(errors.New("the acknowledgement was lost"))
		}
		return nil
	}
}

func TestTheShopRuns(t *testing.T) {
	t.Parallel()
	ctx := await.Context(t)
	var out bytes.Buffer
	if err := run(ctx, &out, 5); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	if text := out.String(); !strings.Contains(text, "5 orders of 6000 cents, 5 payments of 6000 cents: the books agree: true") {
		t.Errorf("it printed:\n%s", text)
	}
}

func TestTheBooksAgreeHoweverOftenServicesAreKilledAndMessagesRepeated(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	ctx := await.Context(t)
	all := place{broker: servers.OwnNATS(t).URL(), say: func(string, ...any) {}, orders: servers.TestDatabase(t),
		payments: servers.TestDatabase(t)}
	if err := all.prepare(ctx); err != nil {
		t.Fatal(err)
	}
	shop, err := openOrders(ctx, all)
	if err != nil {
		t.Fatal(err)
	}
	defer shop.close()
	front := httptest.NewServer(shop)
	defer front.Close()

	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	start := func() *exec.Cmd {
		c := exec.Command(self)
		c.Env = append(os.Environ(), "SHOP_SERVE="+all.orders+" "+all.payments+" "+all.broker)
		c.Stderr = &stderr
		if _, err := c.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		return c
	}
	end := func(c *exec.Cmd) {
		if err := c.Process.Kill(); err != nil {
			t.Error(err)
		}
		err := c.Wait()
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Errorf("the services ended by themselves: %v\n%s", err, &stderr)
		}
	}
	const kills, each = 4, 25
	services := start()
	for round := range kills {
		if err := order(front.URL, each); err != nil {
			t.Fatal(err)
		}
		// It is killed in the middle of its work: some of the round is charged, not all is paid.
		for want := round*each + each/3; ; time.Sleep(2 * time.Millisecond) {
			b, err := all.books(ctx)
			if err != nil {
				t.Fatalf("%v\n%s", err, &stderr)
			}
			if b.payments > want {
				break
			}
		}
		end(services)
		services = start()
	}
	defer func() { end(services) }()
	if err := all.settled(ctx, nil); err != nil {
		t.Fatalf("%v", err)
	}
	conn, err := pgx.Connect(ctx, all.payments)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var orders, charges int
	if err := conn.QueryRow(ctx, `SELECT count(DISTINCT order_id), count(*) FROM payments`).Scan(&orders, &charges); err != nil {
		t.Fatal(err)
	}
	if orders != kills*each || charges != orders {
		t.Errorf("%d orders were charged %d times, want %d", orders, charges, kills*each)
	}
}
