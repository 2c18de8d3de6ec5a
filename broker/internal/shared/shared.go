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
}

// New returns a link that is made by dial. Callers get the error ended after Close, and fault of the cause if their
// context ends while they wait for another caller that dials.
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
	c, err := l.dial(ctx)
	if err != nil {
		return none, err
	}
	l.mu.Lock()
	closed := l.closed
	if !closed {
		l.now = c
	}
	l.mu.Unlock()
	if closed {
		c.Close()
		return none, l.ended
	}
	return c, nil
}

// Current returns the connection that was dialled last, usable or not, or none after Close.
func (l *Link[C]) Current() C {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now
}

// Close closes the current connection. It doesn't wait for a caller that dials: that one closes its connection when it
// has it, and returns the error that everyone gets from now on. Close may be called more than once.
func (l *Link[C]) Close() {
	var none C
	l.mu.Lock()
	c := l.now
	l.now, l.closed = none, true
	l.mu.Unlock()
	if c != none {
		c.Close()
	}
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
