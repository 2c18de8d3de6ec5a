package reading

import (
	"math"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/relay/mapped/internal/existing"
)

// Numbers that begin anew, as after TRUNCATE … RESTART IDENTITY, are behind the bound. A poll without a bound finds the
// first of them, and those that follow must not wait for another one.
func TestTheBoundGoesBackToNumbersThatBeginAnew(t *testing.T) {
	t.Parallel()
	now := time.Now()
	h := Horizon{along: existing.AlongSequence, Bound: math.MinInt64, Candidate: math.MinInt64}
	seen := func(first, last int64) Scan {
		return Scan{first: first, last: last, Complete: true, Hidden: math.MaxInt64}
	}
	h.Advance(now, true, 0, 1000, nil, seen(1, 1000))
	if from, full := h.from(now); from != 1000 || full {
		t.Fatalf("the next poll begins at %d, %v", from, full)
	}
	h.Advance(now, true, 0, 1000, nil, seen(1, 1)) // the highest number behind the bound isn't looked up
	if from, _ := h.from(now); from > 1 {
		t.Errorf("the next poll begins at %d: it doesn't find the row 2", from)
	}
	h.Advance(now, false, 0, 2, nil, seen(2, 2))
	if from, _ := h.from(now); from != 2 {
		t.Errorf("the next poll begins at %d, and 2 was the highest number", from)
	}
}

// In an order of time, a table without a waiting row gives a bound too. Otherwise every poll would walk along all rows
// that are done, until a row comes.
func TestAnEmptyTableGivesABound(t *testing.T) {
	t.Parallel()
	now := time.Now()
	h := Horizon{along: existing.AlongTime, times: true, Bound: math.MinInt64, Candidate: math.MinInt64}
	if _, full := h.from(now); !full {
		t.Fatal("the first poll has a bound")
	}
	none := Scan{first: math.MaxInt64, last: math.MinInt64, Hidden: math.MaxInt64, Complete: true}
	h.Advance(now, true, 10*time.Second, math.MinInt64, nil, none)
	ago := func(d time.Duration) int64 { return now.Add(-d).UnixMicro() - existing.Epoch }
	if from, full := h.from(now.Add(time.Second)); full || from > ago(time.Minute) || from < ago(24*time.Hour) {
		t.Errorf("the next poll begins at %d, %v", from, full)
	}
	if _, full := h.from(now.Add(201 * time.Second)); !full {
		t.Error("no poll looks for rows that are older")
	}
	h.Advance(now, false, 0, math.MinInt64, nil, Scan{first: ago(0), last: ago(0), Hidden: math.MaxInt64, Complete: true})
	if from, _ := h.from(now); from != ago(0) {
		t.Errorf("the bound doesn't follow the rows: %d", from)
	}
	// A bound before all times that a statement can name is none.
	h = Horizon{along: existing.AlongTime, times: true, Bound: math.MinInt64, Candidate: math.MinInt64}
	early := none
	early.Hidden = existing.YearOne - 1
	h.Advance(now, true, 10*time.Second, math.MinInt64, nil, early)
	if from, full := h.from(now); !full {
		t.Errorf("the next poll begins at %d, before the year one", from)
	}
}
