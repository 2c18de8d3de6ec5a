package relay

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Lanes: keys out of the ordinary.

type laneMode uint8

const (
	// laneRetry: the head waits in memory until due.
	laneRetry laneMode = iota
	// laneBarrier: a dead letter of this lane is not settled yet. Later messages must wait: if the lease were lost
	// after one of them was published, the next owner would publish the dead letter after it.
	laneBarrier
	// laneHeld: the lane has holds in the database; whatever comes is held behind them.
	laneHeld
)

type lane struct {
	name    string
	stripe  int
	mode    laneMode
	queue   []*item // to be published, in order
	barrier *item
	due     time.Time
	closed  *closed // the outage that its head waits for; nil: none
	flying  int     // items in the stripe's call
}

// laneOf returns the lane that the item has to go through, or nil for an ordinary key and for one of which only holds
// are known.
func (c *core) laneOf(it *item) *lane {
	if len(c.lanes) == 0 {
		return nil
	}
	return c.lanes[it.d.Lane()]
}

func (c *core) openLane(it *item) *lane {
	name := it.d.Lane()
	l := c.lanes[name]
	if l == nil {
		// The delivery's memory is recycled with its page; a lane can outlive it.
		l = &lane{name: strings.Clone(name), stripe: it.d.Shard % len(c.stripes)}
		c.lanes[l.name] = l
		c.dirty = true
	}
	return l
}

// closeIfDone forgets a lane that has nothing left to do.
func (c *core) closeIfDone(l *lane) {
	if l.mode == laneRetry && len(l.queue) == 0 && l.flying == 0 {
		c.closeLane(l)
	}
}

// closeLane forgets the object. If the lane has holds, they are in the database, or will be with the next settlement,
// and the lane is listed when its head is due.
func (c *core) closeLane(l *lane) {
	if l.closed != nil {
		c.listBy(l.closed.until) // another lane asks then
		l.await(nil)
	}
	delete(c.lanes, l.name)
	c.dirty = true
}

// lift ends a barrier: its dead letter is settled, the lane goes on.
func (c *core) lift(l *lane) {
	l.barrier = nil
	c.dirty = true
	if l.mode == laneBarrier {
		l.mode, l.due = laneRetry, time.Time{}
		c.closeIfDone(l)
	}
}

// onHeld takes the first holds of lanes.
func (c *core) onHeld(now time.Time, lanes []string, lists [][]Delivery) {
	c.working, c.dirty = false, true
	for i, name := range lanes {
		c.load(now, c.lanes[name], lists[i])
	}
}

// load takes the first holds of a lane. None means that the lane has no hold any more.
func (c *core) load(now time.Time, l *lane, list []Delivery) {
	if len(list) == 0 {
		c.release(l)
		c.advance(now)
		return
	}
	if list[0].notYet || list[0].OrderingKey() != "" {
		// Operators may have made the holds a moment ago. What comes from now on waits behind them, until none is left.
		c.stored.add(c.stored.key(l.name))
	}
	if list[0].Blocked {
		c.closeLane(l)
		return
	}
	if list[0].notYet || list[0].RetryAt.After(now) {
		c.listBy(list[0].RetryAt)
		c.closeLane(l)
		return
	}
	if list[len(list)-1].Replayed {
		// The replay will add holds to lanes that are not known yet.
		c.listBy(now.Add(c.cfg.Resync / 20))
	}
	items := make([]item, len(list))
	for i := range list {
		d := &list[i]
		if i > 0 && (d.Blocked || d.RetryAt.After(now)) {
			break // an operator has sent an earlier message again, so this is no longer the head
		}
		items[i] = item{d: d, size: size(d), held: true}
		if d.Invalid == nil && d.DeliverAt.After(now) {
			// The messages behind a delayed one wait with it.
			if i == 0 {
				c.retryHeld(l, &items[i], d.DeliverAt, false)
			}
			break
		}
		if d.Replayed {
			c.sift(items[i : i+1])
		}
		if items[i].state == unselected {
			c.held.unselected = append(c.held.unselected, d)
			c.held.count++
			continue
		}
		l.queue = append(l.queue, &items[i])
		c.loaded++
	}
	c.advance(now)
}

// release makes a held lane ordinary again. Items that were to be held, but are not settled as holds,
// go out now: they are the oldest of their key.
func (c *core) release(l *lane) {
	key := c.stored.key(l.name)
	c.stored.remove(key)
	l.queue = c.pending[key]
	delete(c.pending, key)
	for _, it := range l.queue {
		it.state = queued
	}
	if len(l.queue) > 0 {
		// The prefix may have run over them. No settlement is under way, so nothing is lost by going back.
		c.rewind()
	}
	l.mode, l.due = laneRetry, time.Time{}
	c.dirty = true
	c.closeIfDone(l)
}

// scan hands every lane that is due to its stripe or to the list of lanes to load, and notes when the next
// one is due. It costs a walk over the lanes in memory, so it runs only when one changed or became due.
func (c *core) scan(now time.Time) {
	if !c.dirty && (c.lanesDue.IsZero() || now.Before(c.lanesDue)) {
		return
	}
	c.dirty, c.lanesDue = false, time.Time{}
	c.toLoad = c.toLoad[:0]
	for i := range c.stripes {
		c.stripes[i].lanes = c.stripes[i].lanes[:0]
	}
	for _, l := range c.lanes {
		publishable := len(l.queue) > 0 && l.flying == 0 && l.mode != laneBarrier && l.barrier == nil
		loadable := l.mode == laneHeld && len(l.queue) == 0 && l.flying == 0 && l.barrier == nil && !c.headPending(l)
		switch {
		case !publishable && !loadable:
		case l.dueAt().After(now):
			if at := l.dueAt(); c.lanesDue.IsZero() || at.Before(c.lanesDue) {
				c.lanesDue = at
			}
		case publishable:
			c.stripes[l.stripe].lanes = append(c.stripes[l.stripe].lanes, l)
		default:
			c.toLoad = append(c.toLoad, l)
		}
	}
	// The order of a map is random; schedules must be repeatable.
	longest := func(a, b *lane) int { return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.name, b.name)) }
	slices.SortFunc(c.toLoad, longest)
	for i := range c.stripes {
		slices.SortFunc(c.stripes[i].lanes, longest)
	}
}

// holdAll holds every lane that waits for a retry.
func (c *core) holdAll() {
	for _, l := range c.lanes {
		if l.mode == laneRetry && l.flying == 0 && len(l.queue) > 0 && !l.due.IsZero() {
			c.hold(l, l.due, false)
		}
	}
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
