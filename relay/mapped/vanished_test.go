package mapped

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// vanishing makes connections of a machine that can vanish: from then on nothing is sent any more, not even that they
// are closed.
type vanishing struct {
	gone  atomic.Bool
	mu    sync.Mutex
	conns []net.Conn
}

type vanishingConn struct {
	net.Conn
	of *vanishing
}

func (c vanishingConn) Write(b []byte) (int, error) {
	if c.of.gone.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c vanishingConn) Close() error {
	if c.of.gone.Load() {
		return c.SetReadDeadline(time.Unix(1, 0)) // for whoever reads here
	}
	return c.Conn.Close()
}

func (v *vanishing) through(t *testing.T, cfg *pgx.ConnConfig) *pgx.ConnConfig {
	dial := cfg.DialFunc
	cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		v.mu.Lock()
		defer v.mu.Unlock()
		v.conns = append(v.conns, conn)
		return vanishingConn{conn, v}, nil
	}
	t.Cleanup(func() {
		for _, c := range v.conns {
			_ = c.Close()
		}
	})
	return cfg
}

func TestWhatAMachineThatVanishedHadLockedIsFreeAfterALease(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"advisory", "skiplocked"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.Exec(`INSERT INTO events (topic, key) VALUES ('t', 'k')`)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			gets := func(who string, conn *pgx.ConnConfig) {
				source, err := strategies()[name](conn, Config{Name: who, Lease: time.Second, PollIdle: 5 * time.Millisecond})
				if err != nil {
					t.Fatal(err)
				}
				session, err := source.Acquire(ctx)
				if err != nil {
					t.Fatalf("%s: %v", who, err)
				}
				t.Cleanup(func() { _ = session.Close(context.WithoutCancel(ctx)) })
				if b, err := session.Next(ctx, 10); err != nil || len(b.Deliveries) != 1 {
					t.Fatalf("%s got %d messages, %v; want the one that nobody has settled", who, len(b.Deliveries), err)
				}
			}
			var machine vanishing
			gets("first", machine.through(t, db.Config()))
			machine.gone.Store(true)
			gets("second", db.Config())
		})
	}
}
