package relay

import (
	"strings"
	"time"
)

// Lanes: keys out of the ordinary.

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

// listBy has the lanes that are due listed at that time, or before.
func (c *core) listBy(at time.Time) {
	if !at.IsZero() && (c.listAt.IsZero() || at.Before(c.listAt)) {
		c.listAt = at
	}
}

// reopen lets lanes go on that wait for the end of o, in memory and in the database.
func (c *core) reopen(now time.Time, o *closed) {
	c.dirty = true
	c.listBy(now)
	for _, l := range c.lanes {
		if l.closed == o {
			l.await(nil)
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
