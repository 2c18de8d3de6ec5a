package grpc_test

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// proxy stands between client and server, and does to their traffic what it is told.
type proxy struct {
	listener net.Listener
	upstream string
	all      sync.WaitGroup

	delay    atomic.Int64 // nanoseconds of a round trip: a distance, through which any number of bytes travel at once
	swallow  atomic.Bool  // what the server says is lost
	cutAfter atomic.Int64 // bytes from the client after which the connection is cut; 0 is never
	sent     atomic.Int64 // bytes from the client that were passed on
	opened   atomic.Int64 // connections

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
}

func newProxy(t testing.TB, upstream string) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: listener, upstream: upstream, conns: map[net.Conn]struct{}{}}
	p.all.Go(p.serve)
	t.Cleanup(func() {
		listener.Close()
		p.mu.Lock()
		p.closed = true
		for conn := range p.conns {
			conn.Close()
		}
		p.mu.Unlock()
		p.all.Wait()
	})
	return p
}

func (p *proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.opened.Add(1)
		server, err := net.Dial("tcp", p.upstream)
		if err != nil {
			client.Close()
			continue
		}
		p.mu.Lock()
		p.conns[client], p.conns[server] = struct{}{}, struct{}{}
		if p.closed {
			client.Close()
			server.Close()
		}
		p.mu.Unlock()
		p.pass(server, client, func(n int) bool {
			sent := p.sent.Add(int64(n))
			limit := p.cutAfter.Load()
			return limit == 0 || sent < limit || !p.cutAfter.CompareAndSwap(limit, 0)
		})
		p.pass(client, server, func(int) bool { return true })
	}
}

type piece struct {
	bytes []byte
	due   time.Time
}

// pass copies from one side to the other, half a round trip later, until more says no.
func (p *proxy) pass(to, from net.Conn, more func(n int) bool) {
	fromServer := from.RemoteAddr().String() == p.upstream
	line := make(chan piece, 4096)
	p.all.Go(func() {
		defer close(line)
		defer from.Close()
		for {
			buf := make([]byte, 16<<10)
			n, err := from.Read(buf)
			if n > 0 {
				line <- piece{buf[:n], time.Now().Add(time.Duration(p.delay.Load() / 2))}
			}
			if err != nil {
				return
			}
		}
	})
	p.all.Go(func() {
		defer func() {
			to.Close()
			from.Close()
			for range line {
			}
		}()
		for piece := range line {
			if d := time.Until(piece.due); d > 0 {
				time.Sleep(d) // a slow network, not synchronisation
			}
			if fromServer && p.swallow.Load() {
				continue
			}
			if _, err := to.Write(piece.bytes); err != nil || !more(len(piece.bytes)) {
				return
			}
		}
	})
}
