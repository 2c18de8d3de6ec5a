package relay

import (
	"time"
)

// What operators ask of a destination: pauses, and a bound on its rate.

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
