package mapped

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

// wires are connections that can all go dead at once: nothing passes any more, and neither side hears of it, nor that
// the other has hung up. Those that are made later work.
type wires struct{ generation atomic.Int64 }

func (w *wires) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	silence, other := net.Pipe()
	return wire{conn, silence, other, w, w.generation.Load()}, nil
}

func (w *wires) goDead() { w.generation.Add(1) }

type wire struct {
	net.Conn
	silence, other net.Conn // what is read from a dead one
	of             *wires
	generation     int64
}

func (w wire) dead() bool { return w.of.generation.Load() != w.generation }

func (w wire) Write(p []byte) (int, error) {
	if w.dead() {
		return len(p), nil
	}
	return w.Conn.Write(p)
}

func (w wire) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if w.dead() {
		return w.silence.Read(p)
	}
	return n, err
}

func (w wire) SetDeadline(t time.Time) error {
	return errors.Join(w.silence.SetDeadline(t), w.Conn.SetDeadline(t))
}

func (w wire) SetReadDeadline(t time.Time) error {
	return errors.Join(w.silence.SetReadDeadline(t), w.Conn.SetReadDeadline(t))
}

func (w wire) Close() error { return errors.Join(w.silence.Close(), w.other.Close(), w.Conn.Close()) }

// A statement that is never answered ends with the lease, and another connection takes over.
func TestConnectionsThatAreHalfOpenAreGivenUp(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	for name, open := range strategies() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			var wires wires
			config := db.Config()
			config.DialFunc = wires.dial
			source := opened(t)(open(config, Config{Name: "one", Lease: await.Expiry(2 * time.Second), PollIdle: 5 * time.Millisecond}))
			broker := relaytest.NewMemory()
			ctx, stop := testdb.Run(t, source, broker, relay.Config{})
			for i, payload := range []string{"1", "2"} {
				if i > 0 { // while it does nothing but ask for rows
					db.Await("SELECT (" + unsettled(name) + ") = 0")
					wires.goDead()
				}
				db.Exec(insertEvent, payload, payload)
				err := broker.Wait(ctx, func() bool {
					all := broker.Messages()
					return len(all) > 0 && string(all[len(all)-1].Payload) == payload
				})
				if err != nil {
					t.Fatalf("message %s did not come: %v", payload, err)
				}
			}
			stop()
		})
	}
}

// A relay waits for another one's lock or lease. When its connections die, it notices, and can ask again by new ones.
func TestARelayThatWaitsGivesUpConnectionsThatAreHalfOpen(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	for name, open := range strategies() {
		if name != "advisory" && name != "xmin" && name != "serial" {
			continue // it waits for no other relay
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			first := opened(t)(open(db.Config(), Config{Name: "one"}))
			session, err := first.Acquire(t.Context())
			must(t, err)
			defer func() { _ = session.Close(t.Context()) }()
			var wires wires
			config := db.Config()
			config.DialFunc = wires.dial
			var log await.Buffer
			second := opened(t)(open(config, Config{Name: "two", Logger: slog.New(slog.NewTextHandler(&log, nil))}))
			ended := make(chan error, 1)
			go func() {
				_, err := second.Acquire(t.Context())
				ended <- err
			}()
			await.Until(t, "the second relay waits", func() bool { return strings.Contains(log.String(), "waiting") })
			wires.goDead()
			select {
			case err := <-ended:
				if err == nil || outbox.IsPermanent(err) {
					t.Errorf("the second relay ends with %v", err)
				}
			case <-await.Context(t).Done():
				t.Error("the second relay waits for an answer that never comes")
			}
		})
	}
}
