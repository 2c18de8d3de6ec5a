package testdb

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/testnet"
)

// Line makes connections that can die without a word, as when the machine at their end vanishes: the server sees them
// open, nothing is sent any more, not even that they are closed, and so nothing is answered.
type Line struct {
	mu    sync.Mutex
	conns []*mortalConn
}

type mortalConn struct {
	net.Conn
	dead atomic.Bool

	mu     sync.Mutex
	killed bool // nothing reads any more
}

// SetDeadline and SetReadDeadline give a killed connection no more time: pgx sets deadlines, and takes them back.
func (c *mortalConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *mortalConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.killed {
		t = time.Unix(1, 0)
	}
	return c.Conn.SetReadDeadline(t)
}

func (c *mortalConn) kill() error {
	c.mu.Lock()
	c.killed = true
	c.mu.Unlock()
	return c.SetReadDeadline(time.Time{})
}

func (c *mortalConn) Write(b []byte) (int, error) {
	if c.dead.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *mortalConn) Close() error {
	if c.dead.Load() {
		return c.kill() // for a goroutine that reads here
	}
	return c.Conn.Close()
}

// Through has cfg connect by way of the line, and returns it. The connections are closed at the end of the test.
func (l *Line) Through(t *testing.T, cfg *pgx.ConnConfig) *pgx.ConnConfig {
	dial := cfg.DialFunc
	cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		c := &mortalConn{Conn: conn}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.conns = append(l.conns, c)
		return c, nil
	}
	t.Cleanup(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, c := range l.conns {
			_ = c.Conn.Close()
		}
	})
	return cfg
}

// Kill lets all connections die that there are, and ends what reads from them: nothing waits for an answer, as after
// the end of the process.
func (l *Line) Kill() {
	l.Die()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		_ = c.kill()
	}
}

// Die lets all connections die that there are, and returns how many.
func (l *Line) Die() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		c.dead.Store(true)
	}
	return len(l.conns)
}

// Distant has cfg connect by way of a proxy, through which each round trip takes so much longer, and returns it.
func Distant(t *testing.T, cfg *pgx.ConnConfig, roundTrip time.Duration) *pgx.ConnConfig {
	t.Helper()
	proxy := testnet.New(t, net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port))))
	proxy.Distance(roundTrip)
	host, port, err := net.SplitHostPort(proxy.Addr())
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Host, cfg.Port, cfg.Fallbacks = host, uint16(n), nil
	return cfg
}
