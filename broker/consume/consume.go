// Package consume says how consumers handle messages: what a handler is, how many run at once, and what
// becomes of a message that no handler can apply. The consumers themselves stand beside their brokers:
// kafka.NewConsumer, nats.NewConsumer, rabbitmq.NewConsumer, sqs.NewConsumer.
//
//	handle := func(ctx context.Context, msg *outbox.Message) error {
//		_, err := box.Handle(ctx, pool, msg, apply) // package inbox: once, and committed when it returns
//		return err
//	}
//	consumer, err := kafka.NewConsumer(kafka.Config{Brokers: brokers}, kafka.ConsumerConfig{
//		Group: "payments", Topics: []string{"orders"},
//	}, handle)
//	err = consumer.Run(ctx)
//
// All of them keep the same promises. A message is acknowledged after its handler has returned nil, never
// before. Messages of one key are handled one after the other, those of different keys in parallel. A message
// that fails is tried again where it is, so that it isn't overtaken by one of its key.
package consume

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/pgoutbox/outbox"
)

// Handler applies a message. When it returns nil, the message is acknowledged and will not come again,
// so its effect must be committed by then. It is called for several messages at once, never for two of one
// key in this process. It must return when ctx ends.
//
// Errors marked by outbox.Unavailable (the database is away, say) are not the message's fault: it is tried
// again without end. Errors marked by outbox.Permanent are not tried again. All others, and panics, count as
// attempts.
type Handler func(ctx context.Context, msg *outbox.Message) error

// Config says how messages are handled. The zero value is fit for use.
type Config struct {
	// Parallel is how many handlers run at once. Each usually needs a database connection. Default 8.
	Parallel int

	// MaxInFlight bounds the messages that were received and aren't acknowledged; for Kafka, those of each
	// partition. Default 500.
	MaxInFlight int

	// Timeout is after how long a handler's context ends. One that hasn't returned Grace later hangs: its
	// message can't be applied (see Policy), and it no longer counts as one of Parallel. When as many hang as
	// may run in parallel, the consumer ends with ErrHung. Defaults: 1 min and 10 s.
	Timeout time.Duration
	Grace   time.Duration

	// Attempts is how often a message is tried before it is taken for one that can't be applied. Default 5.
	Attempts int

	// Backoff is the pause after the first failed attempt; it doubles up to MaxBackoff. Only the messages
	// of the same key wait. Defaults: 100 ms and 30 s.
	Backoff    time.Duration
	MaxBackoff time.Duration

	// Policy is what becomes of a message that can't be applied: it has failed Attempts times, or for good,
	// or it hangs, or is no message of ours. Default Block.
	Policy Policy

	// Park, with the policy Park, puts the message where somebody will look after it, durably before it
	// returns nil. An error is logged, and it is called again after a pause. (*inbox.Inbox).Park does it.
	Park func(ctx context.Context, p Poison) error

	// Decode completes or replaces what was read from the broker's record, for messages that others have
	// written, or that were sent in a format. On entry the message has what the record tells by itself:
	// topic, key, payload, content type, and everything that isn't ours as headers. Decode must set the ID, or
	// the handler's inbox a DedupKey. An error makes it a message that can't be applied. See CloudEvent and
	// Debezium.
	Decode func(msg *outbox.Message) error

	// DrainTimeout is how long handlers that run may go on when the consumer is told to end, or when a
	// partition is taken away. Then their contexts end, and Grace is what they get to return. Default 20 s.
	DrainTimeout time.Duration

	// Logger gets failures of messages, and the connection's; nil is silent. Payloads are never logged.
	Logger *slog.Logger

	// Observer is told what happens, for metrics. Default: none.
	Observer Observer

	// Beside are run while the consumer runs, for what has to be looked after in its database, such as the Run of
	// an inbox.Retention. Their context ends when the last handler has ended, and the consumer's Run waits for
	// them. What they return goes to Run's caller.
	Beside []func(ctx context.Context) error
}

// Policy is what becomes of a message that can't be applied.
type Policy string

const (
	// Block tries it again every MaxBackoff, without end. The messages of its key wait behind it, and
	// when these have filled MaxInFlight, all others do too.
	Block Policy = "block"
	// Park hands it to Config.Park and acknowledges it. The key goes on.
	Park Policy = "park"
	// Reject leaves it to the broker's own means: dead-lettering in RabbitMQ, termination in NATS, the
	// redrive policy in SQS. The key goes on. Kafka has no such means.
	Reject Policy = "reject"
)

// Poison is a message that can't be applied.
type Poison struct {
	// Message is what could be read of it; its ID may be zero. It belongs to the consumer after the call.
	Message *outbox.Message
	Err     error // of the last attempt
	// Attempts counts those of this process; 0 means that no handler has seen the message.
	Attempts int
	// Source names its place at the broker, such as "orders/3@4711" for topic, partition and offset. It is the
	// same when the message comes again.
	Source string
}

// ErrHung ends a consumer when so many handlers hang that no more could run. The process should end too:
// nothing else ends them.
var ErrHung = errors.New("handlers hang: they have not returned after their context had ended")

// ErrUnreadable is wrapped by the error of a record that isn't a message.
var ErrUnreadable = errors.New("the record can't be read as a message")
