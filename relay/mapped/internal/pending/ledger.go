// Package pending remembers which rows a session has handed out, and which of them wait for another attempt.
package pending

import (
	"slices"
	"sync"

	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/mapped/internal/existing"
)

// Ledger lists the rows that were handed out and are not settled, in the order in which they were handed out. The
// engine's limit on messages in flight bounds its memory. Safe for concurrent use.
type Ledger struct {
	mu      sync.Mutex
	last    uint64 // the last ordinal
	entries []Entry
}

// Entry is a row that was handed out, with its ordinal.
type Entry struct {
	Ref uint64
	existing.Row
}

// Add hands out deliveries. Each gets its ordinal; its place is the ordinal, or its id if that is a number.
func (l *Ledger) Add(ds []relay.Delivery, rows []existing.Row, numbered bool) {
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
			ds[i].Position = existing.Number(rows[i].ID)
		}
		l.entries = append(l.entries, Entry{l.last, rows[i]})
	}
}

// Through returns the rows up to d that were handed out and are not settled.
func (l *Ledger) Through(d *relay.Delivery) []Entry {
	if d == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for n < len(l.entries) && l.entries[n].Ref <= d.Ref {
		n++
	}
	return l.entries[:n:n]
}

// Settle forgets the first n rows.
func (l *Ledger) Settle(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = l.entries[n:]
	if len(l.entries) == 0 {
		l.entries = nil
	}
}

// Above returns the ids of all rows behind from, so that polls don't read them again.
func (l *Ledger) Above(from int64, ids []string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.entries {
		if l.entries[i].By >= from {
			ids = append(ids, l.entries[i].ID)
		}
	}
	return ids
}

// All returns a copy of the rows that are not settled.
func (l *Ledger) All() []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Entry(nil), l.entries...)
}

// Renew notes new tokens of claims, by the ids of their rows.
func (l *Ledger) Renew(tokens map[string]string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.entries {
		if token, ok := tokens[l.entries[i].ID]; ok {
			l.entries[i].Token = token
		}
	}
}
