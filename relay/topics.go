package relay

import (
	"maps"
	"strings"
	"time"

	"github.com/pgoutbox/outbox"
)

// Outages of topics: the destination answers, and what a message is published to doesn't exist or may not be written
// to.

// route is what decides where adapters publish a message, apart from its key. Messages of one route wait together.
// Where the key decides too, they wait in vain for one that can't be routed, but not for long: see wronged.
type route struct {
	topic, aggregateType, eventType string
}

func routeOf(m *outbox.Message) route { return route{m.Topic, m.AggregateType, m.EventType} }

// closed is the outage of a route. Until its end nothing is published there; then a single message is, which moves the
// end. A pause is one without a cause, and nothing moves its end but the controls.
type closed struct {
	since    time.Time
	until    time.Time
	failures int
	cause    error
}

// lasts reports whether o, which may be nil, still keeps messages from being published.
func (o *closed) lasts(now time.Time) bool { return o != nil && now.Before(o.until) }

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
	if !now.Before(o.until) { // it has just begun, or the answer took longer than the pause
		o.until = now.Add(c.cfg.Outage.delay(o.failures, c.rand()))
	}
	if asked := now.Add(outbox.RetryDelay(it.err)); asked.After(o.until) {
		o.until = asked
	}
	c.setAside(now, it)
}

// wronged reports whether the broker says that the topic of a message is unavailable, although it has accepted others
// of its route since it said so the last time. Then it is up to the message: the failure counts.
func (c *core) wronged(it *item) bool {
	l := c.lanes[it.d.Lane()]
	if !l.opened {
		return false
	}
	l.opened = false
	it.d.Attempts++
	return true
}

// clone returns a route that doesn't point into the memory of a page.
func (r route) clone() route {
	return route{strings.Clone(r.topic), strings.Clone(r.aggregateType), strings.Clone(r.eventType)}
}

// open ends the outage of the route that a message was accepted by.
func (c *core) open(it *item) {
	if len(c.closed) == 0 {
		return
	}
	r := routeOf(&it.d.Message)
	o := c.closed[r]
	if o == nil {
		return
	}
	delete(c.closed, r)
	c.reopen(o)
}

// reopen lets lanes go on that wait for the end of o.
func (c *core) reopen(o *closed) {
	c.dirty = true
	for _, l := range c.lanes {
		if l.closed != o {
			continue
		}
		l.closed, l.opened = nil, o.cause != nil
		if l.mode == laneRetry {
			l.due = time.Time{}
		}
	}
}

// await has the lane of it, its head, wait for the end of an outage. In the database the head is due when the topic is
// asked for next: after a crash the next relay finds out by itself whether the outage has ended.
func (c *core) await(now time.Time, it *item, o *closed) {
	c.dirty = true
	l := c.lanes[it.d.Lane()]
	switch {
	case it.held:
		c.unload(l)
		l.due = now
	case now.Sub(o.since) > c.cfg.HoldAfter || o.until.Sub(now) > c.cfg.HoldAfter || c.draining:
		at := o.until
		if soon := now.Add(c.cfg.Outage.Max); o.cause == nil && soon.Before(at) {
			at = soon // a pause may end before its time
		}
		it.err = o.cause
		c.hold(l, at, false)
	default:
		l.due = o.until
	}
	l.closed = o
}

// forgetClosed ends outages that nothing waits for, as when an operator has discarded it: no probe would end them.
func (c *core) forgetClosed(now time.Time) {
	if len(c.closed) == 0 {
		return
	}
	waiting := make(map[*closed]bool)
	for _, l := range c.lanes {
		waiting[l.closed] = true
	}
	maps.DeleteFunc(c.closed, func(_ route, o *closed) bool { return !waiting[o] && !o.lasts(now) })
}

// dueAt is when the next message of a lane may be published.
func (l *lane) dueAt() time.Time {
	if l.closed != nil && l.closed.until.After(l.due) {
		return l.closed.until
	}
	return l.due
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
