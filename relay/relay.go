// Package relay delivers committed messages from a [Source] to a [Broker]: at least once, in order per
// key, never one that was rolled back.
//
// Its core is a state machine without I/O, clock or goroutines; a thin runner performs the actions that
// it asks for. docs/design.md follows one message through it.
package relay

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/schema"
)

// Broker is where messages go. Adapters satisfy it without importing this package, unless they do more than it asks
// (exactly-once to Kafka is [Coupled]), and pass the suite relaytest.RunBroker.
type Broker interface {
	// Publish sends batch and returns once the outcome of every message is known. nil means that the
	// broker has durably accepted all; otherwise the result has len(batch) errors, nil for an accepted
	// message.
	//
	// Order: a message must not be accepted by the broker unless every earlier one of its OrderingKey in
	// the batch was. After a failure, later messages of that key are answered with outbox.ErrSkipped.
	// A message of which nothing was decided may be answered so as well, if others of the batch were decided.
	// Messages without a key have no order. The engine keeps the rest of the promise: concurrent calls
	// never share a key, and a key's next call starts after its previous one has returned.
	//
	// Publish does not retry what the broker refused. It marks errors with outbox.Permanent (this
	// message was refused), outbox.TopicUnavailable (what it is published to doesn't exist or may not be
	// written to) and outbox.Unavailable (no answer came, or the outcome is unknown). It may mark what a
	// retry may cure with outbox.OfMessage, see around.Breaker. When ctx ends it
	// returns soon, with unavailable errors for what is unknown.
	//
	// The messages and all they point to belong to the caller and are reused after the return: nothing
	// of them may be kept, and nothing changed, for a retry and the order of a key go by them. Publish is
	// called from several goroutines at once.
	//
	// A panic of Publish is an unknown outcome of the whole batch: the engine publishes it again, by smaller calls. A
	// message that panics alone has failed, with a *PanicError. As with a return, nothing of the call runs any more. A
	// panic in a goroutine that Publish has started ends the process.
	Publish(ctx context.Context, batch []*outbox.Message) []error

	// Close releases connections. No Publish runs any more, unless it hangs (ErrHung).
	Close() error
}

// Wrapper is a Broker around another one. What the relay asks of a broker beyond Publish, it asks of the outermost one
// that can answer: see [As]. So a wrapper needs no methods to pass on what it doesn't change.
type Wrapper interface {
	Broker
	Unwrap() Broker
}

// As finds a T, such as a Pinger: b itself, or what it is wrapped around.
func As[T any](b Broker) (t T, ok bool) {
	for {
		if t, ok = b.(T); ok {
			return t, true
		}
		w, wraps := b.(Wrapper)
		if !wraps {
			return t, false
		}
		b = w.Unwrap()
	}
}

// Pinger is a Broker that can say whether it is reachable. The relay asks when it begins, and once a minute while
// nothing is published. Ping is called beside Publish, and ends with ctx.
type Pinger interface {
	Ping(ctx context.Context) error
}

// Identifier is a Broker that knows which broker it publishes to, such as by a cluster's id. The relay asks when a
// session begins and after an outage, before it publishes, and refuses to deliver to another broker than the
// destination's: see Session.Recognize. Identity is called beside Publish, and ends with ctx.
type Identifier interface {
	// Identity returns the broker's names, each with what kind it is. Two lists that share a name are of one broker, so
	// a name that two brokers may have does harm, and so does one that changes, if it is the only one. None, or an
	// error, means that it isn't known. Names contain no secrets.
	Identity(ctx context.Context) ([]string, error)
}

// Source is a strategy: how committed messages are read for one destination and shard group.
type Source interface {
	// Acquire waits until this relay owns the shard group and returns a session that reads from where
	// the last owner durably stood. It returns ctx's error when ctx ends first. An error that somebody
	// has to repair (schema missing, hot standby, restored dump) is returned at once, marked by
	// outbox.Permanent: Run shows it and tries again. One that only another configuration of this program
	// cures is marked by Final. While another call waits, or its session isn't closed, Acquire returns
	// ErrActive, marked by outbox.Permanent.
	Acquire(ctx context.Context) (Session, error)

	// Report records the relay's state where people and other programs look for it; a source without such a place
	// ignores it. It is called at every change of state; err is the cause, if there is one. It doesn't block, except for
	// StateStopped, the last one, which Run waits for: it returns within a few seconds, when the state has been written
	// or can't be. It isn't called with ErrActive, which is no trouble of the Run that has the source.
	Report(state State, err error)

	// Traits returns what a relay has to know of the source. It is called whenever a session begins.
	Traits() Traits
}

