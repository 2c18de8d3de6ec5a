package mapped

import (
	"math"
	"time"
)

// horizon is a lower bound of what is yet to be read. Without one each poll would walk along all the rows
// that were done with and not vacuumed, and along those in flight.
//
// Where rows are ordered by a sequence, the bound never passes a row that is yet to be committed, or the
// row would be overtaken by a later one of its key: whoever has drawn a number holds the table's lock until
// its transaction ends, since an INSERT locks the table before it draws. So a number that was the highest
// at some time is passed when everybody who held the lock at that time has let it go. A program that
// draws numbers beforehand can come behind the bound nevertheless; like rows in an order of time, that the
// bound follows at once, its rows are found by polls without a bound, which come every second, and
// more seldom where they are expensive.
type horizon struct {
	along along

	bound int64

	// candidate becomes the bound when all writers are gone.
	candidate int64
	writers   map[string]bool

	fullAt time.Time // when the next poll without a bound is due
}

const (
	fullEvery = time.Second

	// fullShare is what part of the time polls without a bound may take.
	fullShare = 20
)

func newHorizon(along along) horizon {
	return horizon{along: along, bound: math.MinInt64, candidate: math.MinInt64}
}

// from returns where the next poll begins, and whether that is the very beginning.
func (h *horizon) from(now time.Time) (from int64, full bool) {
	if h.along == alongNothing || !now.Before(h.fullAt) {
		return math.MinInt64, true
	}
	return h.bound, false
}

// scanned takes what a poll has come to. highest and writers were looked up before it: the highest
// number, and who held the table's lock.
func (h *horizon) scanned(now time.Time, full bool, took time.Duration, highest int64, writers []string, seen sight) {
	if full {
		h.fullAt = now.Add(max(fullEvery, fullShare*took))
	}
	// What waits and could not be taken is read again, at once and before what follows it.
	before := int64(math.MaxInt64)
	if seen.hidden != math.MaxInt64 {
		before = seen.hidden - 1
	}
	h.bound = min(h.bound, before)
	switch h.along {
	case alongNothing:
		return
	case alongTime:
		h.bound = max(h.bound, min(seen.last, before))
		return
	}
	covered := min(seen.last, before)
	if seen.complete {
		covered = before
	}
	for _, w := range writers {
		if h.writers[w] {
			return
		}
	}
	if len(writers) == 0 {
		h.candidate = max(h.candidate, highest)
	}
	h.bound = max(h.bound, min(h.candidate, covered))
	h.candidate = max(h.candidate, highest)
	h.writers = make(map[string]bool, len(writers))
	for _, w := range writers {
		h.writers[w] = true
	}
}
