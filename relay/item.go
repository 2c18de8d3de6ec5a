package relay

import (
	"hash/maphash"
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

// earlier returns the earlier of two times, of which the zero one means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
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

// laneKey stands for a lane. The seeds are random and secret, so nobody can write keys that collide. Two lanes of a
// million collide with a probability of 10⁻²⁷.
type laneKey [2]uint64

// storedLanes are the lanes whose holds wait in the database. There may be millions of them, so the core has no object
// for them. It remembers a hash of each, by which it knows what must wait behind holds, and asks the database which are
// due.
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

func (s *storedLanes) add(k laneKey) { s.keys[k] = struct{}{} }

func (s *storedLanes) remove(k laneKey) { delete(s.keys, k) }

func (s *storedLanes) size() int { return len(s.keys) }
