package main

import (
	"slices"
	"sync"
	"time"

	"github.com/pgoutbox/outbox/internal/check"
)

// book remembers the events under way: when each was committed, and which have been overtaken. The checker judges; the
// book is there for what a person wants to see meanwhile.
type book []*page

// page is one order's.
type page struct {
	mu       sync.Mutex
	seq      uint64 // last one drawn
	highest  uint64 // delivered
	underway map[uint64]departure
	awaited  []awaited
}

// departure is an event on its way.
type departure struct {
	at     time.Time
	calm   bool // committed while nothing was broken
	poison bool // the broker will refuse it

	arrived func(took time.Duration) // may be nil
}

// awaited is somebody who waits for the order's first event after a number.
type awaited struct {
	after uint64
	then  func()
}

func newBook(keys int) book {
	b := make(book, keys)
	for i := range b {
		b[i] = &page{underway: make(map[uint64]departure)}
	}
	return b
}

// draw returns the next number of an order.
func (b book) draw(key uint32) uint64 {
	p := b[key]
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seq++
	return p.seq
}

// depart records an event whose COMMIT is about to be sent.
func (b book) depart(id check.ID, d departure) {
	p := b[id.Key]
	p.mu.Lock()
	defer p.mu.Unlock()
	p.underway[id.Seq] = d
}

// cancel forgets an event that won't arrive, or has become a dead letter.
func (b book) cancel(id check.ID) {
	p := b.page(id)
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.underway, id.Seq)
}

// arrive records a delivery. It returns the departure, and false for an event that isn't under way.
func (b book) arrive(id check.ID) (departure, bool) {
	p := b.page(id)
	if p == nil {
		return departure{}, false
	}
	p.mu.Lock()
	p.highest = max(p.highest, id.Seq)
	d, found := p.underway[id.Seq]
	delete(p.underway, id.Seq)
	var due []func()
	p.awaited = slices.DeleteFunc(p.awaited, func(a awaited) bool {
		if a.after < id.Seq {
			due = append(due, a.then)
			return true
		}
		return false
	})
	p.mu.Unlock()
	for _, then := range due {
		then()
	}
	return d, found
}

// await calls then when an event of id's order arrives that is later than id.
func (b book) await(id check.ID, then func()) {
	p := b[id.Key]
	p.mu.Lock()
	defer p.mu.Unlock()
	p.awaited = append(p.awaited, awaited{after: id.Seq, then: then})
}

// overtaken counts the events that a later one of their order has overtaken, and that were committed longer than grace
// ago: when none is a dead letter, they are lost or will arrive out of order. Those of the last moment may be of writers
// that haven't had the time yet to say that they rolled back.
func (b book) overtaken(now time.Time, grace time.Duration) int {
	n := 0
	for _, p := range b {
		p.mu.Lock()
		for seq, d := range p.underway {
			if seq < p.highest && !d.poison && now.Sub(d.at) > grace {
				n++
			}
		}
		p.mu.Unlock()
	}
	return n
}

// page returns nil for an identity that the demo never gave out: payloads come from a broker that others may write to.
func (b book) page(id check.ID) *page {
	if int(id.Key) >= len(b) {
		return nil
	}
	return b[id.Key]
}
