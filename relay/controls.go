package relay

import "time"

// What operators ask of a destination: pauses, and a bound on its rate.

// endlessPause is the length of a pause without an end; a change of the controls ends it.
const endlessPause = 1000 * time.Hour

// onControls takes the operators' current controls. A pause that isn't in the list any more has ended. It reports
// whether something has changed.
func (c *core) onControls(now time.Time, controls Controls) (changed bool) {
	c.working = false
	c.controlAt = now.Add(c.cfg.Control)
	changed = c.throttle.set(c.cfg.Rate, controls.Rate)
	wanted := make(map[pauseTarget]bool, len(controls.Pauses))
	for _, p := range controls.Pauses {
		t := pauseTarget{p.Topic, p.Lane}
		wanted[t] = true
		o := c.paused[t]
		if o == nil {
			o = &gate{since: now}
			c.paused[t], changed = o, true
		}
		if o.until = p.Until; p.Until.IsZero() {
			o.until = now.Add(endlessPause)
		}
		c.dirty = true
	}
	for t, o := range c.paused {
		if !wanted[t] {
			delete(c.paused, t)
			c.resume(now, o)
			changed = true
		}
	}
	return changed
}

// pausedUntil returns the pause of the whole destination, or nil.
func (c *core) pausedUntil(now time.Time) *gate {
	if o := c.paused[pauseTarget{}]; o.shut(now) {
		return o
	}
	return nil
}

// pauseFor returns the pause of its topic or lane that keeps a message from being published now, or nil.
func (c *core) pauseFor(now time.Time, it *item) *gate {
	topic, lane := it.d.Topic, it.d.Lane()
	for _, t := range [...]pauseTarget{{topic: topic}, {lane: lane}, {topic, lane}} {
		if o := c.paused[t]; o.shut(now) {
			return o
		}
	}
	return nil
}
