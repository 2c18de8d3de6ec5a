package inbox

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
)

// Inbox applies the messages of one consumer. Safe for concurrent use.
type Inbox struct {
	consumer  string
	cfg       Config
	statement statement
	turn      atomic.Int32 // the current table, as far as is known
}

// New returns the inbox of a consumer, which may have any number of processes. Different consumers of one database
// apply the same message once each. It reports all faults of cfg together and doesn't connect.
func New(consumer string, cfg Config) (*Inbox, error) {
	cfg, err := cfg.withDefaults(consumer)
	if err != nil {
		return nil, err
	}
	return &Inbox{consumer: consumer, cfg: cfg, statement: newStatement(cfg)}, nil
}

// Consumer returns the name under which the records are kept.
func (b *Inbox) Consumer() string { return b.consumer }

// Handler makes the effect of a message in tx. An error undoes everything that it has done. It neither commits nor
// rolls back, and returns when ctx ends. An error marked by outbox.Permanent means that a repeat would not help, one
// marked by outbox.Unavailable that the message isn't to blame.
type Handler func(ctx context.Context, tx pgx.Tx, msg *outbox.Message) error

// Result is the result of handling a message.
type Result struct {
	Outcome Outcome
	// Missing is the gap before this message in its key, with GapReport; nil if there is none.
	Missing *Gap
}

// Outcome reports whether a message was applied. With every Outcome the message may be acknowledged; otherwise there is
// an error.
type Outcome string

const (
	Applied   Outcome = "applied"
	Duplicate Outcome = "duplicate" // it was applied before
	Stale     Outcome = "stale"     // a newer version was applied before
)

// Gap is a range of sequence numbers of a topic and key that a consumer has not seen.
type Gap struct {
	Topic, Key  string
	First, Last int64
}

// Errors of Handle if a message was not applied. The message must not be acknowledged.
var (
	// ErrBusy means that another transaction is applying the message, with Config.ComeBack. It is marked by
	// outbox.Unavailable: deliver the message again, and count no attempt.
	ErrBusy = errors.New("another transaction is applying the message: deliver it again in a moment")

	// ErrNoID means that a message can't be identified. It is marked by outbox.Permanent.
	ErrNoID = errors.New("the message has neither an id nor a deduplication key, so a repeat of it can't be recognised: " +
		"let its sender give it an id, or make a key of its content with Config.DedupKey")

	// ErrAborted means that a statement of the handler failed and the handler returned nil: its effect can't be
	// committed. A handler that continues after a failed statement must run that statement in a savepoint (tx.Begin).
	ErrAborted = errors.New("a statement of the handler failed and the handler hid it, so the transaction can't be committed: " +
		"return the error, or run the statement in a savepoint (tx.Begin)")

	// ErrEnded means that the handler ended the transaction by a statement of its own. What it committed has happened,
	// without the protection of the inbox. RESET ALL in a handler is taken for it.
	ErrEnded = errors.New("the handler ended the transaction that it was given: leave COMMIT and ROLLBACK to the inbox")
)

// GapError means that messages of the key are missing before this one, with GapWait.
type GapError struct {
	Gap      Gap
	Sequence int64 // of the message that must wait
}

func (e *GapError) Error() string {
	return fmt.Sprintf("message %d of key %.200q has to wait: %d to %d have not come", e.Sequence, e.Gap.Key, e.Gap.First, e.Gap.Last)
}

// TooEarly is true: delivering the message again helps only when other messages have come. The consumers of package
// broker/consume return it to their broker, if that can deliver it later.
func (e *GapError) TooEarly() bool { return true }

// PanicError is the error for a handler's panic.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("the handler panicked: %v", e.Value) }

// Unwrap returns the value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// observe wraps the handling of a message in the reports about it.
func (b *Inbox) observe(ctx context.Context, msg *outbox.Message,
	handle func(context.Context, record) (Result, error)) (result Result, err error) {
	r, err := b.record(msg)
	if err != nil {
		b.cfg.Observer.Handled(Event{Consumer: b.consumer, Message: msg, Err: err})
		return Result{}, b.failed(msg, err)
	}
	started := time.Now()
	ctx, end := b.cfg.Tracer.Start(ctx, b.consumer, msg, LinkOf(msg))
	finished := false
	defer func() {
		if !finished { // runtime.Goexit: a test's FailNow in the handler
			err = errGone
		}
		end(result, err)
		b.cfg.Observer.Handled(Event{Consumer: b.consumer, Message: msg, Result: result, Err: err, Took: time.Since(started)})
	}()
	result, err = handle(ctx, r)
	finished = true
	if err != nil {
		return Result{}, b.failed(msg, err)
	}
	b.log(ctx, r, msg, result)
	return result, nil
}

var errGone = errors.New("the handler's goroutine ended")

func (b *Inbox) failed(msg *outbox.Message, err error) error {
	return fmt.Errorf("inbox: %s: message %s: %w", b.consumer, nameOf(msg), err)
}

func nameOf(msg *outbox.Message) string {
	if msg == nil || msg.ID.IsZero() {
		return "without id"
	}
	return msg.ID.String()
}
