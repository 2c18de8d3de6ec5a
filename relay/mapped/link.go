package mapped

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/schema"
)

// link is the connection that a session depends on: what the session has locked is its own as long as the connection
// lasts. The server ends the connection when it is silent for as long as the lease. So the link sends a statement every
// third of that time, and a statement that fails ends the session.
type link struct {
	lease time.Duration
	keep  func(ctx context.Context, conn *pgx.Conn) error

	mu   sync.Mutex // held for a whole statement
	conn *pgx.Conn
	kept time.Time // when keep was called last

	state struct {
		sync.Mutex
		said time.Time // when the last statement that was answered had been sent
		err  error
	}
	broken chan struct{} // closed when err is set

	stop  context.CancelFunc
	ended chan struct{}
}

// newLink returns a link that calls keep before a statement if that was not called for a third of the lease.
func newLink(conn *pgx.Conn, lease time.Duration, keep func(ctx context.Context, conn *pgx.Conn) error) *link {
	l := &link{conn: conn, lease: lease, keep: keep, kept: time.Now(), broken: make(chan struct{}), ended: make(chan struct{})}
	l.state.said = l.kept
	return l
}

// keepLink keeps a connection alive until close, by calling keep every third of the lease. Then it calls watch, whose
// statements take turns with all others: on a slow line, all together would last longer than a short lease.
func keepLink(conn *pgx.Conn, lease time.Duration, keep func(ctx context.Context, conn *pgx.Conn) error,
	watch func(ctx context.Context, q schema.Querier) error) *link {
	l := newLink(conn, lease, keep)
	ctx, stop := context.WithCancel(context.Background())
	l.stop = stop
	go l.keepAlive(ctx, watch)
	return l
}

// stopKeeping leaves the connection as it is.
func (l *link) stopKeeping() {
	l.stop()
	<-l.ended
}

func (l *link) keepAlive(ctx context.Context, watch func(ctx context.Context, q schema.Querier) error) {
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
		since, err := l.enter(l.lease / 6) // a clock that ticks early skips no turn
		if l.leave(since, err) != nil {
			return
		}
		// This doesn't use ctx: close would interrupt a statement and lose the connection with it.
		if err := watch(context.Background(), &turns{l, ctx}); err != nil {
			if ctx.Err() == nil {
				_ = l.fail(err)
			}
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
	since, err := l.enter(l.lease / 3)
	if err == nil {
		err = f(l.conn)
	}
	return l.leave(since, err)
}

// enter waits for the connection, and calls keep if that was called longer ago than every: others may wait for the
// connection, too, and keep behind them. It is followed by leave, whatever it returns.
func (l *link) enter(every time.Duration) (since time.Time, err error) {
	l.mu.Lock()
	if err := l.failure(); err != nil {
		return since, err
	}
	if since = time.Now(); since.Sub(l.kept) >= every {
		// A statement that isn't answered within the lease has lost the connection anyway.
		saying, cancel := context.WithTimeout(context.Background(), l.lease)
		defer cancel()
		l.kept = since
		err = l.keep(saying, l.conn)
	}
	return since, err
}

// leave gives the connection back. An error of what was done with it makes the link unusable.
func (l *link) leave(since time.Time, err error) error {
	defer l.mu.Unlock()
	if failure := l.failure(); failure != nil {
		return failure
	}
	if err != nil {
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

// turns runs each query in a turn of its own, which ends when its rows are closed. There are none once ended is done.
type turns struct {
	link  *link
	ended context.Context
}

func (t *turns) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := t.ended.Err(); err != nil {
		return nil, err
	}
	since, err := t.link.enter(t.link.lease / 3)
	ctx, cancel := context.WithTimeout(ctx, t.link.lease)
	var rows pgx.Rows
	if err == nil {
		rows, err = t.link.conn.Query(ctx, sql, args...)
	}
	if err != nil {
		defer cancel()
		return nil, t.link.leave(since, err)
	}
	return &turn{Rows: rows, end: sync.OnceFunc(func() {
		defer cancel()
		if err := rows.Err(); err != nil && t.link.conn.IsClosed() {
			_ = t.link.leave(since, err)
			return
		}
		_ = t.link.leave(since, nil) // watch tells what the server's answer means
	})}, nil
}

func (t *turns) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, err := t.Query(ctx, sql, args...)
	return oneRow{rows, err}
}

type turn struct {
	pgx.Rows
	end func()
}

func (t *turn) Close() {
	t.Rows.Close()
	t.end()
}

type oneRow struct {
	rows pgx.Rows
	err  error
}

func (r oneRow) Scan(into ...any) error {
	if r.err != nil {
		return r.err
	}
	defer r.rows.Close()
	if !r.rows.Next() {
		return cmp.Or(r.rows.Err(), pgx.ErrNoRows)
	}
	err := r.rows.Scan(into...)
	r.rows.Close()
	return cmp.Or(err, r.rows.Err())
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

// close stops to keep the connection, runs farewell if the link still works, and closes the connection.
func (l *link) close(farewell func(*pgx.Conn) error) error {
	l.stopKeeping()
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
