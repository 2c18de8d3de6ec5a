package relay

import (
	"slices"
	"time"
)

// publish fills a call for every stripe that has none in flight.
func (c *core) publish(now time.Time) (calls []*call) {
	o := &c.outage
	if !c.mayPublish(now) {
		return nil
	}
	first := c.throttle.refill(now)
	for n := range c.stripes {
		i := (first + n) % len(c.stripes)
		s := &c.stripes[i]
		if s.inFlight != nil || c.gathers(now, s) {
			continue
		}
		k := c.fill(now, i)
		if k == nil {
			continue
		}
		s.inFlight = k
		calls = append(calls, k)
		if o.failures > 0 {
			k.outageProbe, o.probing = true, true
			break
		}
		if c.stopped != nil {
			break
		}
	}
	return calls
}

// gathers reports whether a stripe waits for what is being read of a backlog: a call has a cost of its own, to the
// destination more than to us.
func (c *core) gathers(now time.Time, s *stripe) bool {
	return now.Before(c.gather) && len(s.queue) < c.cfg.CallGather && len(s.lanes) == 0 &&
		(c.reading || c.mayRead(now)) && c.outage.failures == 0 && !c.draining
}

func (c *core) mayPublish(now time.Time) bool {
	return c.stopped == nil && !c.outage.forbids(now) && !(c.draining && c.outage.failures > 0) && c.pausedUntil(now) == nil
}

// throttled reports whether only the bound on the rate keeps a message from being published.
func (c *core) throttled(now time.Time) bool {
	if c.throttle.allows() > 0 || !c.mayPublish(now) {
		return false
	}
	return slices.ContainsFunc(c.stripes, func(s stripe) bool { return s.inFlight == nil && len(s.queue)+len(s.lanes) > 0 })
}

// fill takes the next call of a stripe: due lanes first, then its queue. nil if there is nothing.
func (c *core) fill(now time.Time, stripe int) *call {
	s := &c.stripes[stripe]
	k := c.newCall(stripe)
	bytes := 0
	most := min(c.cfg.CallMax, c.throttle.allows())
	room := func() bool { return len(k.items) < most && bytes < c.cfg.CallBytes }
	take := func(it *item) {
		c.tryRoute(now, it)
		it.state = inFlight
		bytes += it.size
		k.items = append(k.items, it)
		k.Batch = append(k.Batch, &it.d.Message)
	}
	for len(s.lanes) > 0 && room() {
		l := s.lanes[0]
		s.lanes = s.lanes[1:]
		l.waitFor(nil)
		for len(l.queue) > 0 && c.publishable(now, l.queue[0]) && room() {
			it := l.queue[0]
			l.queue = l.queue[1:]
			it.lane = l
			l.flying++
			take(it)
		}
		if l.flying == 0 && len(l.queue) > 0 && !c.publishable(now, l.queue[0]) {
			c.setAside(now, l.queue[0])
			c.advance(now)
		}
	}
	n := 0
	for n < len(s.queue) && room() && c.stopped == nil {
		it := s.queue[n]
		if !c.publishable(now, it) && k.has(it.d.Lane()) {
			break // what becomes of it is decided when the earlier message of its key is
		}
		n++
		if !c.divert(now, it) {
			take(it)
		}
	}
	s.queue = slices.Delete(s.queue, 0, n) // what is left is short, and the memory stays
	if n > 0 {
		c.advance(now)
	}
	if len(k.items) == 0 {
		c.freeCall(k)
		return nil
	}
	c.throttle.take(len(k.items))
	return k
}

// divert sends an item that is not to be published now where it belongs. A message without a key has nothing before it
// but itself, as a hold that an operator has made of it for a relay that has the lease now.
func (c *core) divert(now time.Time, it *item) bool {
	switch l := c.laneOf(it); {
	case l != nil && l.mode != laneHeld:
		l.queue = append(l.queue, it)
		return true
	case l != nil || c.stored.size() > 0 && it.keyed() && c.stored.has(it.d.Lane()):
		c.holdBehind(it)
		return true
	}
	if c.publishable(now, it) {
		return false
	}
	l := c.addLane(it)
	l.queue = append(l.queue, it)
	c.setAside(now, it)
	return true
}

// publishable reports whether a message may go out now, as far as it is up to the message and its topic.
func (c *core) publishable(now time.Time, it *item) bool {
	return it.d.Invalid == nil && !it.d.Blocked && !it.d.DeliverAt.After(now) && c.gateFor(now, it) == nil
}
