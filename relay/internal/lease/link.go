package lease

import (
	"context"
	"errors"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/dial"
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

// Share makes the lease write on the connection of a line instead of its own, which is closed. The connection of the
// line must be to the same server.
func (l *Lease) Share(ctx context.Context, ln *line.Line, conn *pgx.Conn) error {
	l.Link.Lock()
	defer l.Link.Unlock()
	if err := l.Failure(); err != nil {
		return err
	}
	dial.HangUp(l.Link.Conn)
	l.Link.Conn, l.Link.line, l.Link.fail = conn, ln, l.Fail
	if err := ln.Borrow(conn); err != nil {
		return l.Fail(err)
	}
	l.Link.has = true
	return l.move(context.WithoutCancel(ctx), 0, l.current(), nil)
}

// Own makes the lease write on a connection of its own, to the same server, instead of that of a line.
func (l *Lease) Own(ctx context.Context, conn *pgx.Conn) error {
	l.Link.Lock()
	defer l.Link.Unlock()
	if l.Link.has {
		l.Link.has = false
		l.Link.line.Return(l.Link.Conn)
	}
	l.Link.Conn, l.Link.line = conn, nil
	if err := l.Failure(); err != nil {
		return err
	}
	return l.move(context.WithoutCancel(ctx), 0, l.current(), nil)
}
