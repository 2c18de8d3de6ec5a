package relay

import (
	"cmp"
	"slices"
	"time"
)

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

// forgetStale forgets all lanes and lists them again if there are too many: the holds of some may have been discarded
// by operators. Everything that was read must be settled before, because no lane is known until the list is complete.
func (c *core) forgetStale(now time.Time) {
	if !c.crowded() || len(c.pages) > 0 || c.reading || now.Before(c.rewalkAt) {
		return
	}
	c.rewalkAt = now.Add(100 * c.cfg.Resync)
	clear(c.stored.keys)
	c.synced, c.walked = false, ""
}

// dueQuery asks for lanes that are due, beside those in memory. Of a route with an outage it asks for one lane, the
// probe, and only if no lane in memory is the probe.
func (c *core) dueQuery(now time.Time) *DueQuery {
	q := &DueQuery{Limit: c.cfg.LanesMax}
	for _, l := range c.lanes {
		if l.mode == laneHeld {
			q.Limit++
		}
	}
	for r, o := range c.gates {
		if o.shut(now) || o.waiting > 0 {
			q.Closed = append(q.Closed, r)
		} else {
			q.Probes = append(q.Probes, r)
		}
	}
	for t, o := range c.paused {
		if o.shut(now) {
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
	c.endIdleOutages(now, q, list)
	for _, o := range c.gates {
		if o.shut(now) {
			c.listBy(o.until)
		}
	}
}

// wakeLane makes the core load the holds of a lane that is due. It does nothing if the lane's route has an outage or a
// message of the lane is on its way: the lane is listed again then.
func (c *core) wakeLane(now time.Time, h *HeldLane) bool {
	o := c.gates[h.Route]
	switch l := c.lanes[h.Lane]; {
	case l != nil && l.mode == laneHeld, o != nil && (o.shut(now) || o.waiting > 0):
		return false
	case l != nil, c.carries(h):
		c.stored.add(c.stored.key(h.Lane)) // or a busy key would never be found at rest
		return false
	}
	l := &lane{name: h.Lane, stripe: h.Shard % len(c.stripes), mode: laneHeld, due: h.Due}
	l.waitFor(o)
	c.lanes[h.Lane] = l
	return true
}

// carries reports whether a message of the lane is in flight.
func (c *core) carries(h *HeldLane) bool {
	k := c.stripes[h.Shard%len(c.stripes)].inFlight
	return k != nil && k.has(h.Lane)
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
		c.dropLane(l)
		return
	}
	if list[0].notYet || list[0].RetryAt.After(now) {
		c.listBy(list[0].RetryAt)
		c.dropLane(l)
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
			c.filter(items[i : i+1])
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
	c.dropIfDone(l)
}

// mayWalk reports whether the next page of all held lanes is to be listed: at once until all are known, later a page
// with each resync.
func (c *core) mayWalk(now time.Time) bool {
	if !c.synced {
		return !c.crowded()
	}
	return !now.Before(c.syncAt)
}

// mayLoad reports whether holds may be loaded now: the outcomes of earlier ones must be settled, or they would be
// loaded again.
func (c *core) mayLoad(now time.Time) bool {
	return (c.synced || c.crowded()) && c.held.empty() && c.loaded < c.cfg.MaxLoaded &&
		!c.outage.forbids(now) && c.pausedUntil(now) == nil
}

func (c *core) nextToLoad() *heldQuery {
	room := min(c.cfg.HeldMax, c.cfg.MaxLoaded-c.loaded)
	n := min(len(c.toLoad), c.cfg.HeldLanes, room)
	q := &heldQuery{Limit: room / n}
	for _, l := range c.toLoad[:n] {
		q.Lanes = append(q.Lanes, l.name)
	}
	c.toLoad = c.toLoad[n:]
	return q
}

// lanesQuery asks for a page of all held lanes.
type lanesQuery struct {
	After string
	Limit int
}

type heldQuery struct {
	Lanes []string
	Limit int // of each
}

// crowded reports whether more lanes are held than may be remembered: nothing new is read then, until a tenth is free.
// Each lane that is delivered would otherwise begin a page, whose holds fill its place at once.
func (c *core) crowded() bool {
	most := c.cfg.MaxHeldLanes
	if c.wasCrowded {
		most -= most / 10
	}
	c.wasCrowded = c.stored.size() >= most
	return c.wasCrowded
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
	byDue := func(a, b *lane) int { return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.name, b.name)) }
	slices.SortFunc(c.toLoad, byDue)
	for i := range c.stripes {
		slices.SortFunc(c.stripes[i].lanes, byDue)
	}
}
