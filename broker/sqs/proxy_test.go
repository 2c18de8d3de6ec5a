package sqs_test

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// proxy stands between client and server, and does to their traffic what it is told.
type proxy struct {
	addr, upstream string
	swallow        atomic.Bool // what the server says is lost, and then the connection
	frozen         atomic.Bool // nothing is passed on
	all            sync.WaitGroup

	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]struct{}
}

func newProxy(t testing.TB, upstream string) *proxy {
	t.Helper()
	p := &proxy{addr: "127.0.0.1:0", upstream: upstream, conns: map[net.Conn]struct{}{}}
	if err := p.up(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.down(); err != nil {
			t.Error(err)
		}
		p.all.Wait()
	})
	return p
}

// up listens, at the same address as before.
func (p *proxy) up() error {
	listener, err := net.Listen("tcp", p.addr)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.addr, p.listener = listener.Addr().String(), listener
	p.all.Go(func() { p.serve(listener) })
	return nil
}

// down breaks all connections, and takes no more.
func (p *proxy) down() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener == nil {
		return nil
	}
	err := p.listener.Close()
	p.listener = nil
	for conn := range p.conns {
		conn.Close()
	}
	return err
}

func (p *proxy) serve(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.upstream)
		if err != nil {
			client.Close()
			continue
		}
		p.mu.Lock()
		p.conns[client], p.conns[server] = struct{}{}, struct{}{}
		if p.listener != listener {
			client.Close()
			server.Close()
		}
		p.mu.Unlock()
		p.all.Go(func() { p.copy(server, client, false) })
		p.all.Go(func() { p.copy(client, server, true) })
	}
}

func (p *proxy) copy(to, from net.Conn, answers bool) {
	defer func() {
		to.Close()
		from.Close()
		p.mu.Lock()
		delete(p.conns, from)
		p.mu.Unlock()
	}()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if answers && n > 0 && p.swallow.Load() {
			return
		}
		for p.frozen.Load() && p.open(from) {
			time.Sleep(time.Millisecond) // a network that stands still
		}
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (p *proxy) open(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, open := p.conns[conn]
	return open && p.listener != nil
}
