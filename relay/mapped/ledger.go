package mapped

import (
	"slices"
	"sync"

	"github.com/pgoutbox/outbox/relay"
)

// ledger lists the rows that were handed out and are not settled, in the order in which they were handed out. The
// engine's limit on messages in flight bounds its memory. Safe for concurrent use.
type ledger struct {
	mu      sync.Mutex
	last    uint64 // the last ordinal
	entries []entry
}

type entry struct {
	ref uint64
	row
}

// add hands out deliveries. Each gets its ordinal; its place is the ordinal, or its id if that is a number.
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

// through returns the rows up to d that were handed out and are not settled.
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

// settle forgets the first n rows.
func (l *ledger) settle(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = l.entries[n:]
	if len(l.entries) == 0 {
		l.entries = nil
	}
}

// above returns the ids of all rows behind from, so that polls don't read them again.
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

// all returns a copy of the rows that are not settled.
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
