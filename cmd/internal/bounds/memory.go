package bounds

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Memory bounds the messages that are read and not settled, of all destinations together. Who has nothing in flight may
// always read a page, so that nobody starves: in all, there may be a page more for each destination. The others wait in
// order, each for one page at a time.
type Memory struct {
	most Amount

	mu     sync.Mutex
	used   Amount
	asks   []*ask // in order
	all    map[*Share]bool
	waits  uint64
	yields uint64
	asked  time.Time // when one was last asked to yield
}

// Amount is messages and their bytes.
type Amount struct{ Messages, Bytes int64 }

func (a Amount) plus(b Amount) Amount  { return Amount{a.Messages + b.Messages, a.Bytes + b.Bytes} }
func (a Amount) minus(b Amount) Amount { return Amount{a.Messages - b.Messages, a.Bytes - b.Bytes} }

// within reports whether a is no more than most, where 0 is no bound.
func (a Amount) within(most Amount) bool {
	return (most.Messages == 0 || a.Messages <= most.Messages) && (most.Bytes == 0 || a.Bytes <= most.Bytes)
}

// NewMemory returns a bound. A 0 in most is no bound.
func NewMemory(most Amount) *Memory { return &Memory{most: most, all: make(map[*Share]bool)} }

// Share is what one shard group of a destination has in flight.
type Share struct {
	m     *Memory
	yield func()

	has     Amount
	pages   int
	last    Amount    // the last page
	asks    *ask      // that waits, or has what no call has taken
	changed time.Time // when it last got or gave something
}

// ask is a call that waits.
type ask struct {
	share *Share
	want  Amount
	ready chan struct{} // closed when it has it
}

// Share returns a part in the bound. yield asks its owner to give back all that it has and not to block; it may be nil.
func (m *Memory) Share(yield func()) *Share {
	s := &Share{m: m, yield: yield}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all[s] = true
	return s
}

// Close ends the share. What it has is given back before.
func (s *Share) Close() {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	delete(s.m.all, s)
}

// leastPage is the smallest page that the bound asks for: a page has a cost of its own.
const leastPage = 64 << 10

// PageBytes returns how large pages may be, at most usual, so that one for each share is a quarter of the bound.
func (m *Memory) PageBytes(usual int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.most.Bytes == 0 {
		return usual
	}
	return min(usual, max(leastPage, int(m.most.Bytes)/(4*max(len(m.all), 1))))
}

// Held is what one read has in flight until all of it is given back.
type Held struct {
	share *Share
	has   Amount
	given bool
}

// Take waits until there is room for a page as large as the last one. When ctx ends first, the place in the order stays
// for the next call, until Cancel. One goroutine at a time.
func (s *Share) Take(ctx context.Context) (*Held, error) {
	m := s.m
	m.mu.Lock()
	a := s.asks
	if a == nil {
		a = &ask{share: s, want: s.last, ready: make(chan struct{})}
		s.asks = a
		m.asks = append(m.asks, a)
		m.grant()
		if !slices.Contains(m.asks, a) {
			defer m.mu.Unlock()
			return s.got(), nil
		}
		m.waits++
	}
	m.mu.Unlock()
	tick := time.NewTicker(patience)
	defer tick.Stop()
	for {
		select {
		case <-a.ready:
			m.mu.Lock()
			defer m.mu.Unlock()
			return s.got(), nil
		case <-tick.C:
			m.relieve()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// got is what a call has asked for and been given. m.mu is held.
func (s *Share) got() *Held {
	h := &Held{share: s, has: s.asks.want}
	s.asks = nil
	return h
}

// Cancel gives up the place in the order.
func (s *Share) Cancel() {
	m := s.m
	m.mu.Lock()
	defer m.mu.Unlock()
	a := s.asks
	if a == nil {
		return
	}
	s.asks = nil
	if i := slices.Index(m.asks, a); i >= 0 {
		m.asks = slices.Delete(m.asks, i, i+1)
	} else {
		m.give(&Held{share: s, has: a.want})
	}
	m.grant()
}

// grant serves those who ask as far as there is room. m.mu is held.
func (m *Memory) grant() {
	first := true
	m.asks = slices.DeleteFunc(m.asks, func(a *ask) bool {
		fits := m.used.plus(a.want).within(m.most)
		if a.share.pages > 0 && !(first && fits) {
			first = false
			return false
		}
		m.used = m.used.plus(a.want)
		a.share.has = a.share.has.plus(a.want)
		a.share.pages++
		a.share.changed = time.Now()
		close(a.ready)
		return true
	})
}

// Read notes what a read has brought. An empty one gives everything back.
func (h *Held) Read(is Amount) {
	m := h.share.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if is.Messages == 0 {
		m.give(h)
	} else {
		m.used = m.used.minus(h.has).plus(is)
		h.share.has = h.share.has.minus(h.has).plus(is)
		h.share.last, h.has, h.share.changed = is, is, time.Now()
	}
	m.grant()
}

// Give gives back what is held. A second call does nothing.
func (h *Held) Give() {
	m := h.share.m
	m.mu.Lock()
	defer m.mu.Unlock()
	m.give(h)
	m.grant()
}

// give is Give. m.mu is held.
func (m *Memory) give(h *Held) {
	if h.given {
		return
	}
	h.given = true
	m.used = m.used.minus(h.has)
	h.share.has = h.share.has.minus(h.has)
	h.share.pages--
	h.share.changed = time.Now()
}

// relieve asks the share to yield that has the most of those that keep more than a page and do nothing with it.
func (m *Memory) relieve() {
	m.mu.Lock()
	now := time.Now()
	var idle *Share
	for s := range m.all {
		if s.yield == nil || s.pages <= 1 || now.Sub(s.changed) < undisturbed {
			continue
		}
		if idle == nil || s.has.Bytes > idle.has.Bytes {
			idle = s
		}
	}
	if idle == nil || now.Sub(m.asked) < patience || len(m.asks) == 0 {
		m.mu.Unlock()
		return
	}
	m.asked = now
	m.yields++
	idle.changed = now // it is not asked twice
	m.mu.Unlock()
	idle.yield()
}

// Full is why a destination reads nothing.
func (m *Memory) Full() error {
	return fmt.Errorf("as many messages are in flight in this process as limits.in_flight (%d) and limits.in_flight_bytes (%d) allow, "+
		"and of this destination at least a page: nothing more of it is read until some are settled", m.most.Messages, m.most.Bytes)
}

// MemoryUse is how the bound is used.
type MemoryUse struct {
	Used, Most    Amount
	Waiting       int
	Waits, Yields uint64 // so far
}

// Use returns how the bound is used.
func (m *Memory) Use() MemoryUse {
	m.mu.Lock()
	defer m.mu.Unlock()
	return MemoryUse{m.used, m.most, len(m.asks), m.waits, m.yields}
}
