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

	// Close ends it, also if it has ended by itself.
	Close()
}

// Link is the current connection. It is dialled when first used, and again at the first use after it has become
// unusable. Safe for concurrent use.
type Link[C Conn] struct {
	dial  func(context.Context) (C, error)
	ended error
	fault func(error) error
	turn  chan struct{} // capacity 1: held by the caller that dials

	mu     sync.Mutex
	now    C
	closed bool
	stop   context.CancelCauseFunc // ends the dial that goes on
}

// New returns a link that is made by dial, which ends with its context and leaves nothing open if it fails. Callers get
// the error ended after Close, and fault of the cause if their context ends while they wait for another caller that
// dials.
func New[C Conn](dial func(context.Context) (C, error), ended error, fault func(error) error) *Link[C] {
	return &Link[C]{dial: dial, ended: ended, fault: fault, turn: make(chan struct{}, 1)}
}

// Get returns the current connection, or dials. One caller dials, with its own context, while the others wait for it.
// If it fails, the next of them dials.
func (l *Link[C]) Get(ctx context.Context) (C, error) {
	var none C
	if c, err := l.usable(); c != none || err != nil {
		return c, err
	}
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return none, l.fault(context.Cause(ctx))
	}
	if c, err := l.usable(); c != none || err != nil {
		return c, err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	if !l.note(none, stop) {
		return none, l.ended
	}
	c, err := l.dial(ctx)
	if !l.note(c, nil) {
		if err == nil {
			c.Close()
		}
		return none, l.ended
	}
	return c, err
}

// note takes over a new connection, if there is one, and what ends the dial. It returns false after Close.
func (l *Link[C]) note(c C, stop context.CancelCauseFunc) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	var none C
	if c != none {
		l.now = c
	}
	l.stop = stop
	return true
}

// Current returns the connection that was dialled last, usable or not, or none after Close.
func (l *Link[C]) Current() C {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now
}

// Close closes the current connection, and ends the context of a caller that dials; it waits until that one has nothing
// open. Callers get the error ended from now on, also those that wait. Close may be called more than once.
func (l *Link[C]) Close() {
	var none C
	l.mu.Lock()
	c, stop := l.now, l.stop
	l.now, l.stop, l.closed = none, nil, true
	l.mu.Unlock()
	if stop != nil {
		stop(l.ended)
	}
	if c != none {
		c.Close()
	}
	l.turn <- struct{}{}
	<-l.turn
}

// usable returns the current connection if callers may use it, else none.
func (l *Link[C]) usable() (c C, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return c, l.ended
	}
	if l.now != c && l.now.Usable() {
		return l.now, nil
	}
	return c, nil
}
