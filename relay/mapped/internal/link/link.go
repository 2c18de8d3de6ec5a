// Package link keeps the connection that a session depends on.
package link

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/owner"
	"github.com/pgoutbox/outbox/schema"
)

// Link is the connection that a session depends on: what the session has locked is its own as long as the connection
// lasts. The server ends the connection when it is silent for as long as the lease. So the link sends a statement every
// third of that time, and a statement that fails ends the session.
type Link struct {
	*owner.Term
	keep func(ctx context.Context, conn *pgx.Conn) error

	mu   sync.Mutex // held for a whole statement
	Conn *pgx.Conn
	kept time.Time // when keep was called last
}

// New returns a link that calls keep before a statement if that was not called for a third of the lease.
func New(conn *pgx.Conn, length time.Duration, keep func(ctx context.Context, conn *pgx.Conn) error) *Link {
	now := time.Now()
	return &Link{Term: owner.NewTerm(length, now), Conn: conn, keep: keep, kept: now}
}

// Keep keeps a connection alive until Close, by calling keep every third of the lease. Then it calls watch, whose
// statements take turns with all others: on a slow line, all together would last longer than a short lease.
func Keep(conn *pgx.Conn, length time.Duration, keep func(ctx context.Context, conn *pgx.Conn) error,
	watch func(ctx context.Context, q schema.Querier) error) *Link {
	l := New(conn, length, keep)
	next := l.kept.Add(length / 3)
	l.Term.Keep(func() time.Duration { return time.Until(next) }, func(ctx context.Context) error {
		next = time.Now().Add(length / 3)
		since, err := l.enter(length / 6) // a clock that ticks early skips no turn
		if err := l.leave(since, err); err != nil {
			return err
		}
		// This doesn't use ctx: Close would interrupt a statement and lose the connection with it.
		err = watch(context.Background(), &turns{l, ctx})
		if err != nil && ctx.Err() == nil {
			_ = l.Fail(err)
		}
		return err
	})
	return l
}

// Ping sends an empty statement.
func Ping(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, "SELECT 1")
	return err
}

// Do runs f on the connection between other statements. An error makes the link unusable, because its outcome is
// unknown.
func (l *Link) Do(f func(*pgx.Conn) error) error {
	since, err := l.enter(l.Length / 3)
	if err == nil {
		err = f(l.Conn)
	}
	return l.leave(since, err)
}

// enter waits for the connection, and calls keep if that was called longer ago than every: others may wait for the
// connection, too, and keep behind them. It is followed by leave, whatever it returns.
func (l *Link) enter(every time.Duration) (since time.Time, err error) {
	l.mu.Lock()
	if err := l.Failure(); err != nil {
		return since, err
	}
	if since = time.Now(); since.Sub(l.kept) >= every {
		// A statement that isn't answered within the lease has lost the connection anyway.
		saying, cancel := context.WithTimeout(context.Background(), l.Length)
		defer cancel()
		l.kept = since
		err = l.keep(saying, l.Conn)
	}
	return since, err
}

// leave gives the connection back. An error of what was done with it makes the link unusable.
func (l *Link) leave(since time.Time, err error) error {
	defer l.mu.Unlock()
	if failure := l.Failure(); failure != nil {
		return failure
	}
	if err != nil {
		if l.Conn.IsClosed() && !outbox.IsPermanent(err) {
			err = fmt.Errorf("%w: its connection has ended: %w", relay.ErrLeaseLost, err)
		}
		return l.Fail(err)
	}
	l.Prolong(since)
	return nil
}

// turns runs each query in a turn of its own, which ends when its rows are closed. There are none once ended is done.
type turns struct {
	link  *Link
	ended context.Context
}

func (t *turns) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := t.ended.Err(); err != nil {
		return nil, err
	}
	since, err := t.link.enter(t.link.Length / 3)
	ctx, cancel := context.WithTimeout(ctx, t.link.Length)
	var rows pgx.Rows
	if err == nil {
		rows, err = t.link.Conn.Query(ctx, sql, args...)
	}
	if err != nil {
		defer cancel()
		return nil, t.link.leave(since, err)
	}
	return &turn{Rows: rows, end: sync.OnceFunc(func() {
		defer cancel()
		if err := rows.Err(); err != nil && t.link.Conn.IsClosed() {
			_ = t.link.leave(since, err)
			return
		}
		_ = t.link.leave(since, nil) // watch interprets the server's answer
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
	_, err := pgx.CollectOneRow(r.rows, func(row pgx.CollectableRow) (struct{}, error) { return struct{}{}, row.Scan(into...) })
	return err
}

// Expires is until when the server certainly keeps the session.
func (l *Link) Expires() time.Time {
	until, err := l.Until()
	if err != nil {
		return time.Time{}
	}
	return until
}

// Close stops to keep the connection, runs farewell if the link still works, and closes the connection.
func (l *Link) Close(farewell func(*pgx.Conn) error) error {
	l.StopKeeping()
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.Failure()
	if err == nil {
		if farewell != nil {
			err = farewell(l.Conn)
		}
		_ = l.Fail(owner.ErrClosed)
	}
	dial.HangUp(l.Conn)
	return err
}
