package relay

import (
	"slices"
	"time"
)

// The prefix of decided deliveries, and what is settled with it.

// onSettled takes the success of the last Settle. A failure ends the session instead, and the core
// with it.
func (c *core) onSettled(now time.Time) {
	s := c.settling
	c.settling, c.working = nil, false
	for _, l := range s.barriers {
		c.endBarrier(l)
	}
	c.settlePages(now, s.to)
	c.advance(now)
}

// settlePages forgets everything before to.
func (c *core) settlePages(now time.Time, to prefix) {
	for i := 0; i <= to.page && i < len(c.pages); i++ {
		p := c.pages[i]
		end := len(p.items)
		if i == to.page {
			end = to.item
		}
		for j := p.settled; j < end; j++ {
			it := &p.items[j]
			c.bytes -= it.size
			switch it.state {
			case toHold:
				c.settledHold(now, it)
			case toDead:
				if l := c.lanes[it.d.Lane()]; l != nil && l.barrier == it {
					c.endBarrier(l)
				}
			}
		}
		c.unsettled -= end - p.settled
		p.settled = end
	}
	n := 0
	for n < len(c.pages) && c.pages[n].settled == len(c.pages[n].items) {
		n++
	}
	if n == 0 {
		return
	}
	for _, p := range c.pages[:n] {
		if p.batch.Recycle != nil {
			p.batch.Recycle()
		}
		p.batch = Batch{}
		c.free = append(c.free, p)
	}
	c.pages = slices.Delete(c.pages, 0, n)
	c.prefix.page -= n
}

// settledHold drops a hold from memory: it is in the database now, and its lane is listed when it is due. One that was
// to wait behind others is due already if there were none, see Settlement.Hold; usually there are, so that is looked
// for only a few times a second.
func (c *core) settledHold(now time.Time, it *item) {
	l := c.laneOf(it)
	switch {
	case l != nil:
		c.dirty = true
	case it.retryAt.IsZero() && !it.blocked:
		c.listBy(now.Add(c.cfg.Resync / 20))
	}
	if !it.blocked {
		c.listBy(it.retryAt)
	}
	if !it.keyed() {
		return
	}
	key := c.stored.key(it.d.Lane())
	if list := c.pending[key]; len(list) > 1 {
		c.pending[key] = list[1:]
	} else {
		delete(c.pending, key)
	}
}

// rewind recomputes the prefix from the settled items.
func (c *core) rewind() { c.prefix = c.settledTo() }

func (c *core) settledTo() prefix {
	for i, p := range c.pages {
		if p.settled < len(p.items) {
			return prefix{page: i, item: p.settled}
		}
	}
	return prefix{page: len(c.pages)}
}

// advance moves the prefix over everything decided and sets the time to settle it.
func (c *core) advance(now time.Time) {
	for c.prefix.page < len(c.pages) {
		p := c.pages[c.prefix.page]
		for c.prefix.item < len(p.items) && p.items[c.prefix.item].state >= unselected {
			if p.items[c.prefix.item].state > done {
				c.settleAt = now // holds and dead letters are not kept waiting
			}
			c.prefix.item++
		}
		if c.prefix.item < len(p.items) {
			break
		}
		c.prefix = prefix{page: c.prefix.page + 1}
	}
	if !c.held.empty() {
		c.settleAt = now
	}
	if c.settleAt.IsZero() && c.prefix != c.settledTo() {
		c.settleAt = now.Add(c.cfg.SettleDelay)
	}
}

// settle builds the settlement of everything decided, or nil if there is nothing.
func (c *core) settle() *Settlement {
	s := &Settlement{
		Delivered:     len(c.held.delivered),
		HeldDelivered: append(c.held.delivered, c.held.unselected...),
		HeldRetry:     c.held.retry,
		HeldDead:      c.held.dead,
	}
	from := c.settledTo()
	for i := from.page; i <= c.prefix.page && i < len(c.pages); i++ {
		p := c.pages[i]
		end := len(p.items)
		if i == c.prefix.page {
			end = c.prefix.item
		}
		for j := p.settled; j < end; j++ {
			it := &p.items[j]
			switch it.state {
			case done:
				s.Delivered++
			case toHold:
				s.Hold = append(s.Hold, Hold{Delivery: it.d, RetryAt: it.retryAt, Blocked: it.blocked, Err: it.err})
			case toDead:
				s.Dead = append(s.Dead, Dead{Delivery: it.d, Reason: it.reason, Err: it.err})
			}
		}
		if end > p.settled {
			s.Through = p.items[end-1].d
		}
	}
	c.settleAt = time.Time{}
	if s.Empty() {
		return nil
	}
	c.settling = &settlement{to: c.prefix, barriers: c.held.barriers}
	c.held = heldOutcomes{}
	return s
}
