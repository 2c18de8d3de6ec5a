package testnet

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// link is one connection of a client, joined to one to the server.
type link struct {
	client, server *net.TCPConn
	once           sync.Once
	closed         chan struct{}
	mute, deaf     atomic.Bool // swallow what the server says, and what the client says
}

// close closes both sides. What has been passed on arrives.
func (l *link) close() {
	l.once.Do(func() {
		close(l.closed)
		_ = l.client.Close() // the connection may have ended by itself
		_ = l.server.Close()
	})
}

// reset closes both sides with a RST, so that nothing arrives that is still in a buffer.
func (l *link) reset() {
	_ = l.client.SetLinger(0)
	_ = l.server.SetLinger(0)
	l.close()
}

// piece is the result of one read, with the time when it arrives at the other end.
type piece struct {
	bytes []byte
	due   time.Time
}

// line is one direction of a link.
type line struct {
	pieces chan piece
	spare  chan []byte
}

// pass copies one direction until either side hangs up, or deliver returns false. The other side is told then, unless
// what is said in this direction gets lost: that side is to find out by itself.
func (p *Proxy) pass(l *link, from *net.TCPConn, deliver func(*link, []byte) bool, lost *atomic.Bool) {
	const waiting = 1024
	way := line{make(chan piece, waiting), make(chan []byte, waiting)}
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(way.pieces)
		p.read(l, from, way)
	})
	going := true
	for piece := range way.pieces {
		if going {
			time.Sleep(time.Until(piece.due)) // a distance, not synchronisation
			if going = p.awaitThaw(l) && deliver(l, piece.bytes); !going {
				l.close()
			}
		}
		select {
		case way.spare <- piece.bytes:
		default:
		}
	}
	reading.Wait()
	if !lost.Load() {
		l.close()
	}
}

// read puts what from sends into a line. It waits for a slow line before it reads on, so that the client is held up.
func (p *Proxy) read(l *link, from *net.TCPConn, way line) {
	const size = 32 << 10
	for {
		var buffer []byte
		select {
		case buffer = <-way.spare:
			buffer = buffer[:size]
		default:
			buffer = make([]byte, size)
		}
		slow := p.slow.Load()
		if slow.Slice > 0 {
			buffer = buffer[:min(slow.Slice, size)]
		}
		n, err := from.Read(buffer)
		if n > 0 {
			pause := slow.Latency
			if slow.Bandwidth > 0 {
				pause += time.Duration(n) * time.Second / time.Duration(slow.Bandwidth)
			}
			time.Sleep(pause)
			p.awaitThaw(l) // a frozen network takes nothing
			way.pieces <- piece{buffer[:n], time.Now().Add(time.Duration(p.later.Load()))}
		}
		if err != nil {
			return
		}
	}
}

// awaitThaw waits until nothing is frozen, and reports whether the link is still open then.
func (p *Proxy) awaitThaw(l *link) bool {
	p.mu.Lock()
	thawed := p.thawed
	p.mu.Unlock()
	if thawed == nil {
		return true
	}
	select {
	case <-thawed:
		return true
	case <-l.closed:
		return false
	}
}

func (p *Proxy) toServer(l *link, bytes []byte) bool {
	if l.deaf.Load() {
		return true
	}
	sent := p.sent.Add(int64(len(bytes))) // before the server can answer
	_, err := l.server.Write(bytes)
	limit := p.cutAt.Load()
	cut := limit > 0 && sent >= limit && p.cutAt.CompareAndSwap(limit, 0)
	return err == nil && !cut
}

func (p *Proxy) toClient(l *link, bytes []byte) bool {
	if p.cutAnswers.Load() {
		return false
	}
	if l.mute.Load() || p.swallow.Load() {
		return true
	}
	_, err := l.client.Write(bytes)
	return err == nil
}
