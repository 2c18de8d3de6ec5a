package relay

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// addLane returns the lane of an item, and makes it if there is none.
func (c *core) addLane(it *item) *lane {
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

// dropIfDone forgets a lane that has nothing left to do.
func (c *core) dropIfDone(l *lane) {
	if l.mode == laneRetry && len(l.queue) == 0 && l.flying == 0 {
		c.dropLane(l)
	}
}

// dropLane forgets a lane. If it has holds, they are in the database, or will be with the next settlement,
// and it is listed when its head is due.
func (c *core) dropLane(l *lane) {
	if l.gate != nil {
		c.listBy(l.gate.until) // another lane asks then
		l.waitFor(nil)
	}
	delete(c.lanes, l.name)
	c.dirty = true
}

// endBarrier lets a lane go on whose dead letter is settled.
func (c *core) endBarrier(l *lane) {
	l.barrier = nil
	c.dirty = true
	if l.mode == laneBarrier {
		l.mode, l.due = laneRetry, time.Time{}
		c.dropIfDone(l)
	}
}

// listBy makes the core ask for the lanes that are due, at that time or before.
func (c *core) listBy(at time.Time) {
	c.listAt = earlier(c.listAt, at)
}

// resume lets the lanes that wait for a gate go on, in memory and in the database.
func (c *core) resume(now time.Time, o *gate) {
	c.dirty = true
	c.listBy(now)
	for _, l := range c.lanes {
		if l.gate == o {
			l.waitFor(nil)
			l.due = time.Time{}
		}
	}
}

// headPending reports whether the head of a held lane still waits in memory with a time of its own.
func (c *core) headPending(l *lane) bool {
	if len(c.pending) == 0 {
		return false
	}
	list := c.pending[c.stored.key(l.name)]
	return len(list) > 0 && (!list[0].retryAt.IsZero() || list[0].blocked)
}

// hold turns a lane's waiting items into holds: the head with its due time, the rest behind it.
func (c *core) hold(l *lane, due time.Time, blocked bool) {
	for i, it := range l.queue {
		c.holdBehind(it)
		if i == 0 {
			it.retryAt, it.blocked = due, blocked
		}
	}
	l.queue = nil
	c.dropLane(l)
}

// holdBehind turns an item into a hold that waits behind others of its lane. Should none be there any more when it is
// stored, it is due at once: see Settlement.Hold.
func (c *core) holdBehind(it *item) {
	it.state, it.retryAt, it.blocked = toHold, time.Time{}, false
	if it.keyed() {
		key := c.stored.key(it.d.Lane())
		c.stored.add(key)
		c.pending[key] = append(c.pending[key], it)
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

// retryHeld records a failed attempt of a hold, or that it waits for something else. What is loaded of the lane is
// dropped: it is in the database, and the lane is listed when the head is due.
func (c *core) retryHeld(l *lane, it *item, due time.Time, blocked bool) {
	c.held.retry = append(c.held.retry, Hold{Delivery: it.d, RetryAt: due, Blocked: blocked, Err: it.err})
	c.held.count++
	if !blocked {
		c.listBy(due)
	}
	c.loaded -= len(l.queue)
	l.queue = nil
	c.dropLane(l)
}

// retry makes the head of a lane wait until due: in memory if that is soon, else as a hold.
func (c *core) retry(now time.Time, it *item, due time.Time) {
	c.dirty = true
	l := c.lanes[it.d.Lane()]
	switch {
	case it.held:
		c.retryHeld(l, it, due, false)
	case due.Sub(now) > c.cfg.HoldAfter || c.draining:
		c.hold(l, due, false)
	default:
		l.due = due
	}
}

// exhaust applies the destination's policy to the head of a lane, which will not be tried again.
func (c *core) exhaust(it *item, reason Reason) {
	c.dirty = true
	it.reason = reason
	l := c.lanes[it.d.Lane()]
	switch {
	case c.cfg.OnExhausted == Stop:
		// It stays where it is: nothing is published any more.
		if c.stopped == nil {
			row := ""
			if it.d.Row != "" {
				row = fmt.Sprintf("row %.200q, ", it.d.Row)
			}
			c.stopped = fmt.Errorf("message %s (%stopic %.200q, key %.200q) can't be delivered after %d attempts and the policy is %q: %w",
				it.d.ID, row, it.d.Topic, it.d.OrderingKey(), it.d.Attempts, Stop, it.err)
		}
	case c.cfg.OnExhausted == Block && it.held:
		c.retryHeld(l, it, time.Time{}, true)
	case c.cfg.OnExhausted == Block:
		c.hold(l, time.Time{}, true)
	case it.held:
		l.queue = slices.Delete(l.queue, 0, 1)
		l.barrier = it
		c.loaded--
		c.held.dead = append(c.held.dead, Dead{Delivery: it.d, Reason: reason, Err: it.err})
		c.held.barriers = append(c.held.barriers, l)
		c.held.count++
	default:
		l.queue = slices.Delete(l.queue, 0, 1)
		l.mode, l.barrier = laneBarrier, it
		it.state = toDead
	}
}