// Traits are what a relay has to know of a source. The zero value fits every source.
type Traits struct {
	// HoldLanes is the number of lanes of which one call of Session.Held reads the holds, at little more cost than those
	// of one lane. Lanes that are read together are settled together, which makes a replay several times faster.
	// Default 1.
	HoldLanes int

	// ShowsFailures means that people or other programs see failed attempts in what the source reads. Then every failed
	// attempt is settled at once, as a hold, however short the pause is.
	ShowsFailures bool

	// Receipt, if not nil, gets where the broker has put each message that it has accepted: see outbox.WithReceipts.
	Receipt func(id outbox.ID, r outbox.Receipt)
}

// Session is the ownership of a shard group for as long as its lease lasts. Next is called by one
// goroutine; Settle, Held, Lanes, Due and Controls by another, one at a time; both at the same time.
type Session interface {
	// Next waits for committed messages and returns at most max of them, in order per key. A batch may
	// be empty (nothing came within the strategy's own pause); the caller just calls again.
	Next(ctx context.Context, max int) (Batch, error)

	// Settle makes one database transaction of everything in s, or changes nothing. An error that is
	// not ErrLeaseLost leaves the outcome unknown: the relay gives the session up and acquires again.
	Settle(ctx context.Context, s Settlement) error

	// Lanes lists the lanes of messages with a key that have holds, in an order of its own: at most limit of those
	// after the lane after, or from the first if it is empty. next is the last lane that it has looked at, after which
	// the following call goes on, and empty at the end. A call takes far less time than a lease, so a list may be
	// short, or empty, before the end: what the session passes over takes time too. To a first hold without a time of
	// its own, as a crash may leave, it gives the present as its time: see Due.
	Lanes(ctx context.Context, after string, limit int) (lanes []string, next string, err error)

	// Due lists lanes by the times at which their first holds are due: see DueQuery.
	Due(ctx context.Context, q DueQuery) ([]HeldLane, error)

	// Held returns for each of lanes, in their order, the first holds of the lane in order, at most limit: [NotYet] if
	// the first of them can't be had now, and nothing if the lane has no holds any more. The relay asks for at most
	// Traits.HoldLanes lanes at once.
	Held(ctx context.Context, lanes []string, limit int) ([][]Delivery, error)

	// Controls returns what operators ask of the destination now. It is called like Settle, about once a second.
	Controls(ctx context.Context) (Controls, error)

	// Recognize records the names of the broker for the destination, if it has none yet or shares one. Otherwise the
	// destination is another broker's: an error marked by outbox.Permanent, after which nothing may be published. Where
	// there is no place to record it, every broker is the destination's. Safe for concurrent use with all others.
	Recognize(ctx context.Context, identity []string) error

	// Expires returns the time until which the lease surely lasts, by this process's clock.
	// Safe for concurrent use.
	Expires() time.Time

	// Close gives the lease back if it is still held, so that another relay takes over at once. If ctx has ended, it
	// gives nothing back and is brief: the lease isn't renewed any more and runs out, as after a crash.
	Close(ctx context.Context) error
}

// Coupled is a Session that can also tell what the database has settled, for a broker that promises to take no message
// twice. A broker that needs it refuses every other session. Its methods are safe for concurrent use, with each other
// and with all of the session's.
type Coupled interface {
	Session

	// Confirm asks the database: nil means that the lease was still this session's after the call began, and so
	// that no other session had read the cursor by then. Otherwise it is ErrLeaseLost, or another error.
	Confirm(ctx context.Context) error

	// Passed reports whether the cursor has passed the message that a session of this destination returned with
	// this Ref and Position: it is settled, and Next will never return it. When in doubt it says no.
	Passed(ref uint64, position int64) bool

	// Whole reports whether the session covers every shard of the destination. No other session publishes for it then.
	Whole() bool
}

// ErrLeaseLost means that another relay owns the shard group: the session is over, and nothing that it
// would still settle counts.
var ErrLeaseLost = errors.New("relay: lease lost, another relay owns the shard group")

// ErrActive ends a Run at once, marked by outbox.Permanent, if another Run of this process has the relay or its source.
// That one goes on, and what its source reports of its state stays.
var ErrActive = errors.New("in use by another Run: a second relay needs a source of its own")

// Final marks err, which a source returns, as one that nothing but another configuration of this program cures: Run
// ends with it. It is marked by outbox.Permanent too. Final(nil) is nil.
func Final(err error) error {
	if err == nil {
		return nil
	}
	return &finalError{outbox.Permanent(err)}
}

type finalError struct{ error }

func (e *finalError) Unwrap() error { return e.error }

func isFinal(err error) bool {
	var final *finalError
	return errors.As(err, &final) || errors.Is(err, ErrActive)
}

// ErrHung ends a Run that was told to end while a call hangs, of the broker or the source: what is in flight remains
// unsettled, and another relay takes over when the lease has expired. The goroutine of the call stays. The process
// should end too, because nothing else ends it.
var ErrHung = errors.New("calls hang: they have not returned after their context had ended")

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
