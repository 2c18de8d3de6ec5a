package relay

import (
	"hash/maphash"
	"time"
)

// Lanes whose holds wait in the database. There may be millions of them, so the core has no object for them. It
// remembers a hash of each, by which it knows what must wait behind holds, and asks the database which are due.

// laneKey stands for a lane. The seeds are random and secret, so nobody can write keys that collide. Two lanes of a
// million collide with a probability of 10⁻²⁷.
type laneKey [2]uint64

type storedLanes struct {
	seeds [2]maphash.Seed
	keys  map[laneKey]struct{}
}

func newStoredLanes() storedLanes {
	return storedLanes{seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}, keys: make(map[laneKey]struct{})}
}

func (s *storedLanes) key(lane string) laneKey {
	return laneKey{maphash.String(s.seeds[0], lane), maphash.String(s.seeds[1], lane)}
}

func (s *storedLanes) has(lane string) bool {
	_, ok := s.keys[s.key(lane)]
	return ok
}

func (s *storedLanes) add(k laneKey)    { s.keys[k] = struct{}{} }
func (s *storedLanes) remove(k laneKey) { delete(s.keys, k) }
func (s *storedLanes) size() int        { return len(s.keys) }

// keyed reports whether a message has an order. One that has none needs not be remembered: nothing waits behind it.
func (it *item) keyed() bool { return it.d.OrderingKey() != "" }

// headPending reports whether the head of a held lane still waits in memory with a time of its own.
func (c *core) headPending(l *lane) bool {
	if len(c.pending) == 0 {
		return false
	}
	list := c.pending[c.stored.key(l.name)]
	return len(list) > 0 && (!list[0].retryAt.IsZero() || list[0].blocked)
}

// onLanes takes a page of all lanes that have holds. The walk goes on after the lane next, or is at its end.
func (c *core) onLanes(now time.Time, list []string, next string) {
	c.working = false
	for _, name := range list {
		c.stored.add(c.stored.key(name))
	}
	c.walked = next
	if next == "" {
		c.synced = true
	}
	if c.synced {
		c.syncAt = now.Add(c.cfg.Resync)
		c.forgetStale(now)
	}
}

// forgetStale begins the walk over all lanes again if there are too many, because some may be remembered whose holds
// operators have discarded. What has been read must have been settled, as nothing is known until the walk's end.
func (c *core) forgetStale(now time.Time) {
	if !c.crowded() || len(c.pages) > 0 || c.reading || now.Before(c.rewalkAt) {
		return
	}
	c.rewalkAt = now.Add(100 * c.cfg.Resync)
	clear(c.stored.keys)
	c.synced, c.walked = false, ""
}

// listBy has the lanes that are due listed at that time, or before.
func (c *core) listBy(at time.Time) {
	if !at.IsZero() && (c.listAt.IsZero() || at.Before(c.listAt)) {
		c.listAt = at
	}
}

// dueQuery asks for lanes that are due, besides those that are in memory. Of a topic that is closed only a probe is
// wanted, and that only if nothing in memory is one.
func (c *core) dueQuery(now time.Time) *DueQuery {
	q := &DueQuery{Limit: c.cfg.LanesMax}
	for _, l := range c.lanes {
		if l.mode == laneHeld {
			q.Limit++
		}
	}
	for r, o := range c.closed {
		if o.lasts(now) || o.waiting > 0 {
			q.Closed = append(q.Closed, r)
		} else {
			q.Probes = append(q.Probes, r)
		}
	}
	for t, o := range c.paused {
		if o.lasts(now) {
			q.Paused = append(q.Paused, Pause{Topic: t.topic, Lane: t.lane})
		}
	}
	c.listing, c.listAt = q, time.Time{}
	return q
}

// onDue takes the list of lanes that are due, and of some that will be.
func (c *core) onDue(now time.Time, list []HeldLane) {
	c.working, c.dirty = false, true
	q := c.listing
	c.listing = nil
	c.listBy(now.Add(c.cfg.Resync)) // operators may have sent some again
	due, woken := 0, 0
	for i := range list {
		h := &list[i]
		if h.Due.After(now) {
			c.listBy(h.Due)
			continue
		}
		due++
		if c.wakeLane(now, h) {
			woken++
		}
	}
	if due >= q.Limit && woken > 0 {
		c.listBy(now) // there are more
	}
	c.endOutages(now, q, list)
	for _, o := range c.closed {
		if o.lasts(now) {
			c.listBy(o.until)
		}
	}
}

// wakeLane has the holds of a lane loaded, unless its route is closed or something of the lane is on its way: then it
// is listed again.
func (c *core) wakeLane(now time.Time, h *HeldLane) bool {
	o := c.closed[h.Route]
	switch l := c.lanes[h.Lane]; {
	case l != nil && l.mode == laneHeld, o != nil && (o.lasts(now) || o.waiting > 0):
		return false
	case l != nil, c.carries(h):
		c.stored.add(c.stored.key(h.Lane)) // or a busy key would never be found at rest
		return false
	}
	l := &lane{name: h.Lane, stripe: h.Shard % len(c.stripes), mode: laneHeld, due: h.Due}
	l.await(o)
	c.lanes[h.Lane] = l
	return true
}

// carries reports whether a message of the lane is in flight.
func (c *core) carries(h *HeldLane) bool {
	k := c.stripes[h.Shard%len(c.stripes)].inFlight
	return k != nil && k.has(h.Lane)
}
