package relay

import (
	"context"
	"errors"
	"time"

	"github.com/pgoutbox/outbox"
)

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
	// ignores it. It is called at every change of state; err is the cause, if there is one. It doesn't block, except
	// for StateStopped, the last one, which Run waits for: it returns within a few seconds, when the state has been
	// written or can't be. It isn't called with ErrActive, which is no trouble of the Run that has the source.
	Report(state State, err error)

	// Traits returns what a relay has to know of the source. It is called whenever a session begins.
	Traits() Traits
}

// Traits are what a relay has to know of a source. The zero value fits every source.
type Traits struct {
	// HoldLanes is the number of lanes of which one call of Session.Held reads the holds, at little more cost than
	// those of one lane. Lanes that are read together are settled together, which makes a replay several times faster.
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
	// Next waits for committed messages and returns at most limit of them, in order per key. A batch may
	// be empty (nothing came within the strategy's own pause); the caller just calls again.
	Next(ctx context.Context, limit int) (Batch, error)

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

// State is what a relay of one destination is doing.
type State string

const (
	StateWaiting State = "waiting" // another relay owns the shard group
	StateFlowing State = "flowing"
	StateFailing State = "failing" // the broker answers, and what a topic is published to doesn't exist or may not be written to
	StateStalled State = "stalled" // the broker does not answer
	StateFull    State = "full"    // so much is set aside that nothing new is read, or not of all keys
	StateBroken  State = "broken"  // the database does not answer or refuses
	StateStopped State = "stopped" // Run has returned, or is about to
)

// Waker connects a writer with a relay in the same process: what was committed is read at once, instead
// of at the next poll. Give Wake to outbox.WriterConfig and the Waker itself to the source's Wake. Each
// source needs a Waker of its own: of several that wait on one, a commit wakes one.
type Waker chan struct{}

// NewWaker returns a Waker.
func NewWaker() Waker { return make(Waker, 1) }

// Wake ends the source's pause. It never blocks; wake-ups that come together are one. Safe for concurrent
// use.
func (w Waker) Wake() {
	select {
	case w <- struct{}{}:
	default:
	}
}
