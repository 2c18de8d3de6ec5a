package secure

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
)

// greeting is a connection that explains its errors until the server's first bytes have come.
type greeting struct {
	net.Conn
	plain   bool // without TLS
	explain func(error) error
	heard   atomic.Bool

	mu    sync.Mutex
	fault error // the first fault before the first bytes
}

// direct is a greeting whose connection state a client can check without reading.
type direct struct {
	*greeting
	syscall.Conn
}

func greet(conn net.Conn, plain bool, explain func(error) error) net.Conn {
	g := &greeting{Conn: conn, plain: plain, explain: explain}
	if sys, ok := conn.(syscall.Conn); ok {
		return direct{g, sys}
	}
	return g
}

// Fault returns why the server's first bytes did not come on a connection that Connect returned, or nil if nothing is
// wrong so far, or if they came. The client library may report another error.
func Fault(conn net.Conn) error {
	switch conn := conn.(type) {
	case *greeting:
		return conn.cause()
	case direct:
		return conn.cause()
	}
	return nil
}

func (g *greeting) cause() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.fault
}

func (g *greeting) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	if g.heard.Load() {
		return n, err
	}
	if n > 0 {
		if g.plain && isAlert(p[:n]) {
			return 0, g.note(errSpeaksTLS) // the rest of the alert is not read
		}
		g.heard.Store(true)
		return n, err
	}
	return n, g.note(err)
}

func (g *greeting) Write(p []byte) (int, error) {
	n, err := g.Conn.Write(p)
	if g.heard.Load() {
		return n, err
	}
	return n, g.note(err)
}

// note explains err, and keeps the first explanation. A read knows the reason better than a write that fails at the
// same time, so it replaces the write's explanation.
func (g *greeting) note(err error) error {
	if err == nil {
		return nil
	}
	explained := error(whole{g.explain(err)})
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.fault == nil || alert(err) != "" {
		g.fault = explained
	}
	return explained
}

// whole is an error that errors.Unwrap doesn't unwrap, which go-redis would do, while errors.Is and As find everything
// in it.
type whole struct{ error }

func (w whole) Unwrap() []error { return []error{w.error} }

var errSpeaksTLS = errors.New("the server speaks TLS at this port, and the client doesn't: turn TLS on, or connect to the port without it")

// isAlert reports whether a server's first bytes are a TLS alert, by type and version. No greeting begins like that.
func isAlert(first []byte) bool {
	return len(first) >= 2 && first[0] == 21 && first[1] == 3
}
