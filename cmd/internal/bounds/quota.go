package bounds

import (
	"context"
	"sync"
	"time"
)

// Quota bounds what the parts of one database send a second, in the order of their calls. Each part that is here has an
// equal share of it, which those here use together: so the quota holds over all processes.
type Quota struct {
	most  Amount // a second; 0: no bound
	parts int

	mu    sync.Mutex
	here  int       // parts
	until time.Time // by when all that was taken may have been sent
}

// NewQuota returns a quota for a database with some parts, nil if there is no bound.
func NewQuota(most Amount, parts int) *Quota {
	if most == (Amount{}) {
		return nil
	}
	return &Quota{most: most, parts: max(parts, 1)}
}

// burst is how long a quota that isn't used is kept.
const burst = 100 * time.Millisecond

// Come and Go note that a part is here, or not any more.
func (q *Quota) Come() { q.add(1) }

// Go is the opposite of Come.
func (q *Quota) Go() { q.add(-1) }

func (q *Quota) add(n int) {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.here += n
}

// Take waits until an amount may be sent. When ctx ends first, what was to be sent is given back.
func (q *Quota) Take(ctx context.Context, a Amount) error {
	if q == nil {
		return nil
	}
	q.mu.Lock()
	now := time.Now()
	if earliest := now.Add(-burst); q.until.Before(earliest) {
		q.until = earliest
	}
	wait := q.until.Sub(now)
	lasts := q.lasts(a)
	q.until = q.until.Add(lasts)
	q.mu.Unlock()
	if wait <= 0 {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		q.mu.Lock()
		defer q.mu.Unlock()
		q.until = q.until.Add(-lasts)
		return ctx.Err()
	}
}

// lasts is how long the parts that are here take to send an amount.
func (q *Quota) lasts(a Amount) time.Duration {
	share := float64(min(max(q.here, 1), q.parts)) / float64(q.parts)
	var seconds float64
	if q.most.Messages > 0 {
		seconds = float64(a.Messages) / (float64(q.most.Messages) * share)
	}
	if q.most.Bytes > 0 {
		seconds = max(seconds, float64(a.Bytes)/(float64(q.most.Bytes)*share))
	}
	return time.Duration(seconds * float64(time.Second))
}
