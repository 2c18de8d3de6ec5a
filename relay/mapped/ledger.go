package mapped

import (
	"slices"
	"sync"

	"github.com/pgoutbox/outbox/relay"
)

// ledger lists what was handed out and is not settled, in the order in which it was. Its memory is bounded
// by what the engine lets be in flight. Safe for concurrent use.
type ledger struct {
	mu      sync.Mutex
	last    uint64 // ordinal
	entries []entry
}

type entry struct {
	ref uint64
	row
}

// add hands out deliveries: they get their ordinals, and for a place that or their id, if it is a number.
func (l *ledger) add(ds []relay.Delivery, rows []row, numbered bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if need := len(l.entries) + len(ds); need > cap(l.entries) {
		l.entries = slices.Grow(l.entries, max(len(ds), need))
	}
	for i := range ds {
		l.last++
		ds[i].Ref = l.last
		ds[i].Position = int64(l.last)
		if numbered {
			ds[i].Position = number(rows[i].id)
		}
		l.entries = append(l.entries, entry{l.last, rows[i]})
	}
}

// number reads an id that is a whole number.
func number(id string) (n int64) {
	negative := id[0] == '-'
	for _, c := range []byte(id) {
		if c != '-' {
			n = n*10 + int64(c-'0')
		}
	}
	if negative {
		return -n
	}
	return n
}

// through returns what was handed out up to d and is not settled.
func (l *ledger) through(d *relay.Delivery) []entry {
	if d == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for n < len(l.entries) && l.entries[n].ref <= d.Ref {
		n++
	}
	return l.entries[:n:n]
}

// settle forgets the first n.
func (l *ledger) settle(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = l.entries[n:]
	if len(l.entries) == 0 {
		l.entries = nil
	}
}

// above returns the ids of all rows behind from, so that they aren't read again.
func (l *ledger) above(from int64, ids []string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.entries {
		if l.entries[i].by >= from {
			ids = append(ids, l.entries[i].id)
		}
	}
	return ids
}

// all returns a copy of what is not settled.
func (l *ledger) all() []entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]entry(nil), l.entries...)
}

// renew notes new tokens of claims, by the ids of their rows.
func (l *ledger) renew(tokens map[string]string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.entries {
		if token, ok := tokens[l.entries[i].id]; ok {
			l.entries[i].token = token
		}
	}
}
