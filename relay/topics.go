package relay

import (
	"errors"
	"slices"
	"time"

	"github.com/pgoutbox/outbox"
)

// Outages of topics: the destination answers, and what a message is published to doesn't exist or may not be written
// to.

// closedTo returns the outage or the pause that keeps a message from being published now, or nil.
func (c *core) closedTo(now time.Time, it *item) *closed {
	if len(c.paused) > 0 {
		if o := c.pauseOf(now, it); o != nil {
			return o
		}
	}
	if len(c.closed) > 0 {
		if o := c.closed[routeOf(&it.d.Message)]; o.lasts(now) {
			return o
		}
	}
	return nil
}

// probe is told of a message that is about to be published. If its route was closed, the others go on waiting.
func (c *core) probe(now time.Time, it *item) {
	if len(c.closed) == 0 {
		return
	}
	if o := c.closed[routeOf(&it.d.Message)]; o != nil {
		o.failures++
		o.until = now.Add(c.cfg.Outage.delay(o.failures, c.rand()))
		c.dirty = true
	}
}

// shut begins the outage of the route that the broker has refused it, or prolongs it, and sets it aside.
func (c *core) shut(now time.Time, it *item) {
	r := routeOf(&it.d.Message)
	o := c.closed[r]
	if o == nil {
		o = &closed{since: now, failures: 1}
		c.closed[r.clone()] = o
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

// wronged reports whether the broker says that the topic of a message is unavailable, although it has accepted others
// of its route since it said so the last time. Then it is up to the message: the failure counts. It never is where the
// broker knows that no message can be at fault.
func (c *core) wronged(it *item) bool {
	if blameless(it.err) {
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

// blameless reports whether what is marked as unavailable in the error of a topic is marked so itself.
func blameless(err error) bool {
	for outbox.IsTopicUnavailable(err) {
		err = errors.Unwrap(err)
	}
	return outbox.IsUnavailable(err)
}

// open ends the outage of the route that a message was accepted by.
func (c *core) open(now time.Time, it *item) {
	if len(c.closed) == 0 {
		return
	}
	r := routeOf(&it.d.Message)
	o := c.closed[r]
	if o == nil {
		return
	}
	delete(c.closed, r)
	o.over = true
	c.reopen(now, o)
}

// setAsideFor has the lane of it, its head, wait for the end of an outage. In the database the head is due when the
// topic is asked for next: after a crash the next relay finds out by itself whether the outage has ended.
func (c *core) setAsideFor(now time.Time, it *item, o *closed) {
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
		l.await(o)
	}
}

// endOutages ends those that nothing waits for, as when an operator has discarded it: no probe would end them. list is
// what the database has found for q. It has nothing of what is paused, which may wait for them. What is due later than
// any pause of an outage waits for its own time.
func (c *core) endOutages(now time.Time, q *DueQuery, list []HeldLane) {
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
		if o := c.closed[r]; o != nil && !hidden && !found[r] && o.waiting == 0 && !o.lasts(now) && !c.publishing(r) {
			delete(c.closed, r)
		}
	}
}

// publishing reports whether a message of a route is in flight.
func (c *core) publishing(r Route) bool {
	return slices.ContainsFunc(c.stripes, func(s stripe) bool {
		return s.inFlight != nil && slices.ContainsFunc(s.inFlight.Batch, func(m *outbox.Message) bool { return routeOf(m) == r })
	})
}

// oldestClosed returns the outage of a topic that has lasted longest, or nil.
func (c *core) oldestClosed() (oldest *closed) {
	for _, o := range c.closed {
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
	if o := c.closedTo(now, it); o != nil {
		c.setAsideFor(now, it, o)
		return
	}
	c.retry(now, it, it.d.DeliverAt)
}
