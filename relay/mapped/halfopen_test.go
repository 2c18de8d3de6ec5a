package mapped

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

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
	for name, open := range strategies() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			var wires wires
			config := db.Config()
			config.DialFunc = wires.dial
			source, err := open(config, Config{Name: "one", Lease: 2 * time.Second, PollIdle: 5 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
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
