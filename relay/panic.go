package relay

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"

	"github.com/pgoutbox/outbox"
)

// PanicError is what a panic becomes in code that a relay calls: of the Broker, Select, Remedy or the Observer. A log
// shows the stack too. There is no Unwrap: a value may be an error with a mark, such as Unavailable, and the panic is a
// failure of the message all the same.
type PanicError struct {
	Call  string // such as "Broker.Publish"
	Value any    // what recover returned
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("%s panicked: %v", e.Call, e.Value) }

// LogValue is the text of the error, and the stack.
func (e *PanicError) LogValue() slog.Value {
	return slog.StringValue(fmt.Sprintf("%s\n%s", e, e.Stack))
}

// try calls f, and returns its panic.
func try(call string, f func()) (panicked error) {
	defer func() {
		if value := recover(); value != nil {
			panicked = &PanicError{call, value, debug.Stack()}
		}
	}()
	f()
	return nil
}

// publish has a batch published in one call. If that panics, the outcome of all its messages is unknown, and they are
// published again by smaller calls, one after the other. A message that panics alone has failed. What comes behind a
// failure is answered as skipped: the next call of the stripe has it.
//
// most is how large a call of the stripe may be: half of the last one that panicked, and doubled by each that didn't.
// So a broker that always panics gets every message alone, and not the rest of the batch with each.
func (r *Relay) publish(ctx context.Context, batch []*outbox.Message, most *int) (errs []error) {
	for from := 0; from < len(batch); {
		n := min(*most, len(batch)-from)
		answers, panicked := r.call(ctx, batch[from:from+n])
		if panicked == nil && n == len(batch) {
			return answers
		}
		if errs == nil {
			errs = slices.Repeat([]error{outbox.ErrSkipped}, len(batch))
		}
		part := errs[from : from+n]
		switch {
		case panicked == nil:
			clear(part)
			copy(part, answers)
			if slices.ContainsFunc(part, func(err error) bool { return err != nil }) {
				return errs
			}
			from += n
			*most = max(*most, 2*n)
		case n == 1:
			part[0] = panicked
			return errs
		default:
			*most = n / 2
		}
	}
	return errs
}

// call is one call to the broker. It answers for every message, or has panicked.
func (r *Relay) call(ctx context.Context, batch []*outbox.Message) (errs []error, panicked error) {
	panicked = try("Broker.Publish", func() { errs = r.broker.Publish(ctx, batch) })
	if errs != nil && len(errs) != len(batch) {
		err := fmt.Errorf("broker answered %d of %d messages: the adapter breaks its contract", len(errs), len(batch))
		errs = slices.Repeat([]error{outbox.Unavailable(err)}, len(batch))
	}
	return errs, panicked
}

// observe has tell call the observer. Its first panic is logged.
func (r *Relay) observe(tell func()) {
	if err := try("Observer", tell); err != nil {
		r.observerPanics.Do(func() {
			r.cfg.Logger.Error("the observer has panicked; further panics of it are not logged",
				"destination", r.cfg.Name, "error", err)
		})
	}
}
