package main

import (
	"sync"
	"time"

	"github.com/pgoutbox/outbox/internal/check"
)

// book numbers the events of each order, and remembers those under way: when each was committed, and which have been
// overtaken. The checker judges; the book is there for what a person wants to see meanwhile.
type book struct {
	mu       sync.Mutex
	drawn    []uint64 // by order, the last number
	highest  []uint64 // by order, of what has arrived
	underway map[check.ID]departure
}

// departure is an event on its way.
type departure struct {
	at     time.Time
	calm   bool // committed while nothing was broken
	poison bool // the broker will refuse it

	fate chan<- fate // gets what becomes of it, and has room for that; may be nil
}

// fate is what becomes of an event: it arrives, so long after its commit, or it is a dead letter.
type fate struct {
	took   time.Duration
	letter deadLetter
}

func newBook(orders int) *book {
	return &book{drawn: make([]uint64, orders), highest: make([]uint64, orders), underway: make(map[check.ID]departure)}
}

// draw returns the identity of an order's next event.
func (b *book) draw(order uint32) check.ID {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drawn[order]++
	return check.ID{Key: order, Seq: b.drawn[order]}
}

// depart records an event whose COMMIT is about to be sent.
func (b *book) depart(id check.ID, d departure) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.underway[id] = d
}

// settle forgets an event that won't arrive: there is no commit, or it has become a dead letter. It returns whether the
// broker was expected to refuse the event.
func (b *book) settle(id check.ID, letter *deadLetter) (poison bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	d := b.underway[id]
	delete(b.underway, id)
	if d.fate != nil && letter != nil {
		d.fate <- fate{letter: *letter}
	}
	return d.poison
}

// arrive records a delivery. It returns the departure, and false for an event that isn't under way. Others may write to
// the broker too, so id may be one that was never drawn.
func (b *book) arrive(id check.ID, now time.Time) (departure, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if int(id.Key) < len(b.highest) {
		b.highest[id.Key] = max(b.highest[id.Key], id.Seq)
	}
	d, found := b.underway[id]
	delete(b.underway, id)
	if d.fate != nil {
		d.fate <- fate{took: now.Sub(d.at)}
	}
	return d, found
}

// passed is whether a later event of its order has arrived.
func (b *book) passed(id check.ID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.highest[id.Key] > id.Seq
}

// overtaken counts the events that a later one of their order has overtaken, and that were committed longer than grace
// ago: when none is a dead letter, they are lost or will arrive out of order. Those of the last moment may be of writers
// that haven't had the time yet to report that they rolled back.
func (b *book) overtaken(now time.Time, grace time.Duration) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for id, d := range b.underway {
		if id.Seq < b.highest[id.Key] && !d.poison && now.Sub(d.at) > grace {
			n++
		}
	}
	return n
}
