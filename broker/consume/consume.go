// Package consume defines how consumers handle messages: what a handler is, how many run at once, and what happens to a
// message that no handler can apply. The consumers themselves are in the packages of their brokers: kafka.NewConsumer,
// nats.NewConsumer, rabbitmq.NewConsumer, sqs.NewConsumer.
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
// All of them keep the same promises. A message is acknowledged after its handler has returned nil, never before.
// Messages of one key are handled one after the other, those of different keys in parallel. A message that fails is
// retried in place, so that no later message of its key overtakes it.
package consume

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/pgoutbox/outbox"
)

// Handler applies a message. When it returns nil, the message is acknowledged and will not come again, so its effect
// must be committed by then. It is called for several messages at once, but never for two of one key in this process.
// It must return when ctx ends.
//
// An error marked by outbox.Unavailable (for instance, the database is down) is not the message's fault: the message is
// retried without limit. A message with an error marked by outbox.Permanent is not retried. All other errors, and
// panics, count as attempts.
type Handler func(ctx context.Context, msg *outbox.Message) error

// Config defines how messages are handled. The zero value is fit for use.
type Config struct {
	// Parallel is how many handlers run at once. Each usually needs a database connection. Default 8.
	Parallel int

	// MaxInFlight bounds the messages that were received and aren't acknowledged; for Kafka, those of each partition.
	// Default 500.
	MaxInFlight int

	// Timeout is the time after which a handler's context ends. A handler that hasn't returned Grace later hangs: its
	// message can't be applied (see Policy), and it no longer counts as one of Parallel. When Parallel handlers hang,
	// the consumer ends with ErrHung. Defaults: 1 min and 10 s.
	Timeout time.Duration
	Grace   time.Duration

	// Attempts is how often a message is tried before it counts as one that can't be applied. Default 5.
	Attempts int

	// Backoff is the pause after the first failed attempt; it doubles up to MaxBackoff. Only the messages
	// of the same key wait. Defaults: 100 ms and 30 s.
	Backoff    time.Duration
	MaxBackoff time.Duration

	// Policy is what happens to a message that can't be applied: it has failed Attempts times, it has failed
	// permanently, its handler hangs, or it is not one of our messages. Default Block.
	Policy Policy

	// Park, with the policy Park, stores the message where an operator will find it, durably before it returns nil. An
	// error is logged, and Park is called again after a pause. (*inbox.Inbox).Park does it.
	Park func(ctx context.Context, p Poison) error

	// Decode completes or replaces what was read from the broker's record, for messages that other programs have
	// written, or that were sent in a format. On entry the message has what the record itself contains: topic, key,
	// payload, content type, and all foreign fields as headers. Decode must set the ID, or the handler's inbox needs a
	// DedupKey. An error makes it a message that can't be applied. See CloudEvent and Debezium.
	Decode func(msg *outbox.Message) error

	// DrainTimeout is how long running handlers may continue when the consumer is told to end, or when a partition is
	// taken away. Then their contexts end, and they have Grace to return. Default 20 s.
	DrainTimeout time.Duration

	// Logger reports failures of messages and of the connection; nil: slog.Default. Payloads are never logged.
	Logger *slog.Logger

	// Observer gets events for metrics. Default: none.
	Observer Observer

	// Beside are functions that run while the consumer runs, for maintenance of its database, such as the Run of an
	// inbox.Retention. Their context ends when the last handler has ended, and the consumer's Run waits for them. Run
	// returns their errors.
	Beside []func(ctx context.Context) error
}

// Policy is what happens to a message that can't be applied.
type Policy string

const (
	// Block retries it every MaxBackoff, without limit. The messages of its key wait behind it. When they have filled
	// MaxInFlight, all other messages wait too.
	Block Policy = "block"
	// Park passes it to Config.Park and acknowledges it. Its key continues.
	Park Policy = "park"
	// Reject leaves it to the broker: dead-lettering in RabbitMQ, termination in NATS, the redrive policy in SQS. Its
	// key continues. Kafka has no such feature.
	Reject Policy = "reject"
)

// Poison is a message that can't be applied.
type Poison struct {
	// Message is what could be read of it; its ID may be zero. It belongs to the receiver of the Poison.
	Message *outbox.Message
	Err     error // of the last attempt
	// Attempts counts those of this process; 0 means that no handler has seen the message.
	Attempts int
	// Source is its position at the broker, such as "orders/3@4711" for topic, partition and offset. It is the same
	// when the message comes again.
	Source string
}

// ErrHung ends a consumer when so many handlers hang that no more could run. The process should end too, because
// nothing else ends them.
var ErrHung = errors.New("handlers hang: they have not returned after their context had ended")

// ErrUnreadable is wrapped by the error of a record that isn't a message.
var ErrUnreadable = errors.New("the record can't be read as a message")
