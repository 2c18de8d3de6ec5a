// Package shared keeps one connection for all callers of a broker.
package shared

import (
	"context"
	"sync"
)

// Conn is a connection that never reconnects. Its zero value stands for none.
type Conn interface {
	comparable

	// Usable reports whether new callers may use it. After false it is never true again.
	Usable() bool

	// Sever ends it because of a fault.
	Sever(cause error)

	// Close ends it, also if it has ended by itself.
	Close()
}

// Link is the current connection. It is dialled when first used, and again at the first use after it has become
// unusable. Safe for concurrent use.
type Link[C Conn] struct {
	dial    func(context.Context) (C, error)
	prepare func(context.Context, C) error
	ended   error
	fault   func(error) error
	turn    chan struct{} // capacity 1: held by the caller that dials

	mu     sync.Mutex
	now    *link[C] // nil for none
	closed bool
	stop   context.CancelCauseFunc // ends the dial that goes on
}

// link is a connection and whether it is prepared.
type link[C Conn] struct {
	conn     C
	turn     chan struct{} // capacity 1: held by the caller that prepares
	prepared bool          // guarded by turn
}

// New returns a link that is made by dial, which ends with its context and leaves nothing open if it fails. Callers get
// the error ended after Close, and fault of the cause if their context ends while they wait for another caller that
// dials or prepares. prepare makes a connection fit for publishing, see Ready.
func New[C Conn](dial func(context.Context) (C, error), prepare func(context.Context, C) error,
	ended error, fault func(error) error) *Link[C] {
	return &Link[C]{dial: dial, prepare: prepare, ended: ended, fault: fault, turn: make(chan struct{}, 1)}
}

// Get returns the current connection, or dials. One caller dials, with its own context, while the others wait for it.
// If it fails, the next of them dials.
func (l *Link[C]) Get(ctx context.Context) (c C, err error) {
	now, err := l.get(ctx)
	if err != nil {
		return c, err
	}
	return now.conn, nil
}

// Ready is Get for a connection that is prepared, by the first caller of Ready. A connection that can't be prepared is
// severed. A connection that was made to ask whether the server answers is not prepared: Get changes nothing there.
func (l *Link[C]) Ready(ctx context.Context) (c C, err error) {
	now, err := l.get(ctx)
	if err != nil {
		return c, err
	}
	select {
	case now.turn <- struct{}{}:
		defer func() { <-now.turn }()
	case <-ctx.Done():
		return c, l.fault(context.Cause(ctx))
	}
	if !now.prepared {
		if err := l.prepare(ctx, now.conn); err != nil {
			now.conn.Sever(err)
			return c, err
		}
		now.prepared = true
	}
	return now.conn, nil
}

func (l *Link[C]) get(ctx context.Context) (*link[C], error) {
	if now, err := l.usable(); now != nil || err != nil {
		return now, err
	}
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return nil, l.fault(context.Cause(ctx))
	}
	if now, err := l.usable(); now != nil || err != nil {
		return now, err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	if !l.note(nil, stop) {
		return nil, l.ended
	}
	c, err := l.dial(ctx)
	var next *link[C]
	if err == nil {
		next = &link[C]{conn: c, turn: make(chan struct{}, 1)}
	}
	if !l.note(next, nil) {
		if err == nil {
			c.Close()
		}
		return nil, l.ended
	}
	return next, err
}

// note takes over a new connection, if there is one, and what ends the dial. It returns false after Close.
func (l *Link[C]) note(next *link[C], stop context.CancelCauseFunc) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	if next != nil {
		l.now = next
	}
	l.stop = stop
	return true
}

// Current returns the connection that was dialled last, usable or not, or none after Close.
func (l *Link[C]) Current() (c C) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.now != nil {
		c = l.now.conn
	}
	return c
}

// Close closes the current connection, and ends the context of a caller that dials; it waits until that one has nothing
// open. Callers get the error ended from now on, also those that wait. Close may be called more than once.
func (l *Link[C]) Close() {
	l.mu.Lock()
	now, stop := l.now, l.stop
	l.now, l.stop, l.closed = nil, nil, true
	l.mu.Unlock()
	if stop != nil {
		stop(l.ended)
	}
	if now != nil {
		now.conn.Close()
	}
	l.turn <- struct{}{}
	<-l.turn
}

// usable returns the current connection if callers may use it, else nil.
func (l *Link[C]) usable() (*link[C], error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, l.ended
	}
	if l.now != nil && l.now.conn.Usable() {
		return l.now, nil
	}
	return nil, nil
}
