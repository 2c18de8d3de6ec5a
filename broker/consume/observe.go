package consume

import (
	"time"

	"github.com/pgoutbox/outbox"
)

// Observer is told what a consumer does, for metrics. Its methods are called by many goroutines at once and
// must not block. What they are given is only valid during the call.
type Observer interface {
	// Received is told of every message that has come from the broker. It is in flight until Settled is told
	// of it.
	Received(msg *outbox.Message)

	// Handled is told of every run of the handler. An inbox tells its own observer which of them were
	// duplicates.
	Handled(a Attempt)

	// Settled is told what became of a message, once for each time that it was received.
	Settled(msg *outbox.Message, o Outcome)

	// Lag is told, as often as the broker says so without being burdened, how many messages of a source are
	// behind what this consumer has done: of a partition "orders/3", or a stream or queue as a whole.
	// RabbitMQ and SQS say how many no consumer has yet, SQS about.
	Lag(source string, messages int64)
}

// Attempt is one run of the handler.
type Attempt struct {
	Message *outbox.Message
	Number  int   // 1 for the first in this process
	Err     error // nil if it was applied
	Took    time.Duration
}

// Outcome is what became of a message that was received.
type Outcome string

const (
	Done     Outcome = "done"     // handled, and acknowledged
	Parked   Outcome = "parked"   // handed to Config.Park, and acknowledged
	Rejected Outcome = "rejected" // left to the broker's own dead-lettering
	Later    Outcome = "later"    // given back, to come again after a pause
	Returned Outcome = "returned" // given back, not tried or cut off: the process stops, or lost its right to it
)
