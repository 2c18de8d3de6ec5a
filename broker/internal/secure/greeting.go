package secure

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
)

// greeting is a connection that explains its errors until the server has said its first word.
type greeting struct {
	net.Conn
	plain   bool // without TLS
	explain func(error) error
	heard   atomic.Bool

	mu    sync.Mutex
	fault error // the first one before the first word
}

// direct is a greeting of which a client can see whether it still stands, without reading.
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

// Fault returns why the server's first word did not come on a connection that Connect returned, and nil as long as nothing
// is wrong, or if it came. A client library may have other words for it.
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

// note explains err, and keeps the first explanation. What the reason is, the read knows better than a write that fails
// at the same time, so that replaces what a write has left.
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

// whole is an error of which errors.Unwrap takes nothing off, as go-redis does, and errors.Is and As find all that is in it.
type whole struct{ error }

func (w whole) Unwrap() []error { return []error{w.error} }

var errSpeaksTLS = errors.New("the server speaks TLS at this port, and the client doesn't: turn TLS on, or connect to the port without it")

// isAlert reports whether a server's first bytes are an alert of TLS, by type and version, which begins no greeting.
func isAlert(first []byte) bool {
	return len(first) >= 2 && first[0] == 21 && first[1] == 3
}
