package relay

import (
	"context"

	"github.com/pgoutbox/outbox"
)

// Broker is where messages go. An adapter need not import this package to satisfy it, and has to pass the suite
// relaytest.RunBroker.
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

// As returns the outermost T, such as a [Pinger], of b and the brokers that b is wrapped around.
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

// Pinger is a Broker that can check whether it is reachable. The relay asks when it begins, and once a minute while
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
