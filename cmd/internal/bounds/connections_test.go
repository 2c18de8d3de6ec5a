package bounds

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgoutbox/outbox/internal/await"
)

// pipe is a connection to nothing.
func pipe(context.Context, string, string) (net.Conn, error) {
	conn, _ := net.Pipe()
	return conn, nil
}

// database is a client that holds one session, and needs some more to deliver.
type database struct {
	client    *Client
	yields    chan struct{}
	delivered int
}

// run delivers in turns until ctx ends, as the daemon does.
func (d *database) run(ctx context.Context, needs int, does time.Duration) {
	dial := d.client.Dial(pipe)
	for ctx.Err() == nil {
		var held []net.Conn
		asked := false
		for len(held) < needs && !asked {
			connecting, cancel := context.WithTimeout(ctx, await.Expiry(10*time.Second))
			done := make(chan struct{})
			go func() {
				select {
				case <-d.yields:
					asked = true
					cancel()
				case <-connecting.Done():
				}
				close(done)
			}()
			conn, err := dial(connecting, "tcp", "one")
			cancel()
			<-done
			if err != nil {
				break
			}
			held = append(held, conn)
		}
		for !asked && ctx.Err() == nil && len(held) == needs {
			select {
			case <-d.yields:
				asked = true
			case <-time.After(does):
				d.delivered++
			case <-ctx.Done():
			}
		}
		for _, conn := range held {
			_ = conn.Close()
			_ = conn.Close() // as drivers do
		}
		if asked {
			_ = d.client.Rejoin(ctx)
			continue
		}
		select { // as a session that has failed
		case <-time.After(time.Duration(rand.IntN(1000)) * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

func TestDatabasesThatNeedMoreSessionsThanThereAreTakeTurnsAndNoneIsStuck(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ databases, needs, limit int }{{6, 3, 8}, {20, 5, 12}, {40, 2, 20}, {3, 1, 8}, {30, 1, 8}} {
		synctest.Test(t, func(t *testing.T) {
			all := NewConnections(c.limit)
			ctx, stop := context.WithTimeout(t.Context(), 10*time.Minute)
			defer stop()
			var running sync.WaitGroup
			var list []*database
			for range c.databases {
				d := &database{yields: make(chan struct{}, 1)}
				d.client = all.Client(func() {
					select {
					case d.yields <- struct{}{}:
					default:
					}
				})
				list = append(list, d)
				running.Go(func() { d.run(ctx, c.needs, 100*time.Millisecond) })
			}
			for ctx.Err() == nil {
				time.Sleep(time.Second)
				for _, s := range all.Servers() {
					if s.Open > c.limit {
						t.Fatalf("%d sessions, the bound is %d", s.Open, c.limit)
					}
				}
			}
			running.Wait()
			most := slices.MaxFunc(list, func(a, b *database) int { return a.delivered - b.delivered }).delivered
			least := slices.MinFunc(list, func(a, b *database) int { return a.delivered - b.delivered }).delivered
			t.Logf("%+v: %d to %d deliveries each; %+v", c, least, most, all.Servers())
			if least < most/2 || least == 0 {
				t.Errorf("%+v: one has delivered %d times, another %d", c, least, most)
			}
			if s := all.Servers(); len(s) > 0 && s[0].Open != 0 {
				t.Errorf("sessions are left: %+v", s)
			}
		})
	}
}

func TestADatabaseWithoutASessionComesBeforeSecondOnes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := NewConnections(8)
		first := all.Client(nil)
		var held []net.Conn
		for range 8 {
			conn, err := first.Dial(pipe)(t.Context(), "tcp", "one")
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, conn)
		}
		var order []string
		var waiting sync.WaitGroup
		wait := func(name string, client *Client) {
			waiting.Go(func() {
				if conn, err := client.Dial(pipe)(t.Context(), "tcp", "one"); err != nil {
					t.Error(err)
				} else {
					order = append(order, name)
					_ = conn.Close()
				}
			})
			synctest.Wait()
		}
		wait("second", first)
		wait("another database", all.Client(nil))
		if s := all.Servers()[0]; s.Open != 8 || s.Waiting != 2 {
			t.Fatalf("%+v", s)
		}
		if !first.Crowded() {
			t.Error("nobody is told that others wait")
		}
		_ = held[0].Close()
		waiting.Wait()
		if !slices.Equal(order, []string{"another database", "second"}) {
			t.Errorf("the order is %v", order)
		}
	})
}

func TestWhoWaitsNoLongerIsToldWhyAndLeavesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := NewConnections(LeastConnections)
		client := all.Client(nil)
		dial := client.Dial(pipe)
		var held []net.Conn
		for range LeastConnections {
			conn, err := dial(t.Context(), "tcp", "one")
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, conn)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := dial(ctx, "tcp", "one")
		var full *ErrConnections
		if !errors.As(err, &full) || full.Address != "one" || full.Waited != 10*time.Second {
			t.Fatalf("%v", err)
		}
		if other, err := dial(t.Context(), "tcp", "two"); err != nil {
			t.Errorf("another server: %v", err)
		} else {
			_ = other.Close()
		}
		refuses := client.Dial(func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("refused") })
		if _, err := refuses(t.Context(), "tcp", "three"); err == nil {
			t.Error("no error")
		}
		for _, conn := range held {
			_ = conn.Close()
		}
		for _, s := range all.Servers() {
			if s.Open != 0 || s.Waiting != 0 {
				t.Errorf("left: %+v", s)
			}
		}
	})
}
