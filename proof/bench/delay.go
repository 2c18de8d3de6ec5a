package main

import (
	"fmt"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// delay is a TCP proxy that makes a server distant: what passes arrives half a round trip later, however
// much it is. It limits no bandwidth that matters.
type delay struct {
	listener net.Listener
	target   atomic.Pointer[string]
	half     atomic.Int64 // nanoseconds

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
	work   sync.WaitGroup
}

// startDelay listens; connections are refused until there is a target.
func startDelay() (*delay, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen before the broker: %w", err)
	}
	d := &delay{listener: listener, conns: make(map[net.Conn]struct{})}
	d.work.Go(d.accept)
	return d, nil
}

func (d *delay) address() string       { return d.listener.Addr().String() }
func (d *delay) forward(target string) { d.target.Store(&target) }
func (d *delay) set(rtt time.Duration) { d.half.Store(int64(rtt / 2)) }

func (d *delay) accept() {
	for {
		client, err := d.listener.Accept()
		if err != nil {
			return
		}
		target := d.target.Load()
		if target == nil {
			client.Close()
			continue
		}
		d.work.Go(func() {
			server, err := net.DialTimeout("tcp", *target, 5*time.Second)
			if err != nil {
				client.Close()
				return
			}
			if !d.track(client, server) {
				return
			}
			var both sync.WaitGroup
			both.Go(func() { d.carry(client, server) })
			both.Go(func() { d.carry(server, client) })
			both.Wait()
			d.forget(client, server)
		})
	}
}

func (d *delay) track(conns ...net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range conns {
		if d.closed {
			c.Close()
		} else {
			d.conns[c] = struct{}{}
		}
	}
	return !d.closed
}

func (d *delay) forget(conns ...net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range conns {
		delete(d.conns, c)
	}
}

// parcel is what one read returned.
type parcel struct {
	data []byte
	due  time.Time
}

// carry passes on what from sends, in time, until one side hangs up; then it hangs up on both.
func (d *delay) carry(from, to net.Conn) {
	const size, waiting = 64 << 10, 256
	parcels := make(chan parcel, waiting)
	spare := make(chan []byte, waiting)
	var delivery sync.WaitGroup
	delivery.Go(func() {
		defer from.Close()
		defer to.Close()
		var err error
		for p := range parcels {
			if err == nil {
				time.Sleep(time.Until(p.due))
				_, err = to.Write(p.data)
			}
			if err != nil {
				from.Close() // ends the reading; what is still waiting goes nowhere
			}
			select {
			case spare <- p.data[:size]:
			default:
			}
		}
	})
	for {
		var buffer []byte
		select {
		case buffer = <-spare:
		default:
			buffer = make([]byte, size)
		}
		n, err := from.Read(buffer)
		if n > 0 {
			parcels <- parcel{buffer[:n], time.Now().Add(time.Duration(d.half.Load()))}
		}
		if err != nil {
			close(parcels)
			delivery.Wait()
			return
		}
	}
}

func (d *delay) close() {
	d.listener.Close()
	d.mu.Lock()
	d.closed = true
	for c := range d.conns {
		c.Close()
	}
	d.mu.Unlock()
	d.work.Wait()
}

// parseURL is url.Parse without the URL, and so the password, in its error.
func parseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("it is not a URL")
	}
	return u, nil
}
