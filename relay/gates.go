package relay

import (
	"errors"
	"slices"
	"time"

	"github.com/pgoutbox/outbox"
)

// Outages of topics: the destination answers, and what a message is published to doesn't exist or may not be written
// to.

// gateFor returns the gate that keeps a message from being published now, or nil.
func (c *core) gateFor(now time.Time, it *item) *gate {
	if len(c.paused) > 0 {
		if o := c.pauseFor(now, it); o != nil {
			return o
		}
	}
	if len(c.gates) > 0 {
		if o := c.gates[routeOf(&it.d.Message)]; o.shut(now) {
			return o
		}
	}
	return nil
}

// tryRoute is called for a message that is about to be published. If its route has an outage, the message is the probe,
// and the others go on waiting.
func (c *core) tryRoute(now time.Time, it *item) {
	if len(c.gates) == 0 {
		return
	}
	if o := c.gates[routeOf(&it.d.Message)]; o != nil {
		o.failures++
		o.until = now.Add(c.cfg.Outage.delay(o.failures, c.rand()))
		c.dirty = true
	}
}

// beginOutage begins or prolongs the outage of the route of a refused message, and sets the message aside.
func (c *core) beginOutage(now time.Time, it *item) {
	r := routeOf(&it.d.Message)
	o := c.gates[r]
	if o == nil {
		o = &gate{since: now, failures: 1}
		c.gates[r.clone()] = o
	}
	o.cause = it.err
	if len(c.refused) >= maxRefused {
		clear(c.refused) // each is refused once more before its failures count
	}
	c.refused[c.stored.key(it.d.Lane())] = o
	if !now.Before(o.until) { // it has just begun, or the answer took longer than the pause
		o.until = now.Add(c.cfg.Outage.delay(o.failures, c.rand()))
	}
	if asked := now.Add(outbox.RetryDelay(it.err)); asked.After(o.until) {
		o.until = asked
	}
	c.setAside(now, it)
}

// maxRefused bounds what is remembered of messages that were refused because of their topics.
const maxRefused = 10_000

// messageAtFault reports whether a message that was refused because of its topic is itself at fault, and counts the
// failure then: the broker has accepted others of its route since it refused this one before. It never is where the
// broker knows that no message can be at fault.
func (c *core) messageAtFault(it *item) bool {
	if noMessageAtFault(it.err) {
		return false
	}
	key := c.stored.key(it.d.Lane())
	if o := c.refused[key]; o != nil && o.over {
		delete(c.refused, key)
		it.d.Attempts++
		return true
	}
	return false
}

// noMessageAtFault reports whether the error that outbox.TopicUnavailable marks is itself marked by outbox.Unavailable.
func noMessageAtFault(err error) bool {
	for outbox.IsTopicUnavailable(err) {
		err = errors.Unwrap(err)
	}
	return outbox.IsUnavailable(err)
}

// endOutage ends the outage of the route of an accepted message.
func (c *core) endOutage(now time.Time, it *item) {
	if len(c.gates) == 0 {
		return
	}
	r := routeOf(&it.d.Message)
	o := c.gates[r]
	if o == nil {
		return
	}
	delete(c.gates, r)
	o.over = true
	c.resume(now, o)
}

// awaitGate makes the lane of it, which is its head, wait for the end of a gate. In the database the head is due when
// the next probe is: after a crash the next relay finds out by itself whether the outage has ended.
func (c *core) awaitGate(now time.Time, it *item, o *gate) {
	c.dirty = true
	l := c.lanes[it.d.Lane()]
	at := o.until
	if soon := now.Add(c.cfg.Outage.Max); o.cause == nil && soon.Before(at) {
		at = soon // a pause may end before its time
	}
	it.err = o.cause
	switch {
	case it.held:
		c.retryHeld(l, it, at, false)
	case now.Sub(o.since) > c.cfg.HoldAfter || o.until.Sub(now) > c.cfg.HoldAfter || c.draining:
		c.hold(l, at, false)
	default:
		l.due = o.until
		l.waitFor(o)
	}
}

// endIdleOutages ends the outages for which nothing waits, such as after an operator has discarded it: no probe would
// end them. list is what the database has found for q, without what is paused, which may wait for an outage. What is
// due later than any pause of an outage waits for its own time.
func (c *core) endIdleOutages(now time.Time, q *DueQuery, list []HeldLane) {
	if len(q.Probes) == 0 {
		return
	}
	found := make(map[Route]bool, len(list))
	for i := range list {
		if !list[i].Due.After(now.Add(c.cfg.Outage.Max)) {
			found[list[i].Route] = true
		}
	}
	for _, r := range q.Probes {
		hidden := slices.ContainsFunc(q.Paused, func(p Pause) bool { return p.Topic == "" || p.Topic == r.Topic })
		if o := c.gates[r]; o != nil && !hidden && !found[r] && o.waiting == 0 && !o.shut(now) && !c.publishing(r) {
			delete(c.gates, r)
		}
	}
}

// publishing reports whether a message of a route is in flight.
func (c *core) publishing(r Route) bool {
	return slices.ContainsFunc(c.stripes, func(s stripe) bool {
		return s.inFlight != nil && slices.ContainsFunc(s.inFlight.Batch, func(m *outbox.Message) bool { return routeOf(m) == r })
	})
}

// oldestOutage returns the outage of a topic that began first, or nil.
func (c *core) oldestOutage() (oldest *gate) {
	for _, o := range c.gates {
		if oldest == nil || o.since.Before(oldest.since) || o.since.Equal(oldest.since) && o.cause.Error() < oldest.cause.Error() {
			oldest = o
		}
	}
	return oldest
}

// setAside puts the unpublishable head of a lane aside: for good, or until its time has come or its topic is open.
func (c *core) setAside(now time.Time, it *item) {
	if it.d.Blocked && !it.held { // as its source has it from an earlier session
		c.hold(c.lanes[it.d.Lane()], time.Time{}, true)
		return
	}
	if it.d.Invalid != nil {
		it.err = it.d.Invalid
		c.exhaust(it, ReasonInvalid)
		return
	}
	if o := c.gateFor(now, it); o != nil {
		c.awaitGate(now, it, o)
		return
	}
	c.retry(now, it, it.d.DeliverAt)
}

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
