// Package socket interrupts client libraries that take no context, by closing the connection below them.
package socket

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"
)

// Socket is the connection below TLS and the library, which can be closed at any moment. Safe for concurrent use.
type Socket struct {
	// Dead is closed when Sever has been called.
	Dead chan struct{}

	severed sync.Once
	cause   error

	mu     sync.Mutex
	conn   net.Conn
	closed bool
}

// New returns a socket that holds no connection yet.
func New() *Socket { return &Socket{Dead: make(chan struct{})} }

// Sever closes the connection, and the library above closes the rest. To close the library's connection itself would
// wait for the server, or for a publisher that is stuck in a write. The first call gives the cause.
func (s *Socket) Sever(cause error) {
	s.severed.Do(func() {
		s.cause = cause
		close(s.Dead)
		s.Shut()
	})
}

// Cause is that of Sever. It may be asked for when Dead is closed.
func (s *Socket) Cause() error { return s.cause }

// Alive reports whether nobody has called Sever.
func (s *Socket) Alive() bool {
	select {
	case <-s.Dead:
		return false
	default:
		return true
	}
}

// Hold takes conn. If Shut came before, it closes conn at once and returns net.ErrClosed.
func (s *Socket) Hold(conn net.Conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		conn.Close()
		return net.ErrClosed
	}
	s.conn = conn
	return nil
}

// Shut closes the connection, and any connection held later.
func (s *Socket) Shut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.conn != nil {
		s.conn.Close()
	}
}

// grace is how long a call may take to notice that its context has ended.
const grace = 250 * time.Millisecond

// Guard severs the connection of a client library by that name when ctx has ended and release isn't called soon after:
// then a write is stuck, which no context interrupts. release ends the watch, and waits for a Sever that has begun.
func (s *Socket) Guard(ctx context.Context, library string) (release func()) {
	finished := make(chan struct{})
	var watch sync.WaitGroup
	watch.Add(1)
	stop := context.AfterFunc(ctx, func() {
		defer watch.Done()
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-finished:
		case <-timer.C:
			s.Sever(fmt.Errorf("%s: a write was stuck: %w", library, context.Cause(ctx)))
		}
	})
	return func() {
		close(finished)
		if !stop() {
			watch.Wait()
		}
	}
}
