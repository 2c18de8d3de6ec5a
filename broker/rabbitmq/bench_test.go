package rabbitmq_test

import (
	"fmt"
	"net/url"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/versus"
	"github.com/pgoutbox/outbox/broker/rabbitmq"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/rabbitmq/amqp091-go"
)

func BenchmarkPublish(b *testing.B) {
	const size = 5000
	server := servers.OwnRabbitMQ(b, servers.RabbitMQConfig{Fsync: true})
	for _, keys := range []int{1, 1000, size} {
		b.Run(fmt.Sprintf("broker, %d keys", keys), func(b *testing.B) {
			q := newQueue(b, server.URL(), amqp091.Table{"x-max-length": 100_000})
			broker := newBroker(b, server.URL(), rabbitmq.Config{})
			batch := versus.Batch(q.name, size, keys)
			if keys == 1 {
				batch = batch[:500]
			}
			versus.Measure(b, versus.Publishing(b, broker, batch))
		})
	}
}

// loop has as many messages without a confirmation as the broker has.
func loop(ch *amqp091.Channel, batch []*outbox.Message) error {
	flight := make([]*amqp091.DeferredConfirmation, 0, len(batch))
	for i, m := range batch {
		if i >= 1024 && !flight[i-1024].Wait() {
			return fmt.Errorf("message %d was refused", i-1024)
		}
		d, err := ch.PublishWithDeferredConfirm("", m.Topic, true, false, amqp091.Publishing{
			DeliveryMode: amqp091.Persistent, MessageId: outbox.NewID().String(), Type: m.EventType,
			ContentType: m.ContentType, Body: m.Payload, Headers: amqp091.Table{"outbox-key": m.Key},
		})
		if err != nil {
			return err
		}
		flight = append(flight, d)
	}
	for i, d := range flight {
		if !d.Wait() {
			return fmt.Errorf("message %d was refused", i)
		}
	}
	return nil
}

// The loop is the library's deferred confirmations, as many in flight, which keep no order under
// failure, with the message id alone or with the broker's headers.
func BenchmarkAgainstLoop(b *testing.B) {
	const size, keys = 2500, 2500
	server := servers.OwnRabbitMQ(b, servers.RabbitMQConfig{Fsync: true})
	at, err := url.Parse(server.URL())
	if err != nil {
		b.Fatal(err)
	}
	through := func(address string) string {
		moved := *at
		moved.Host = address
		return moved.String()
	}
	versus.Run(b, "rabbitmq", versus.Contest{
		Address: at.Host,
		Adapter: func(b *testing.B, address string) versus.Publish {
			q := newQueue(b, server.URL(), amqp091.Table{"x-max-length": 100_000})
			broker := newBroker(b, through(address), rabbitmq.Config{})
			return versus.Publishing(b, broker, versus.Batch(q.name, size, keys))
		},
		Loop: func(b *testing.B, address string) versus.Publish {
			q := newQueue(b, server.URL(), amqp091.Table{"x-max-length": 100_000})
			ch := confirming(b, through(address))
			batch := versus.Batch(q.name, size, keys)
			return func() int {
				if err := loop(ch, batch); err != nil {
					b.Fatal(err)
				}
				return size
			}
		},
	})
}

// confirming returns a channel with confirmations, on a connection of its own.
func confirming(b *testing.B, url string) *amqp091.Channel {
	b.Helper()
	conn, err := amqp091.Dial(url)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { conn.Close() })
	ch, err := conn.Channel()
	if err != nil {
		b.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		b.Fatal(err)
	}
	return ch
}
