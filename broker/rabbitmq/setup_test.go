package rabbitmq_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/rabbitmq"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/relay/relaytest"
	"github.com/rabbitmq/amqp091-go"
)

func TestMain(m *testing.M) { os.Exit(brokertest.Leaks(servers.Run(m))) }

// What the tests of all brokers share.
var (
	patient  = brokertest.Patient
	accepted = brokertest.Accepted
	contains = brokertest.Contains
)

var names atomic.Int64

// newName returns a name that no other test has.
func newName() string { return fmt.Sprintf("t%d-%d", os.Getpid(), names.Add(1)) }

// ask runs f on a channel of its own.
func ask(t testing.TB, url string, f func(ch *amqp091.Channel) error) {
	t.Helper()
	if err := try(url, f); err != nil {
		t.Fatal(err)
	}
}

func try(url string, f func(ch *amqp091.Channel) error) error {
	conn, err := amqp091.Dial(url)
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	return f(ch)
}

// pair returns two queues.
func pair(t testing.TB, url string) [2]*queue {
	t.Helper()
	return [2]*queue{newQueue(t, url, nil), newQueue(t, url, nil)}
}

// queue is a quorum queue of a test's own, and what has been read from it so far.
type queue struct {
	url, name string
	seen      []amqp091.Delivery
}

func newQueue(t testing.TB, url string, args amqp091.Table) *queue {
	t.Helper()
	q := &queue{url: url, name: newName()}
	if args == nil {
		args = amqp091.Table{}
	}
	args["x-queue-type"] = "quorum"
	ask(t, url, func(ch *amqp091.Channel) error {
		_, err := ch.QueueDeclare(q.name, true, false, false, false, args)
		return err
	})
	t.Cleanup(func() {
		// The server may be gone on purpose.
		_ = try(url, func(ch *amqp091.Channel) error {
			_, err := ch.QueueDelete(q.name, false, false, false)
			return err
		})
	})
	return q
}

// read takes what is in the queue out of it, and returns all that has ever been. A message of its own, behind all that
// is there, says where to stop.
func (q *queue) read(ctx context.Context) ([]amqp091.Delivery, error) {
	err := try(q.url, func(ch *amqp091.Channel) error {
		if err := errors.Join(ch.Qos(1000, 0, false), ch.Confirm(false)); err != nil {
			return err
		}
		end := outbox.NewID().String()
		confirmed, err := ch.PublishWithDeferredConfirm("", q.name, true, false, amqp091.Publishing{MessageId: end})
		if err != nil {
			return err
		}
		if accepted, err := confirmed.WaitContext(ctx); err != nil || !accepted {
			return fmt.Errorf("the end of queue %s was not accepted: %w", q.name, err)
		}
		deliveries, err := ch.ConsumeWithContext(ctx, q.name, "", false, false, false, false, nil)
		if err != nil {
			return err
		}
		for d := range deliveries {
			if err := d.Ack(false); err != nil {
				return err
			}
			if d.MessageId == end {
				return nil
			}
			q.seen = append(q.seen, d)
		}
		return cmp.Or(ctx.Err(), errors.New("the consumer has been cancelled"))
	})
	return q.seen, err
}

// messages returns what a consumer makes of all that was read.
func (q *queue) messages(ctx context.Context) ([]outbox.Message, error) {
	if _, err := q.read(ctx); err != nil {
		return nil, err
	}
	return q.decoded()
}

// decoded is messages without reading on.
func (q *queue) decoded() (all []outbox.Message, err error) {
	for i := range q.seen {
		m, err := decode(&q.seen[i])
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

// decode reads the documented wire format.
func decode(d *amqp091.Delivery) (m outbox.Message, err error) {
	text := func(name string) string {
		value, _ := d.Headers[name].(string)
		return value
	}
	m = outbox.Message{
		Topic:         cmp.Or(text("outbox-topic"), d.RoutingKey),
		Key:           text("outbox-key"),
		EventType:     d.Type,
		AggregateType: text("outbox-aggregate-type"),
		AggregateID:   text("outbox-aggregate-id"),
		ContentType:   d.ContentType,
	}
	m.Position, _ = d.Headers["outbox-position"].(int64)
	if m.ID, err = outbox.ParseID(d.MessageId); err != nil {
		return m, err
	}
	if created := text("outbox-created-at"); created != "" {
		if m.CreatedAt, err = time.Parse(time.RFC3339Nano, created); err != nil {
			return m, err
		}
		if !d.Timestamp.Equal(m.CreatedAt.Truncate(time.Second)) {
			return m, fmt.Errorf("timestamp %v of a message created at %v", d.Timestamp, m.CreatedAt)
		}
	}
	if text("outbox-payload") != "null" {
		m.Payload = append([]byte{}, d.Body...)
	}
	if d.DeliveryMode != amqp091.Persistent {
		return m, fmt.Errorf("delivery mode %d", d.DeliveryMode)
	}
	for name, value := range d.Headers {
		if !strings.HasPrefix(name, "outbox-") && !strings.HasPrefix(name, "x-") {
			m.Headers = append(m.Headers, outbox.Header{Name: name, Value: fmt.Sprint(value)})
		}
	}
	brokertest.SortHeaders(&m)
	return m, nil
}

func newBroker(t testing.TB, servers string, cfg rabbitmq.Config) *rabbitmq.Broker {
	t.Helper()
	b, err := rabbitmq.New(servers, cfg)
	return brokertest.Opened(t, b, err)
}

// harness addresses two queues.
func harness(t *testing.T, url string, queues [2]*queue) relaytest.BrokerHarness {
	return relaytest.BrokerHarness{
		Open: brokertest.Opener(func() (*rabbitmq.Broker, error) {
			return rabbitmq.New(url, rabbitmq.Config{AckTimeout: 5 * time.Second, MaxMessageBytes: 1 << 20})
		}),
		Topics: [2]string{queues[0].name, queues[1].name},
		Read: func(ctx context.Context) (all []outbox.Message, err error) {
			for _, q := range queues {
				part, err := q.messages(ctx)
				if err != nil {
					return nil, err
				}
				all = append(all, part...)
			}
			return all, nil
		},
		Forget:       func(m *outbox.Message) { brokertest.SortHeaders(m) }, // headers are a map
		TooLarge:     1<<20 + 1,
		UnknownTopic: "unknown-" + queues[0].name,
	}
}
