package daemon

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"slices"
	"sync"
)

// maxConnections bounds those to the HTTP port.
const maxConnections = 512

// connections bounds those of a server. When there is one too many, the one that has waited longest for its client is
// closed: so a probe, which asks at once, is answered however many connections are held open.
type connections struct {
	limit int

	mu      sync.Mutex
	all     map[net.Conn]bool
	waiting []net.Conn // for a request, or for the rest of one
}

type connKey struct{}

// guard makes the server report its connections.
func (c *connections) guard(s *http.Server) {
	c.all = map[net.Conn]bool{}
	s.ConnState = c.note
	s.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, connKey{}, conn)
	}
	next := s.Handler
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, _ := r.Context().Value(connKey{}).(net.Conn)
		c.note(conn, http.StateHijacked) // it has asked: it isn't closed before it is answered
		next.ServeHTTP(w, r)
	})
}

// note counts connections. StateActive is ignored: a first byte is no request.
func (c *connections) note(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if state == http.StateActive {
		return
	}
	if i := slices.Index(c.waiting, conn); i >= 0 {
		c.waiting = slices.Delete(c.waiting, i, i+1)
	}
	switch state {
	case http.StateNew, http.StateIdle:
		c.all[conn] = true
		c.waiting = append(c.waiting, conn)
	case http.StateClosed:
		delete(c.all, conn)
	}
	if len(c.all) > c.limit && len(c.waiting) > 0 {
		longest := c.waiting[0]
		c.waiting = c.waiting[1:]
		delete(c.all, longest)
		if t, ok := longest.(*tls.Conn); ok {
			longest = t.NetConn() // closing TLS first would take as long as the client likes
		}
		_ = longest.Close() // its goroutine reports it once more
	}
}
