package relay

import (
	"math"
	"time"
)

// throttle lets at most rate messages a second through: at once at most a tenth of a second's worth, or one message.
type throttle struct {
	rate   float64 // 0: no bound
	saved  float64 // messages that may go now
	filled time.Time
	turn   int
}

// set takes the smaller of two bounds, and reports whether the bound has changed.
func (t *throttle) set(a, b float64) bool {
	before := t.rate
	if t.rate = a; a == 0 || b > 0 && b < a {
		t.rate = b
	}
	return t.rate != before
}

func (t *throttle) burst() float64 { return max(1, t.rate/10) }

// refill adds what may go since the last call. It returns the stripe whose turn it is. Without turns, the first stripe
// would take all of a low rate.
func (t *throttle) refill(now time.Time) (stripe int) {
	if t.rate == 0 {
		return 0
	}
	if t.filled.IsZero() {
		t.saved = 1
	} else if passed := now.Sub(t.filled); passed > 0 {
		t.saved += passed.Seconds() * t.rate
	}
	t.saved, t.filled = min(t.saved, t.burst()), now
	t.turn = (t.turn + 1) % 64
	return t.turn
}

// allows returns how many messages may go now.
func (t *throttle) allows() int {
	if t.rate == 0 {
		return math.MaxInt
	}
	return int(t.saved)
}

func (t *throttle) take(n int) {
	if t.rate > 0 {
		t.saved -= float64(n)
	}
}

// next returns when more may go, if nothing may now; the zero time otherwise.
func (t *throttle) next() time.Time {
	if t.rate == 0 || t.saved >= 1 {
		return time.Time{}
	}
	// Half a burst at a time, or calls would be of one message each.
	missing := max(1, t.burst()/2) - t.saved
	return t.filled.Add(time.Duration(math.Ceil(missing / t.rate * float64(time.Second))))
}
