package mapped

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/relay"
)

// link is the connection that a session depends on: what the session has locked is its own as long as the connection
// lasts. The server ends the connection when it is silent for as long as the lease. So the link sends a statement every
// third of that time, and a statement that fails ends the session.
type link struct {
	lease time.Duration

	mu   sync.Mutex // held for a whole statement
	conn *pgx.Conn

	state struct {
		sync.Mutex
		said time.Time // when the last statement that was answered had been sent
		err  error
	}
	broken chan struct{} // closed when err is set

	stop  context.CancelFunc
	ended chan struct{}
}

// newLink keeps a connection alive until close, by calling keep every third of the lease.
func newLink(conn *pgx.Conn, lease time.Duration, keep func(ctx context.Context, conn *pgx.Conn) error) *link {
	l := &link{conn: conn, lease: lease, broken: make(chan struct{}), ended: make(chan struct{})}
	l.state.said = time.Now()
	ctx, stop := context.WithCancel(context.Background())
	l.stop = stop
	go l.keepAlive(ctx, keep)
	return l
}

func (l *link) keepAlive(ctx context.Context, keep func(ctx context.Context, conn *pgx.Conn) error) {
	defer close(l.ended)
	tick := time.NewTicker(l.lease / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.broken:
			return
		case <-tick.C:
		}
		// This doesn't use ctx: close would interrupt a statement and lose the connection with it. A statement that
		// isn't answered within the lease has lost the connection anyway.
		err := l.do(func(conn *pgx.Conn) error {
			saying, cancel := context.WithTimeout(context.Background(), l.lease)
			defer cancel()
			return keep(saying, conn)
		})
		if err != nil {
			return
		}
	}
}

// ping sends an empty statement.
func ping(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, "SELECT 1")
	return err
}

// do runs f on the connection between other statements. An error makes the link unusable, because its outcome is
// unknown.
func (l *link) do(f func(*pgx.Conn) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.failure(); err != nil {
		return err
	}
	since := time.Now()
	if err := f(l.conn); err != nil {
		if l.conn.IsClosed() && !outbox.IsPermanent(err) {
			err = fmt.Errorf("%w: its connection has ended: %w", relay.ErrLeaseLost, err)
		}
		return l.fail(err)
	}
	l.state.Lock()
	defer l.state.Unlock()
	l.state.said = since
	return nil
}

func (l *link) fail(err error) error {
	l.state.Lock()
	defer l.state.Unlock()
	if l.state.err == nil {
		l.state.err = err
		close(l.broken)
	}
	return err
}

// failure returns why the link is unusable, or nil.
func (l *link) failure() error {
	l.state.Lock()
	defer l.state.Unlock()
	return l.state.err
}

// expires is until when the server certainly keeps the session.
func (l *link) expires() time.Time {
	l.state.Lock()
	defer l.state.Unlock()
	if l.state.err != nil {
		return time.Time{}
	}
	return l.state.said.Add(l.lease)
}

var errClosed = errors.New("the session is closed")

// close stops keep, runs farewell if the link still works, and closes the connection.
func (l *link) close(farewell func(*pgx.Conn) error) error {
	l.stop()
	<-l.ended
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.failure()
	if err == nil {
		if farewell != nil {
			err = farewell(l.conn)
		}
		_ = l.fail(errClosed)
	}
	dial.HangUp(l.conn)
	return err
}
