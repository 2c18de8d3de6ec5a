package reading

import (
	"math"
	"time"

	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay/mapped/internal/existing"
)

// Horizon is a lower bound of the rows still to be read. Without it each poll would walk along all rows that are done
// and not vacuumed, and along those in flight.
//
// Where a sequence orders the rows, the bound never passes a row that is still to be committed; otherwise a later row
// of its key would overtake it. An INSERT locks the table before it draws a number, so a transaction that has drawn one
// holds the table's lock until it ends. So the bound moves to the number that was the highest at some moment once all
// transactions that held the lock at that moment have released it. A program that draws numbers in advance can still
// insert behind the bound. Polls without a bound find its rows. The same goes for rows in an order of time, where the
// bound follows at once. Polls without a bound run every second, and less often where they are expensive. Where such a
// poll finds rows behind the bound, numbers may begin anew there, as after TRUNCATE … RESTART IDENTITY: the bound goes
// back to them. In an order of time it does so only if there are more of them than a poll takes, because a row of a
// long transaction comes alone, and the bound would stay behind until a later row comes.
type Horizon struct {
	along existing.Along
	times bool // numbers are microseconds since 2000
	walls bool // of clocks that are in no known zone

	Bound int64

	// Candidate becomes the bound when all of writers have ended.
	Candidate int64
	writers   map[string]bool

	fullAt time.Time // when the next poll without a bound is due
}

const (
	fullEvery = time.Second

	// fullShare limits polls without a bound to one part in this many of the time.
	fullShare = 20

	// emptyBound is how old the rows may be that polls with a bound find after a first poll that has found none.
	emptyBound = time.Hour
)

// NewHorizon returns the bound of a session that has read nothing.
func NewHorizon(t *existing.Table) Horizon {
	h := Horizon{along: t.Along, Bound: math.MinInt64, Candidate: math.MinInt64}
	h.times = t.Along == existing.AlongTime && t.Ordered().Kind == mapping.KindTime
	h.walls = h.times && t.Ordered().Walls()
	return h
}

// from returns where the next poll begins, and whether it begins without a bound. No time that the server knows is as
// early as the bound that a session begins with. It lasts until a poll has found rows, or that there are none.
func (h *Horizon) from(now time.Time) (from int64, full bool) {
	if h.along == existing.AlongNothing || !now.Before(h.fullAt) || h.times && h.Bound < existing.YearOne {
		return math.MinInt64, true
	}
	return h.Bound, false
}

// Advance takes the result of a poll. highest and writers were looked up before the poll: the highest number, and the
// holders of the table's lock.
func (h *Horizon) Advance(now time.Time, full bool, took time.Duration, highest int64, writers []string, seen Scan) {
	if full {
		h.fullAt = now.Add(max(fullEvery, fullShare*took))
	}
	// The next poll begins at the first waiting row that could not be taken, so it reads that row before later ones.
	before := int64(math.MaxInt64)
	if seen.Hidden != math.MaxInt64 {
		before = seen.Hidden - 1
	}
	h.Bound = min(h.Bound, before)
	if behind := seen.first <= h.Bound && (h.along == existing.AlongSequence || !seen.Complete); full && behind {
		h.Bound = max(seen.first, math.MinInt64+1) - 1
		if h.along == existing.AlongSequence { // highest is one behind the former bound
			h.Candidate, h.writers = h.Bound, nil
			return
		}
	}
	switch h.along {
	case existing.AlongNothing:
		return
	case existing.AlongTime:
		// Rows of the future, or without a time, must not hide those of today.
		latest := int64(math.MaxInt64)
		if h.times {
			latest = now.UnixMicro() - existing.Epoch
		}
		if h.walls {
			latest += (14 * time.Hour).Microseconds()
		}
		if empty := seen.Complete && seen.first == math.MaxInt64; full && empty && h.times && h.Bound < existing.YearOne {
			h.Bound = now.Add(-emptyBound).UnixMicro() - existing.Epoch
			if h.walls {
				h.Bound -= (14 * time.Hour).Microseconds()
			}
			h.Bound = min(h.Bound, before)
		}
		h.Bound = max(h.Bound, min(seen.last, before, latest))
		return
	}
	covered := min(seen.last, before)
	if seen.Complete {
		covered = before
	}
	for _, w := range writers {
		if h.writers[w] {
			return
		}
	}
	if len(writers) == 0 {
		h.Candidate = max(h.Candidate, highest)
	}
	h.Bound = max(h.Bound, min(h.Candidate, covered))
	h.Candidate = max(h.Candidate, highest)
	h.writers = make(map[string]bool, len(writers))
	for _, w := range writers {
		h.writers[w] = true
	}
}
