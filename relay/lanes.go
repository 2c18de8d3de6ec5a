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
	pending []*item // laneHeld: toHold, not settled yet, in order
	barrier *item
	due     time.Time
	closed  *closed // the outage that its head waits for; nil: none
	opened  bool    // that outage has ended, by another message
	blocked bool    // laneHeld: waits for an operator
	flying  int     // items in the stripe's call
}

// laneOf returns the lane that the item has to go through, or nil for an ordinary key.
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
		delete(c.lanes, l.name)
	}
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

// onLanes takes the list of lanes that have holds. It was read while nothing was being settled, so a
// lane that is not in it has no hold but those that wait in memory.
func (c *core) onLanes(now time.Time, list []HeldLane) {
	c.working = false
	c.synced = true
	c.syncAt = now.Add(c.cfg.Resync)
	c.crowded = len(list) >= c.cfg.MaxHeldLanes
	c.dirty = true
	present := make(map[string]bool, len(list))
	for _, h := range list {
		present[h.Lane] = true
		l := c.lanes[h.Lane]
		switch {
		case l == nil:
			if c.carries(h) {
				continue // its call decides first; the next list shows the lane again
			}
			l = &lane{name: h.Lane, stripe: h.Shard % len(c.stripes), mode: laneHeld, due: h.Due, blocked: h.Blocked}
			c.lanes[h.Lane] = l
		case l.mode == laneHeld && len(l.queue) == 0 && l.flying == 0:
			l.due, l.blocked = h.Due, h.Blocked
		}
	}
	for _, l := range c.lanes {
		gone := !present[l.name] && !c.crowded && !headPending(l)
		if gone && l.mode == laneHeld && len(l.queue) == 0 && l.flying == 0 && l.barrier == nil {
			c.release(l)
		}
	}
	c.forgetClosed(now)
	c.advance(now)
}

// carries reports whether a message of the lane is in flight.
func (c *core) carries(h HeldLane) bool {
	k := c.stripes[h.Shard%len(c.stripes)].inFlight
	return k != nil && k.has(h.Lane)
}

// headPending reports whether the head of a held lane still waits in memory with a time of its own.
func headPending(l *lane) bool {
	return len(l.pending) > 0 && (!l.pending[0].retryAt.IsZero() || l.pending[0].blocked)
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
	if list[0].Blocked {
		l.blocked = true
		return
	}
	if list[0].notYet || list[0].RetryAt.After(now) {
		l.due = list[0].RetryAt
		return
	}
	if list[len(list)-1].Replayed {
		// The replay will add holds to lanes that are not known yet.
		if soon := now.Add(c.cfg.Resync / 20); soon.Before(c.syncAt) {
			c.syncAt = soon
		}
	}
	items := make([]item, len(list))
	for i := range list {
		d := &list[i]
		if i > 0 && (d.Blocked || d.RetryAt.After(now)) {
			break // an operator has sent an earlier message again, so this is no longer the head
		}
		if d.Invalid == nil && d.DeliverAt.After(now) {
			// The messages behind a delayed one wait with it.
			if i == 0 {
				l.due = d.DeliverAt
			}
			break
		}
		items[i] = item{d: d, size: size(d), held: true}
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
	for _, it := range l.pending {
		it.state = queued
	}
	if len(l.pending) > 0 {
		// The prefix may have run over them. No settlement is under way, so nothing is lost by going back.
		c.rewind()
	}
	l.mode, l.due, l.blocked = laneRetry, time.Time{}, false
	l.queue, l.pending = l.pending, nil
	c.dirty = true
	c.closeIfDone(l)
}

// scan hands every lane that is due to its stripe or to the list of lanes to load, and notes when the next
// one is due. It costs a walk over all lanes, so it runs only when one changed or became due.
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
		loadable := l.mode == laneHeld && len(l.queue) == 0 && l.flying == 0 && l.barrier == nil && !headPending(l)
		switch {
		case l.blocked || !publishable && !loadable:
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
	if it.d.Invalid != nil {
		it.err = it.d.Invalid
		c.fail(now, it)
		return
	}
	if o := c.closedTo(now, it); o != nil {
		c.await(now, it, o)
		return
	}
	c.retry(now, it, it.d.DeliverAt)
}
