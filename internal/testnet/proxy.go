// Package testnet is the network of tests that break it: a proxy between client and server that does to connections
// what networks do.
package testnet

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Proxy passes TCP connections on to a server, and breaks them as its methods say. Unless a method says otherwise, it
// concerns all connections, open ones too. Its methods may be called from several goroutines.
type Proxy struct {
	addr string
	work sync.WaitGroup

	target     atomic.Pointer[string]
	slow       atomic.Pointer[Slow]
	later      atomic.Int64 // nanoseconds
	swallow    atomic.Bool
	cutAnswers atomic.Bool
	cutAt      atomic.Int64 // bytes from clients at which a connection is cut; 0 is never
	sent       atomic.Int64 // bytes from clients that were passed on
	opened     atomic.Int64

	mu       sync.Mutex
	listener net.Listener // nil while the proxy is down
	links    map[*link]struct{}
	refuses  bool
	thawed   chan struct{} // closed by Thaw; nil while nothing is frozen
}

// Slow is a bad line. The zero value is a good one.
type Slow struct {
	Latency   time.Duration // before each piece
	Bandwidth int           // bytes per second; 0: unlimited
	Slice     int           // largest piece, in bytes; 0: 32 KiB
}

// StartProxy listens on 127.0.0.1 until Close. Connections are refused until Forward has named a server.
func StartProxy() (*Proxy, error) {
	p := &Proxy{addr: "127.0.0.1:0", links: make(map[*link]struct{})}
	p.slow.Store(&Slow{})
	if err := p.Up(); err != nil {
		return nil, fmt.Errorf("start a proxy: %w", err)
	}
	p.addr = p.listener.Addr().String()
	return p, nil
}

// New returns a proxy that listens until the test ends. The server at target, a host with a port, need not be there
// yet.
func New(t testing.TB, target string) *Proxy {
	t.Helper()
	p, err := StartProxy()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	p.Forward(target)
	return p
}

// Addr returns host:port. It stays the same through Down and Up.
func (p *Proxy) Addr() string { return p.addr }

// Forward sends connections that are made from now on to another server.
func (p *Proxy) Forward(target string) { p.target.Store(&target) }

// Opened returns how many connections clients have opened.
func (p *Proxy) Opened() int { return int(p.opened.Load()) }

// Slow makes the line as bad as it says.
func (p *Proxy) Slow(s Slow) { p.slow.Store(&s) }

// Distance moves the server away: a round trip takes so much longer. It limits no bandwidth that matters, since much
// can be under way at once.
func (p *Proxy) Distance(roundTrip time.Duration) { p.later.Store(int64(roundTrip / 2)) }

// LoseAnswers swallows what the server says on the connections that there are, while requests go on to
// reach it.
func (p *Proxy) LoseAnswers() { p.each(func(l *link) { l.mute.Store(true) }) }

// HalfOpen swallows everything on the connections that there are, in both directions, and leaves them
// open. New ones work.
func (p *Proxy) HalfOpen() {
	p.each(func(l *link) { l.mute.Store(true); l.deaf.Store(true) })
}

// SwallowAnswers loses what the server says, on new connections too, without a sign.
func (p *Proxy) SwallowAnswers(on bool) { p.swallow.Store(on) }

// CutAnswers breaks a connection when the server says something on it, and loses that.
func (p *Proxy) CutAnswers(on bool) { p.cutAnswers.Store(on) }

// CutAfter breaks one connection: that on which clients have sent the last of the next n bytes. They are passed on. 0
// takes the order back.
func (p *Proxy) CutAfter(n int) {
	if n > 0 {
		n += int(p.sent.Load())
	}
	p.cutAt.Store(int64(n))
}

// Freeze stops all traffic, and Thaw lets it go on. Connections stay open. Neither fails; they are shaped for
// relaytest.BrokerFaults.
func (p *Proxy) Freeze() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.thawed == nil {
		p.thawed = make(chan struct{})
	}
	return nil
}

// Thaw ends Freeze.
func (p *Proxy) Thaw() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.thawed != nil {
		close(p.thawed)
		p.thawed = nil
	}
	return nil
}

// Cut resets all connections. New ones are taken.
func (p *Proxy) Cut() { p.each((*link).reset) }

// Refuse resets connections as soon as they are made, until told otherwise.
func (p *Proxy) Refuse(refuse bool) {
	p.mu.Lock()
	p.refuses = refuse
	p.mu.Unlock()
	if refuse {
		p.Cut()
	}
}

// Heal undoes Slow, Refuse, LoseAnswers and HalfOpen. Connections that have swallowed something are reset: nothing good
// can come of them any more.
func (p *Proxy) Heal() {
	p.Slow(Slow{})
	p.Refuse(false)
	p.each(func(l *link) {
		if l.mute.Load() || l.deaf.Load() {
			l.reset()
		}
	})
}

// Down resets all connections and stops listening, as a server that is gone.
func (p *Proxy) Down() error {
	p.mu.Lock()
	listener := p.listener
	p.listener = nil
	p.mu.Unlock()
	p.Cut()
	if listener == nil {
		return nil
	}
	return listener.Close()
}

// Up ends Down.
func (p *Proxy) Up() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		return nil
	}
	listener, err := net.Listen("tcp", p.addr)
	if err != nil {
		return err
	}
	p.listener = listener
	p.work.Go(func() { p.accept(listener) })
	return nil
}

// Close resets all connections, stops listening and waits for what is under way. There is no Up afterwards.
func (p *Proxy) Close() {
	_ = p.Down() // it can't fail in a way that matters
	p.work.Wait()
}

func (p *Proxy) each(do func(*link)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		do(l)
	}
}

func (p *Proxy) accept(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		p.opened.Add(1)
		p.work.Go(func() { p.join(listener, client.(*net.TCPConn)) })
	}
}

// join joins the connection of a client to one to the server, unless there is to be none.
func (p *Proxy) join(listener net.Listener, client *net.TCPConn) {
	l := &link{client: client, server: &net.TCPConn{}, closed: make(chan struct{})}
	defer l.reset()
	target := p.target.Load()
	if target == nil || !p.takes(listener, nil) {
		return
	}
	server, err := net.DialTimeout("tcp", *target, 5*time.Second)
	if err != nil {
		return
	}
	l.server = server.(*net.TCPConn)
	if !p.takes(listener, l) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { p.pass(l, l.client, p.toServer, &l.deaf) })
	both.Go(func() { p.pass(l, l.server, p.toClient, &l.mute) })
	both.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

// takes reports whether connections are taken, and notes one.
func (p *Proxy) takes(listener net.Listener, l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuses || p.listener != listener {
		return false
	}
	if l != nil {
		p.links[l] = struct{}{}
	}
	return true
}
