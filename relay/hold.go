package relay

import (
	"fmt"
	"slices"
	"time"
)

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
