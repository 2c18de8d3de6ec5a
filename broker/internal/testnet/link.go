package testnet

import (
	"net"
	"sync"
	"time"
)

// link is a connection of a client and what it is passed on to.
type link struct {
	client, server net.Conn
	once           sync.Once
	closed         chan struct{}
}

func (l *link) close() {
	l.once.Do(func() {
		close(l.closed)
		l.client.Close()
		l.server.Close()
	})
}

// piece is what was read at once, and when it arrives at the other end.
type piece struct {
	bytes []byte
	due   time.Time
}

// pass copies one direction until either end closes, or deliver says no.
func (p *Proxy) pass(l *link, to, from net.Conn, deliver func(to net.Conn, bytes []byte) bool) {
	line := make(chan piece, 4096)
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(line)
		for {
			bytes := make([]byte, 16<<10)
			n, err := from.Read(bytes)
			p.stand(l) // or a network that stands still would take what comes
			if n > 0 {
				select {
				case line <- piece{bytes[:n], time.Now().Add(time.Duration(p.delay.Load() / 2))}:
				case <-l.closed:
				}
			}
			if err != nil {
				return
			}
		}
	})
	for piece := range line {
		if late := time.Until(piece.due); late > 0 {
			time.Sleep(late) // a distance, not synchronisation
		}
		if !p.stand(l) || !deliver(to, piece.bytes) {
			break
		}
	}
	l.close()
	for range line { // the reader may be about to send
	}
	reading.Wait()
}

// stand returns when nothing is frozen, with false if the link was closed instead.
func (p *Proxy) stand(l *link) bool {
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

func (p *Proxy) toServer(server net.Conn, bytes []byte) bool {
	sent := p.sent.Add(int64(len(bytes))) // before the server can answer
	_, err := server.Write(bytes)
	limit := p.cutAt.Load()
	cut := limit > 0 && sent >= limit && p.cutAt.CompareAndSwap(limit, 0)
	return err == nil && !cut
}

func (p *Proxy) toClient(client net.Conn, bytes []byte) bool {
	if p.cutAnswers.Load() {
		return false
	}
	if p.swallow.Load() {
		return true
	}
	_, err := client.Write(bytes)
	return err == nil
}
