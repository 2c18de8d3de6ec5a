package relay

import (
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
	if !at.IsZero() && (c.listAt.IsZero() || at.Before(c.listAt)) {
		c.listAt = at
	}
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
