package relay

import (
	"time"

	"github.com/pgoutbox/outbox"
)

// itemState is what has become of an item. From unselected on, its outcome is decided.
type itemState uint8

const (
	queued itemState = iota
	inFlight
	unselected
	done   // delivered
	toHold // becomes a hold when the prefix reaches it
	toDead // becomes a dead letter when the prefix reaches it
)

// item is a delivery and its state.
type item struct {
	d     *Delivery
	lane  *lane // while a call carries it on behalf of a lane
	size  int
	state itemState
	held  bool // comes from the holds, not from a page

	err     error
	reason  Reason
	retryAt time.Time
	blocked bool
}

// keyed reports whether a message has a key. A message without one is not remembered, because nothing waits behind it.
func (it *item) keyed() bool { return it.d.OrderingKey() != "" }

// laneMode is what a lane waits for.
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

// lane is a key that is out of the ordinary: see core.
type lane struct {
	name    string
	stripe  int
	mode    laneMode
	queue   []*item // to be published, in order
	barrier *item
	due     time.Time
	gate    *gate // what its head waits for; nil: nothing
	flying  int   // items in the stripe's call
}

// waitFor sets the gate that the head of the lane waits for; nil for none.
func (l *lane) waitFor(g *gate) {
	if l.gate != nil {
		l.gate.waiting--
	}
	if l.gate = g; g != nil {
		g.waiting++
	}
}

// dueAt returns the time from which the head of the lane may be published.
func (l *lane) dueAt() time.Time {
	if l.gate != nil && l.gate.until.After(l.due) {
		return l.gate.until
	}
	return l.due
}

// call is one Publish. Batch is what the broker gets; items stand at the same indexes.
type call struct {
	Batch []*outbox.Message

	stripe      int
	items       []*item
	outageProbe bool
	ages        []time.Duration // memory for the runner

	lanes   map[string]bool // of the first items, as many as counted: see has
	counted int
}

// has reports whether a call carries a message of the lane.
func (k *call) has(lane string) bool {
	if k.lanes == nil {
		k.lanes = make(map[string]bool)
	}
	for ; k.counted < len(k.items); k.counted++ {
		k.lanes[k.items[k.counted].d.Lane()] = true
	}
	return k.lanes[lane]
}

// page is a batch that the session has returned.
type page struct {
	batch   Batch
	items   []item
	settled int // items before this index are settled
}

// stripe is a fixed share of the shards.
type stripe struct {
	queue    []*item
	inFlight *call
	lanes    []*lane // lanes of this stripe that have something to publish
}

// size returns what a message counts against the limits in bytes: its variable parts and our overhead.
func size(d *Delivery) int {
	n := len(d.Payload) + len(d.Topic) + len(d.Key) + 256
	for i := range d.Headers {
		n += len(d.Headers[i].Name) + len(d.Headers[i].Value)
	}
	return n
}

// prefix is the end of the contiguous run of items whose outcome is decided.
type prefix struct {
	page, item int
}

// heldOutcomes are the outcomes of holds that are not settled yet.
type heldOutcomes struct {
	delivered  []*Delivery
	unselected []*Delivery
	retry      []Hold
	dead       []Dead
	barriers   []*lane
	count      int
}

func (h *heldOutcomes) empty() bool { return h.count == 0 }

// settlement remembers the effects of a Settlement that is being stored.
type settlement struct {
	to       prefix
	barriers []*lane
}
