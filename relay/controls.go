package relay

import (
	"math"
	"time"
)

// What operators ask of a destination: pauses, and a bound on its rate.

// target is the part that a pause stops. Empty fields stand for all.
type target struct{ topic, lane string }

// unending is the length of a pause without an end; a change of the controls ends it.
const unending = 1000 * time.Hour

// onControls takes the operators' current controls. A pause that isn't in the list any more has ended. It reports
// whether something has changed.
func (c *core) onControls(now time.Time, controls Controls) (changed bool) {
	c.working = false
	c.controlAt = now.Add(c.cfg.Control)
	changed = c.throttle.set(c.cfg.Rate, controls.Rate)
	wanted := make(map[target]bool, len(controls.Pauses))
	for _, p := range controls.Pauses {
		t := target{p.Topic, p.Lane}
		wanted[t] = true
		o := c.paused[t]
		if o == nil {
			o = &closed{since: now}
			c.paused[t], changed = o, true
		}
		if o.until = p.Until; p.Until.IsZero() {
			o.until = now.Add(unending)
		}
		c.dirty = true
	}
	for t, o := range c.paused {
		if !wanted[t] {
			delete(c.paused, t)
			c.reopen(now, o)
			changed = true
		}
	}
	return changed
}

// pausedUntil returns the pause of the whole destination, or nil.
func (c *core) pausedUntil(now time.Time) *closed {
	if o := c.paused[target{}]; o.lasts(now) {
		return o
	}
	return nil
}

// pauseOf returns the pause that keeps a message from being published now, apart from that of the whole destination, or
// nil.
func (c *core) pauseOf(now time.Time, it *item) *closed {
	topic, lane := it.d.Topic, it.d.Lane()
	for _, t := range [...]target{{topic: topic}, {lane: lane}, {topic, lane}} {
		if o := c.paused[t]; o.lasts(now) {
			return o
		}
	}
	return nil
}

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
