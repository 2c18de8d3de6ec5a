package mapped

import (
	"sync"

	"github.com/pgoutbox/outbox/relay"
)

// logHolds keeps messages that wait, whole: their rows may be gone. Safe for concurrent use.
type logHolds struct {
	mu    sync.Mutex
	lanes map[string][]*relay.Delivery // with RetryAt and Blocked as they wait
	count int
}

func newLogHolds() *logHolds { return &logHolds{lanes: make(map[string][]*relay.Delivery)} }

func (h *logHolds) size() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.count
}

// add sets a message aside, behind those of its lane.
func (h *logHolds) add(x *relay.Hold) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := *x.Delivery
	d.RetryAt, d.Blocked = x.RetryAt, x.Blocked
	h.lanes[d.Lane()] = append(h.lanes[d.Lane()], &d)
	h.count++
}

// remove forgets a message that waits no more.
func (h *logHolds) remove(d *relay.Delivery) {
	h.mu.Lock()
	defer h.mu.Unlock()
	lane := d.Lane()
	for i, held := range h.lanes[lane] {
		if held.Ref != d.Ref {
			continue
		}
		h.lanes[lane] = append(h.lanes[lane][:i:i], h.lanes[lane][i+1:]...)
		h.count--
		break
	}
	if len(h.lanes[lane]) == 0 {
		delete(h.lanes, lane)
	}
}

// retry notes another attempt of a head.
func (h *logHolds) retry(x *relay.Hold) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, held := range h.lanes[x.Delivery.Lane()] {
		if held.Ref == x.Delivery.Ref {
			held.Attempts, held.RetryAt, held.Blocked = x.Delivery.Attempts, x.RetryAt, x.Blocked
		}
	}
}

// heads lists lanes, at most limit.
func (h *logHolds) heads(limit int) (lanes []relay.HeldLane) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, list := range h.lanes {
		if len(lanes) == limit {
			break
		}
		lanes = append(lanes, relay.HeldLane{Lane: name, Shard: list[0].Shard, Due: list[0].RetryAt, Blocked: list[0].Blocked})
	}
	return lanes
}

// first returns the first messages of a lane, at most limit.
func (h *logHolds) first(lane string, limit int) (held []relay.Delivery) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, d := range h.lanes[lane] {
		if len(held) == limit {
			break
		}
		held = append(held, *d)
	}
	return held
}
