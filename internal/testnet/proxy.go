// Package testnet is the network of tests that break it: a proxy that does to connections what networks do.
package testnet

import (
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Proxy stands before a server and does to its connections what networks do.
type Proxy struct {
	listener net.Listener
	target   atomic.Pointer[string]
	slow     atomic.Pointer[Slow]
	later    atomic.Int64 // nanoseconds

	mu      sync.Mutex
	conns   map[*joint]struct{}
	refuses bool
	closed  bool
	work    sync.WaitGroup
}

// Slow is a bad line. The zero value is a good one.
type Slow struct {
	Latency   time.Duration // before each piece
	Bandwidth int           // bytes per second; 0: unlimited
	Slice     int           // largest piece, in bytes; 0: 32 KiB
}

// joint is one connection of a client, joined to one to the server.
type joint struct {
	client, server *net.TCPConn
	// mute swallows what the server says, deaf what the client says.
	mute, deaf atomic.Bool
}

// StartProxy listens on 127.0.0.1. Connections are refused until Forward has named a server.
func StartProxy() (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start a proxy: %w", err)
	}
	p := &Proxy{listener: listener, conns: make(map[*joint]struct{})}
	p.slow.Store(&Slow{})
	p.work.Go(p.accept)
	return p, nil
}

// Addr returns host:port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Port returns the port of Addr.
func (p *Proxy) Port() int { return p.listener.Addr().(*net.TCPAddr).Port }

// Forward sends connections that are made from now on to another server.
func (p *Proxy) Forward(target string) { p.target.Store(&target) }

// Slow makes the line as bad as it says, for all connections.
func (p *Proxy) Slow(s Slow) { p.slow.Store(&s) }

// Distance has everything arrive later by half of a round trip, however much is under way, on the connections that are
// made from now on. It limits no bandwidth that matters.
func (p *Proxy) Distance(roundTrip time.Duration) { p.later.Store(int64(roundTrip / 2)) }

// LoseAnswers swallows what the server says on the connections that there are, while requests go on to
// reach it.
func (p *Proxy) LoseAnswers() { p.each(func(j *joint) { j.mute.Store(true) }) }

// HalfOpen swallows everything on the connections that there are, in both directions, and leaves them
// open. New ones work.
func (p *Proxy) HalfOpen() {
	p.each(func(j *joint) { j.mute.Store(true); j.deaf.Store(true) })
}

// Cut resets all connections and returns how many there were.
func (p *Proxy) Cut() int { return p.each((*joint).reset) }

// Refuse resets connections as soon as they are made, until told otherwise.
func (p *Proxy) Refuse(refuse bool) {
	p.mu.Lock()
	p.refuses = refuse
	p.mu.Unlock()
	if refuse {
		p.Cut()
	}
}

// Heal undoes everything. Connections that have swallowed something are reset: nothing good can come of
// them any more.
func (p *Proxy) Heal() {
	p.Slow(Slow{})
	p.Refuse(false)
	p.each(func(j *joint) {
		if j.mute.Load() || j.deaf.Load() {
			j.reset()
		}
	})
}

// Close resets all connections, stops listening and waits for what is under way.
func (p *Proxy) Close() {
	_ = p.listener.Close() // it can't fail in a way that matters
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.Cut()
	p.work.Wait()
}

func (p *Proxy) each(do func(*joint)) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for j := range p.conns {
		do(j)
	}
	return len(p.conns)
}

// reset closes both sides with a RST, so that nothing that is still in a buffer arrives.
func (j *joint) reset() {
	for _, c := range []*net.TCPConn{j.client, j.server} {
		_ = c.SetLinger(0) // the connection may have ended by itself
		_ = c.Close()
	}
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.work.Go(func() { p.join(client.(*net.TCPConn)) })
	}
}

func (p *Proxy) join(client *net.TCPConn) {
	j := &joint{client: client, server: &net.TCPConn{}}
	target := p.target.Load()
	if target == nil || !p.open() {
		j.reset()
		return
	}
	server, err := net.DialTimeout("tcp", *target, 5*time.Second)
	if err != nil {
		j.reset()
		return
	}
	j.server = server.(*net.TCPConn)
	p.mu.Lock()
	if p.refuses || p.closed {
		p.mu.Unlock()
		j.reset()
		return
	}
	p.conns[j] = struct{}{}
	p.mu.Unlock()

	var both sync.WaitGroup
	both.Go(func() { p.carry(j, j.client, j.server, &j.deaf) })
	both.Go(func() { p.carry(j, j.server, j.client, &j.mute) })
	both.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, j)
	j.reset()
}

func (p *Proxy) open() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.refuses && !p.closed
}

// carry passes on what from sends until one side hangs up. The side that hears nothing more is told, unless
// it is not to hear anything.
func (p *Proxy) carry(j *joint, from, conn *net.TCPConn, swallow *atomic.Bool) {
	const size = 32 << 10
	buffer := make([]byte, size)
	to, arrived := io.Writer(conn), func() {}
	if later := time.Duration(p.later.Load()); later > 0 {
		far := newFar(conn, later)
		to, arrived = far, far.close
	}
	for {
		slow := p.slow.Load()
		piece := buffer
		if slow.Slice > 0 {
			piece = buffer[:min(slow.Slice, size)]
		}
		n, err := from.Read(piece)
		if n > 0 && !swallow.Load() {
			pause := slow.Latency
			if slow.Bandwidth > 0 {
				pause += time.Duration(n) * time.Second / time.Duration(slow.Bandwidth)
			}
			if pause > 0 {
				time.Sleep(pause)
			}
			if _, werr := to.Write(piece[:n]); werr != nil {
				arrived()
				j.reset()
				return
			}
		}
		if err != nil {
			arrived()
			if swallow.Load() {
				return // a half-open connection: the other side is to find out by itself
			}
			j.reset()
			return
		}
	}
}

// far is a connection to somewhere distant: what is written arrives later.
type far struct {
	later    time.Duration
	parcels  chan parcel
	spare    chan []byte
	failed   atomic.Pointer[error]
	delivery sync.WaitGroup
}

// parcel is what one Write was given.
type parcel struct {
	data []byte
	due  time.Time
}

func newFar(to io.Writer, later time.Duration) *far {
	const waiting = 256
	f := &far{later: later, parcels: make(chan parcel, waiting), spare: make(chan []byte, waiting)}
	f.delivery.Go(func() {
		for p := range f.parcels {
			if f.failed.Load() == nil {
				time.Sleep(time.Until(p.due))
				if _, err := to.Write(p.data); err != nil {
					f.failed.Store(&err) // what is still waiting goes nowhere
				}
			}
			select {
			case f.spare <- p.data:
			default:
			}
		}
	})
	return f
}

// Write keeps a copy of data, and returns an error if something before it couldn't be written.
func (f *far) Write(data []byte) (int, error) {
	if err := f.failed.Load(); err != nil {
		return 0, *err
	}
	var buffer []byte
	select {
	case buffer = <-f.spare:
	default:
	}
	f.parcels <- parcel{append(buffer[:0], data...), time.Now().Add(f.later)}
	return len(data), nil
}

// close returns when everything has arrived.
func (f *far) close() {
	close(f.parcels)
	f.delivery.Wait()
}
