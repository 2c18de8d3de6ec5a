package mapped

import (
	"math"
	"testing"
	"time"
)

// Numbers that begin anew, as after TRUNCATE … RESTART IDENTITY, are behind the bound. A poll without a bound finds the
// first of them, and those that follow must not wait for another one.
func TestTheBoundGoesBackToNumbersThatBeginAnew(t *testing.T) {
	t.Parallel()
	now := time.Now()
	h := horizon{along: alongSequence, bound: math.MinInt64, candidate: math.MinInt64}
	seen := func(first, last int64) sight {
		return sight{first: first, last: last, complete: true, hidden: math.MaxInt64}
	}
	h.scanned(now, true, 0, 1000, nil, seen(1, 1000))
	if from, full := h.from(now); from != 1000 || full {
		t.Fatalf("the next poll begins at %d, %v", from, full)
	}
	h.scanned(now, true, 0, 1000, nil, seen(1, 1)) // the highest number behind the bound isn't looked up
	if from, _ := h.from(now); from > 1 {
		t.Errorf("the next poll begins at %d: it doesn't find the row 2", from)
	}
	h.scanned(now, false, 0, 2, nil, seen(2, 2))
	if from, _ := h.from(now); from != 2 {
		t.Errorf("the next poll begins at %d, and 2 was the highest number", from)
	}
}
