package relay

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/schema"
)

// Batch is what Next returns. Recycle, if not nil, is called once when no message of it is needed any
// more; the session may then reuse the memory.
type Batch struct {
	Deliveries []Delivery
	Recycle    func()

	// More means that Next has the next ones ready, or nearly: the relay may wait a moment for them, to publish
	// in larger calls.
	More bool

	// Full says why the strategy reads nothing more, or not of all keys, until something that is set aside ends; nil
	// if it does. Then the batch may be empty.
	Full error
}

// Delivery is a message on its way to one destination.
type Delivery struct {
	outbox.Message

	// Shard is the message's virtual partition, 0 to 63. All messages of a lane have the same.
	Shard int

	// Attempts counts the publishes that failed before.
	Attempts int

	// RetryAt is when a hold is due; zero for one that waits behind its head, and for a message that
	// was never held. Blocked holds wait for an operator. Next may return one too, which becomes such a hold.
	RetryAt time.Time
	Blocked bool

	// Replayed is a hold that is sent once more, as an operator has asked. The destination's filter decides about it as
	// about a new message: what it leaves out is removed without being sent.
	Replayed bool

	// Invalid tells why the row can't be a message at all (headers that are not an object, an empty
	// topic). It is never published; the policy for refused messages applies.
	Invalid error

	// Row is the id of the row in a table that exists already, as text; empty for the outbox, whose rows are known by
	// the message's id. DedupKey is the text that the message's id was made from, if it was no UUID.
	Row      string
	DedupKey string

	// Window and Ref are the strategy's own, to find its way back from a delivery to its place.
	Window uint64
	Ref    uint64

	notYet bool // it is no message, see NotYet
}

// NotYet is what Session.Held returns for a lane whose first hold can't be had now: it is asked for again when it is
// due, or, if it is blocked, when an operator has acted.
func NotYet(due time.Time, blocked bool) []Delivery {
	return []Delivery{{RetryAt: due, Blocked: blocked, notYet: true}}
}

// Lane names the lane of d: by its ordering key, as schema.Lane has it, or its message id if it has none.
func (d *Delivery) Lane() string {
	if key := d.OrderingKey(); key != "" {
		return schema.Lane(key)
	}
	return d.ID.String()
}

// Route is what decides where adapters publish a message, apart from its key. Messages of one route wait together.
// Where the key decides too, they wait in vain for one that can't be routed, but not for long: see core.messageAtFault.
type Route struct {
	Topic, AggregateType, EventType string
}

func routeOf(m *outbox.Message) Route { return Route{m.Topic, m.AggregateType, m.EventType} }

// clone returns a route that doesn't point into the memory of a page.
func (r Route) clone() Route {
	return Route{strings.Clone(r.Topic), strings.Clone(r.AggregateType), strings.Clone(r.EventType)}
}

// HeldLane is a lane with holds.
type HeldLane struct {
	Lane  string
	Shard int
	Due   time.Time // of the first hold
	Route Route     // of the first hold
}

// DueQuery asks for lanes whose first hold is due: the earliest Limit of them, if there are so many, but for those that
// are told below. In addition the first of each route that will be due may be listed, so that the relay knows when to
// ask again. Holds that are blocked are never due.
type DueQuery struct {
	Limit  int
	Closed []Route // nothing of these routes
	Probes []Route // of each of these routes only the first, whether it is due or not
	Paused []Pause // nothing of these topics and lanes
}

// Omits reports whether nothing of a lane whose first hold is of a route is asked for.
func (q *DueQuery) Omits(lane string, r Route) bool {
	return slices.Contains(q.Closed, r) || slices.ContainsFunc(q.Paused, func(p Pause) bool {
		return (p.Topic == "" || p.Topic == r.Topic) && (p.Lane == "" || p.Lane == lane)
	})
}

// Controls is what operators ask of a destination.
type Controls struct {
	Pauses []Pause
	Rate   float64 // messages a second that the session may publish at most; 0: no bound
}

// Pause says what is not to be published. An empty Topic stands for all topics, an empty Lane for all lanes.
type Pause struct {
	Topic string
	Lane  string
	Until time.Time // zero: until it isn't in the list any more
}

// Settlement is everything that a set of outcomes changes in the database.
type Settlement struct {
	// Through is the last delivery of the contiguous settled prefix, in the order in which Next returned
	// them; nil leaves the cursor where it is. Delivered counts the delivered messages that this settles: up to
	// Through, and of HeldDelivered. So each counts once, however often a crash has it published, and a replay once
	// more.
	Through   *Delivery
	Delivered int

	// Hold and Dead are deliveries up to Through that were not delivered. They become holds and dead
	// letters in the transaction that moves the cursor past them. A hold that is to wait behind others, and before
	// which its lane has none, is due at once: operators may have discarded the others.
	Hold []Hold
	Dead []Dead

	// The rest concerns messages that were holds already.
	HeldDelivered []*Delivery // remove: delivered, or replayed and left out by the filter
	HeldRetry     []Hold      // new attempts, due time and error of a head
	HeldDead      []Dead      // move to the dead letters
}

// Empty reports whether s changes nothing.
func (s *Settlement) Empty() bool {
	return s.Through == nil && len(s.HeldDelivered)+len(s.HeldRetry)+len(s.HeldDead) == 0
}

// Hold is a message to be set aside. A zero RetryAt waits behind the head of its lane.
type Hold struct {
	Delivery *Delivery
	RetryAt  time.Time
	Blocked  bool
	Err      error
}

// Dead is a message to become a dead letter.
type Dead struct {
	Delivery *Delivery
	Reason   Reason
	Err      error
}

// Reason classifies dead letters.
type Reason string

const (
	ReasonInvalid   Reason = "invalid"   // the row is not a message
	ReasonRefused   Reason = "refused"   // the broker will never take it
	ReasonExhausted Reason = "exhausted" // max_attempts failed
)

// Policy says what becomes of a message that will not be tried again: the broker refused it for good,
// the row is not a message, or MaxAttempts failed.
type Policy string

const (
	// DeadLetter sets the message aside with its error and goes on with its key.
	DeadLetter Policy = "dead_letter"
	// Block keeps the message and those behind it with the same key held until an operator requeues or
	// discards it; other keys flow.
	Block Policy = "block"
	// Stop ends the relay of this destination with an error.
	Stop Policy = "stop"
)

func (p Policy) validate() error {
	switch p {
	case DeadLetter, Block, Stop:
		return nil
	}
	return fmt.Errorf("unknown policy %q: want %q, %q or %q", string(p), DeadLetter, Block, Stop)
}

// Backoff is the pause before attempt n+1: Initial·2ⁿ⁻¹, at most Max, of which a random part up to a half
// is taken off, so that many lanes do not come back at once.
type Backoff struct {
	Initial time.Duration
	Max     time.Duration
}

// delay returns the pause after the n-th failure, n ≥ 1; random is uniform in [0, 1).
func (b Backoff) delay(n int, random float64) time.Duration {
	d := float64(b.Initial) * math.Pow(2, float64(min(n, 62)-1))
	d = min(d, float64(b.Max))
	return time.Duration(d * (1 - random/2))
}
