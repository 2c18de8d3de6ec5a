package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/line"
)

// Link is a connection that writes. It is locked for a whole write, from the decision what to write until its outcome
// is known. No goroutine waits for the lock while it holds another lock of this package.
//
// The connection is the link's own, or that of a line, which the link borrows while it is locked.
type Link struct {
	mu     sync.Mutex
	Server string
	Conn   *pgx.Conn

	line *line.Line // nil: the connection is its own
	has  bool       // it has borrowed it
	fail func(error) error
}

// Lock waits until the connection is free. If it was that of a line and is lost, the lease has failed then.
func (l *Link) Lock() {
	l.mu.Lock()
	if l.line == nil {
		return
	}
	err := l.line.Borrow(l.Conn)
	if l.has = err == nil; !l.has {
		_ = l.fail(err)
	}
}

// Unlock gives the connection back.
func (l *Link) Unlock() {
	if l.has {
		l.has = false
		l.line.Return(l.Conn)
	}
	l.mu.Unlock()
}

// HangUp closes the connection if it is the link's own. Nobody may use it.
func (l *Link) HangUp() {
	if l.line == nil {
		dial.HangUp(l.Conn)
	}
}

// ErrServer means that two connections have reached different servers: one address can lead to several, and the
// snapshots of a standby would lose messages.
var ErrServer = errors.New("two connections have reached different servers: give the address of the primary alone, " +
	"or add target_session_attrs=read-write")

// restLength is the length of the lease of a session that rests on a shared connection: it costs next to nothing to
// keep. The end of its process is known by its lock, and the server ends a shared session that is silent.
const restLength = time.Minute

// length is that of the lease as of the next write. The link is held.
func (l *Lease) length() time.Duration {
	if l.Link.has && l.locked && l.resting != nil && l.resting() {
		return max(l.Length, restLength)
	}
	return l.Length
}

// bounded is the context of a write. The link is held. The end of ctx doesn't interrupt a statement on a shared
// connection, which would be lost to all.
func (l *Lease) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	end := l.Expires()
	if l.Link.has {
		ctx = context.WithoutCancel(ctx)
		if limit := time.Now().Add(line.Within); limit.Before(end) {
			end = limit
		}
	}
	return context.WithDeadline(ctx, end)
}

// Share makes the lease write on the connection of a line instead of its own, which is closed. The connection of the
// line must be to the same server. resting tells whether nothing happens: the lease is a long one then.
func (l *Lease) Share(ctx context.Context, ln *line.Line, conn *pgx.Conn, resting func() bool) error {
	l.Link.Lock()
	defer l.Link.Unlock()
	if err := l.leaveLock(ctx); err != nil {
		return err
	}
	dial.HangUp(l.Link.Conn)
	l.Link.Conn, l.Link.line, l.Link.fail, l.resting = conn, ln, l.Fail, resting
	if err := ln.Borrow(conn); err != nil {
		return l.Fail(err)
	}
	l.Link.has, l.lock.Shared = true, true
	return l.move(ctx, 0, l.current(), nil)
}

// Own makes the lease write on a connection of its own, to the same server, instead of that of a line.
func (l *Lease) Own(ctx context.Context, conn *pgx.Conn) error {
	l.Link.Lock()
	defer l.Link.Unlock()
	err := l.leaveLock(ctx)
	if l.Link.has {
		l.Link.has = false
		l.Link.line.Return(l.Link.Conn)
	}
	l.Link.Conn, l.Link.line, l.lock.Shared = conn, nil, false
	if err != nil {
		return err
	}
	return l.move(ctx, 0, l.current(), nil)
}

// leaveLock gives the lock back, so that another session of this process can have it. Whoever has it meanwhile can't
// take the lease by it, because the cursor says before that the owner has none.
func (l *Lease) leaveLock(ctx context.Context) error {
	if err := l.Failure(); err != nil || !l.locked {
		return err
	}
	ctx, cancel := l.bounded(ctx)
	defer cancel()
	tag, err := l.Link.Conn.Exec(ctx, lockedSQL, l.destination, l.group, l.Epoch, false)
	if err == nil && tag.RowsAffected() == 0 {
		err = relay.ErrLeaseLost
	}
	if err == nil {
		err = l.lock.Unlock(ctx, l.Link.Conn)
	}
	if err != nil {
		return l.Fail(fmt.Errorf("leave the lock: %w", err))
	}
	l.locked, l.tryAt = false, time.Time{}
	return nil
}
