package consume

import (
	"time"

	"github.com/pgoutbox/outbox"
)

// Observer gets the events of a consumer, for metrics. Many goroutines call its methods at once; the methods must not
// block. Their arguments are valid only during the call.
type Observer interface {
	// Received reports every message that has come from the broker. It is in flight until Settled reports it.
	Received(msg *outbox.Message)

	// Handled reports every run of the handler. An inbox reports duplicates to its own observer.
	Handled(a Attempt)

	// Settled reports the outcome of a message, once for each time that it was received.
	Settled(msg *outbox.Message, o Outcome)

	// Lag reports how many messages of a source are not done by this consumer. The source is a partition, such as
	// "orders/3", or a whole stream or queue. Lag is called as often as the broker tells without extra load. For
	// RabbitMQ and SQS it is the number of messages that no consumer has received yet; in SQS it is approximate.
	Lag(source string, messages int64)
}

// Attempt is one run of the handler.
type Attempt struct {
	Message *outbox.Message
	Number  int   // 1 for the first in this process
	Err     error // nil if the message was applied
	Took    time.Duration
}

// Outcome is what happened to a message that was received.
type Outcome string

const (
	Done     Outcome = "done"     // handled, and acknowledged
	Parked   Outcome = "parked"   // passed to Config.Park, and acknowledged
	Rejected Outcome = "rejected" // left to the broker's own dead-lettering
	Later    Outcome = "later"    // returned, to come again after a pause
	Returned Outcome = "returned" // returned untried or interrupted: the process stops, or has lost the right to the message
)
