package rig

import (
	"slices"
	"sync"
	"time"
)

// Meter measures how late messages arrive. It is safe for concurrent use.
type Meter[ID comparable] struct {
	mu      sync.Mutex
	away    map[ID]time.Time // when they were written, until they arrive
	took    []float64        // ms, of those that have arrived
	last    time.Time        // when one arrived
	silence time.Duration    // the longest without one
}

// Lateness is what a meter has measured.
type Lateness struct {
	Count    int     // of messages
	P50, P99 float64 // ms; 0 if none has arrived
	Silence  time.Duration
}

// Wrote records that a message is written now.
func (m *Meter[ID]) Wrote(id ID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away == nil {
		m.away = make(map[ID]time.Time)
	}
	m.away[id] = time.Now()
}

// Arrived records that a message arrives now; the first time counts.
func (m *Meter[ID]) Arrived(id ID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if at, first := m.away[id]; first {
		m.took = append(m.took, now.Sub(at).Seconds()*1000)
		delete(m.away, id)
	}
	if !m.last.IsZero() {
		m.silence = max(m.silence, now.Sub(m.last))
	}
	m.last = now
}

// Away returns how many messages have not arrived, and when the last one did.
func (m *Meter[ID]) Away() (n int, last time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.away), m.last
}

// Read returns what was measured since the last call.
func (m *Meter[ID]) Read() Lateness {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := Lateness{Count: len(m.took), Silence: m.silence}
	if l.Count > 0 {
		slices.Sort(m.took)
		l.P50, l.P99 = m.took[l.Count/2], m.took[l.Count*99/100]
	}
	m.took, m.silence = nil, 0
	return l
}
