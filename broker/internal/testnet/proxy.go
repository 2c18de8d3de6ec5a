// Package testnet is the network of the brokers' tests: a proxy between client and server that is far away, stands
// still, loses answers, or breaks; and receivers in processes of their own.
package testnet

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Proxy passes TCP connections on to one server, and does to their traffic what it is told. What it is told concerns
// all connections, those that are open too. It is safe for concurrent use.
type Proxy struct {
	upstream string
	all      sync.WaitGroup

	delay      atomic.Int64 // nanoseconds of a round trip
	cutAt      atomic.Int64 // bytes from clients at which a connection is cut; 0 is never
	sent       atomic.Int64 // bytes from clients that were passed on
	opened     atomic.Int64
	swallow    atomic.Bool
	cutAnswers atomic.Bool

	mu       sync.Mutex
	addr     string
	listener net.Listener // nil while the proxy is down
	links    map[*link]struct{}
	thawed   chan struct{} // closed by Thaw; nil while nothing is frozen
}

// New returns a proxy that listens on 127.0.0.1 until the test ends. The server at upstream, a host with a port, need
// not be there yet.
func New(t testing.TB, upstream string) *Proxy {
	t.Helper()
	p := &Proxy{upstream: upstream, addr: "127.0.0.1:0", links: map[*link]struct{}{}}
	if err := p.Up(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Down(); err != nil {
			t.Error(err)
		}
		p.all.Wait()
	})
	return p
}

// Addr is where the proxy listens. It stays the same through Down and Up.
func (p *Proxy) Addr() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.addr
}

// Delay moves the server away: a round trip takes so much longer. It is a distance, not a narrow line: any number of
// bytes are under way at once.
func (p *Proxy) Delay(roundTrip time.Duration) { p.delay.Store(int64(roundTrip)) }

// SwallowAnswers loses what the server says, without a sign.
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

// Opened is how many connections clients have opened.
func (p *Proxy) Opened() int { return int(p.opened.Load()) }

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

// Cut breaks all connections. New ones are taken.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut()
}

func (p *Proxy) cut() {
	for l := range p.links {
		l.close()
	}
}

// Down breaks all connections and refuses new ones, as a server that is gone.
func (p *Proxy) Down() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut()
	if p.listener == nil {
		return nil
	}
	err := p.listener.Close()
	p.listener = nil
	return err
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
	p.listener, p.addr = listener, listener.Addr().String()
	p.all.Go(func() { p.serve(listener) })
	return nil
}

func (p *Proxy) serve(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		p.opened.Add(1)
		server, err := net.Dial("tcp", p.upstream)
		if err != nil {
			client.Close()
			continue
		}
		l := &link{client: client, server: server, closed: make(chan struct{})}
		p.mu.Lock()
		p.links[l] = struct{}{}
		if p.listener != listener {
			l.close() // Down was called in the meantime
		}
		p.mu.Unlock()
		p.all.Go(func() {
			var both sync.WaitGroup
			both.Go(func() { p.pass(l, server, client, p.toServer) })
			both.Go(func() { p.pass(l, client, server, p.toClient) })
			both.Wait()
			p.mu.Lock()
			defer p.mu.Unlock()
			delete(p.links, l)
		})
	}
}
