package relay

import (
	"fmt"
	"slices"
	"time"
)

// ready is what the core wants done now. The runner starts everything in it and answers each part with
// its on… method.
type ready struct {
	Read    int // at most this many messages; 0: don't
	Publish []*call
	Settle  *Settlement
	Lanes   *lanesQuery
	Due     *DueQuery
	Held    *heldQuery

	Controls bool // read them

	// Wake is when next must be called again if nothing else happens; zero: never.
	Wake time.Time
	// Drained means that everything that can be settled is. Only after drain.
	Drained bool
	// Err is the reason why the policy "stop" ends this relay, once everything before is settled.
	Err error
}

// next returns what is to be started now.
func (c *core) next(now time.Time) ready {
	var r ready
	c.makeRoom(now)
	c.scan(now)
	r.Publish = c.publish(now)
	c.scan(now)
	c.maintain(now, &r)
	if c.mayRead(now) {
		c.reading = true
		r.Read = min(c.cfg.ReadMax, c.cfg.MaxInFlight-c.unsettled)
	}
	r.Wake = c.wake(now)
	if c.draining || c.stopped != nil {
		r.Drained = len(r.Publish) == 0 && c.idle() && !c.throttled(now) && !c.working && c.held.empty() && c.prefix == c.settledTo()
		r.Err = c.stopped
	}
	return r
}

// drain stops reading. What was read is delivered, or held if it waits for a retry, and settled: otherwise
// what was delivered behind it would be delivered again. In an outage only what is in flight is awaited.
func (c *core) drain() { c.draining = true }

// makeRoom holds the lanes that stand in the way when memory is full: the cursor can't pass a message
// that waits for a retry, and nothing can be read until it does.
func (c *core) makeRoom(now time.Time) {
	if c.draining {
		c.holdAll()
		c.advance(now)
		return
	}
	if !c.full() || c.settling != nil || c.outage.failures > 0 || c.pausedUntil(now) != nil || c.prefix != c.settledTo() {
		return
	}
	for range c.cfg.ReadMax { // as many as make room for a page
		at := c.prefix
		if at.page >= len(c.pages) {
			return
		}
		it := &c.pages[at.page].items[at.item]
		l := c.laneOf(it)
		if l == nil || l.mode != laneRetry || l.flying > 0 || len(l.queue) == 0 || l.queue[0] != it || l.due.IsZero() {
			return
		}
		c.hold(l, l.due, false)
		c.advance(now)
	}
}

// maintain starts at most one of: a settlement, a look at the controls, a list of lanes, a look into lanes.
func (c *core) maintain(now time.Time, r *ready) {
	if c.working {
		return
	}
	urgent := c.draining || c.stopped != nil || c.unsettled > c.cfg.MaxInFlight/2
	if !c.settleAt.IsZero() && (urgent || !now.Before(c.settleAt)) {
		if s := c.settle(); s != nil {
			c.working = true
			r.Settle = s
			return
		}
	}
	if c.draining || c.stopped != nil {
		return
	}
	switch {
	case c.cfg.Control > 0 && !now.Before(c.controlAt):
		r.Controls = true
	case c.mayWalk(now):
		r.Lanes = &lanesQuery{After: c.walked, Limit: c.cfg.LanesMax}
		if !c.synced {
			r.Lanes.Limit = c.cfg.WalkMax
		}
	case !c.mayLoad(now):
		return
	case len(c.toLoad) > 0:
		r.Held = c.nextToLoad()
	case !c.listAt.IsZero() && !now.Before(c.listAt):
		r.Due = c.dueQuery(now)
	default:
		return
	}
	c.working = true
}

// wake returns the earliest time at which something becomes due by itself.
func (c *core) wake(now time.Time) time.Time {
	var at time.Time
	due := func(t time.Time) { at = earlier(at, t) }
	if !c.working {
		due(c.settleAt)
	}
	pause := c.pausedUntil(now)
	if c.stopped != nil || c.draining && (c.outage.failures > 0 || pause != nil) {
		return at
	}
	if !c.working && !c.draining {
		due(c.controlAt)
		if c.synced {
			due(c.syncAt)
		}
		if c.mayLoad(now) && len(c.toLoad) == 0 {
			due(c.listAt)
		}
	}
	switch {
	case pause != nil:
		due(pause.until)
	case c.throttled(now):
		due(c.throttle.next())
	}
	if now.Before(c.gather) {
		due(c.gather)
	}
	// Once the pause is over, the probe is under way or there is nothing to probe with.
	if c.outage.forbids(now) && !c.outage.probing {
		due(c.outage.until)
	}
	due(c.lanesDue)
	return at
}

// onRead takes a batch that the session returned. An empty one only allows the next read; one that comes
// after drain is left to the next session.
func (c *core) onRead(now time.Time, b Batch) {
	c.reading, c.gather, c.sourceFull = false, time.Time{}, b.Full
	if len(b.Deliveries) == 0 || c.draining {
		if b.Recycle != nil {
			b.Recycle()
		}
		return
	}
	if b.More {
		c.gather = now.Add(c.cfg.Gather)
	}
	p := c.newPage(b)
	c.pages = append(c.pages, p)
	c.unsettled += len(p.items)
	c.filter(p.items)
	for i := range p.items {
		it := &p.items[i]
		c.bytes += it.size
		if it.state == unselected {
			continue
		}
		s := &c.stripes[it.d.Shard%len(c.stripes)]
		s.queue = append(s.queue, it)
	}
	c.advance(now)
}

func (c *core) newPage(b Batch) *page {
	var p *page
	if n := len(c.free); n > 0 {
		p, c.free = c.free[n-1], c.free[:n-1]
	} else {
		p = &page{}
	}
	p.batch, p.settled = b, 0
	p.items = slices.Grow(p.items[:0], len(b.Deliveries))[:len(b.Deliveries)]
	for i := range p.items {
		d := &b.Deliveries[i]
		p.items[i] = item{d: d, size: size(d)}
	}
	return p
}

func (c *core) mayRead(now time.Time) bool {
	return !c.reading && !c.draining && c.stopped == nil && c.synced && !c.crowded() && c.pausedUntil(now) == nil && !c.full()
}

// full reports whether no page has room any more.
func (c *core) full() bool {
	return c.unsettled+c.cfg.ReadMax > c.cfg.MaxInFlight || c.bytes >= c.cfg.MaxInFlightBytes
}

// whyFull says why nothing new is read, or not of all keys, although the destination answers; nil if it is.
func (c *core) whyFull() error {
	if c.crowded() {
		return fmt.Errorf("as many keys have messages that are set aside as MaxHeldLanes allows (%d): nothing new is read, of any key, "+
			"until those of a tenth of them are delivered, dead or discarded", c.cfg.MaxHeldLanes)
	}
	return c.sourceFull
}
