package relay

import (
	"fmt"
	"slices"
	"time"
)

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
