// Package reuse is what strategies share to use the memory of pages again: a page has the messages that were read at
// once, and is handed out in batches.
package reuse

import (
	"sync"
	"sync/atomic"

	"github.com/pgoutbox/outbox/relay"
)

// Pool keeps memory that is not in use. A sync.Pool would lose it at every garbage collection, and a small heap is
// collected often. The zero value is empty. Safe for concurrent use.
type Pool[T any] struct {
	mu   sync.Mutex
	free []T
}

// Get returns what was put, or the zero value if nothing is left. A nil pool has nothing.
func (p *Pool[T]) Get() (memory T) {
	if p == nil {
		return memory
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.free); n > 0 {
		memory, p.free = p.free[n-1], p.free[:n-1]
	}
	return memory
}

// Put takes memory back, unless the pool has most already.
func (p *Pool[T]) Put(memory T, most int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.free) < most {
		p.free = append(p.free, memory)
	}
}

// Len is how many were put and not taken.
func (p *Pool[T]) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.free)
}

// Cut takes a batch of at most limit deliveries off the beginning of rest. users counts the page's batches that are not
// recycled, plus one while more are to come.
func Cut(rest *[]relay.Delivery, limit int, users *atomic.Int32, recycle func()) relay.Batch {
	n := min(limit, len(*rest))
	b := relay.Batch{Deliveries: (*rest)[:n:n], Recycle: recycle}
	if *rest = (*rest)[n:]; len(*rest) > 0 {
		users.Add(1)
	}
	return b
}
