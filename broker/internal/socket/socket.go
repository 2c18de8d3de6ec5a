// Package socket interrupts client libraries that take no context, by closing the connection below them.
package socket

import (
	"context"
	"net"
	"sync"
	"time"
)

// Socket is the connection below TLS and the library, which can be closed at any moment. The zero Socket holds no
// connection yet. Safe for concurrent use.
type Socket struct {
	mu     sync.Mutex
	conn   net.Conn
	closed bool
}

// Hold takes conn. If Close came before, it closes conn at once and returns net.ErrClosed.
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

// Close closes the connection, and any connection held later.
func (s *Socket) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.conn != nil {
		s.conn.Close()
	}
}

// Guard calls stuck with the cause when ctx has ended and release isn't called within grace: then a write is stuck,
// which no context interrupts. release ends the watch, and waits for a call of stuck that has begun.
func Guard(ctx context.Context, grace time.Duration, stuck func(cause error)) (release func()) {
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
			stuck(context.Cause(ctx))
		}
	})
	return func() {
		close(finished)
		if !stop() {
			watch.Wait()
		}
	}
}
