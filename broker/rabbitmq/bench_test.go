package rabbitmq_test

import (
	"fmt"
	"net/url"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/internal/versus"
	"github.com/pgoutbox/outbox/broker/rabbitmq"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/rabbitmq/amqp091-go"
)

// The figure to compare with is the library's deferred confirmations, as many in flight, which keep no order under
// failure, with the message id alone or with the broker's headers.
func BenchmarkPublish(b *testing.B) {
	const size = 5000
	server := servers.OwnRabbitMQ(b, servers.RabbitMQConfig{Fsync: true})
	for _, keys := range []int{1, 1000, size} {
		b.Run(fmt.Sprintf("broker, %d keys", keys), func(b *testing.B) {
			q := newQueue(b, server.URL(), amqp091.Table{"x-max-length": 100_000})
			broker := newBroker(b, server.URL(), rabbitmq.Config{})
			batch := benchBatch(q.name, size, keys)
			if keys == 1 {
				batch = batch[:500]
			}
			b.ReportAllocs()
			for b.Loop() {
				for _, m := range batch {
					m.ID = outbox.NewID()
				}
				accepted(b, broker.Publish(b.Context(), batch))
			}
			b.ReportMetric(float64(b.N*len(batch))/b.Elapsed().Seconds(), "msg/s")
		})
	}
	b.Run("library", func(b *testing.B) {
		q := newQueue(b, server.URL(), amqp091.Table{"x-max-length": 100_000})
		batch := benchBatch(q.name, size, 1000)
		ask(b, server.URL(), func(ch *amqp091.Channel) error {
			if err := ch.Confirm(false); err != nil {
				return err
			}
			b.ReportAllocs()
			for b.Loop() {
				if err := loop(ch, batch); err != nil {
					return err
				}
			}
			b.ReportMetric(float64(b.N)*size/b.Elapsed().Seconds(), "msg/s")
			return nil
		})
	})
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
	b.Run("rabbitmq", func(b *testing.B) {
		versus.Run(b, versus.Contest{
			Address: at.Host,
			Adapter: func(b *testing.B, address string) versus.Publish {
				q := newQueue(b, server.URL(), amqp091.Table{"x-max-length": 100_000})
				broker := newBroker(b, through(address), rabbitmq.Config{})
				batch := benchBatch(q.name, size, keys)
				return func() int {
					for _, m := range batch {
						m.ID = outbox.NewID()
					}
					accepted(b, broker.Publish(b.Context(), batch))
					return size
				}
			},
			Loop: func(b *testing.B, address string) versus.Publish {
				q := newQueue(b, server.URL(), amqp091.Table{"x-max-length": 100_000})
				ch := confirming(b, through(address))
				batch := benchBatch(q.name, size, keys)
				return func() int {
					if err := loop(ch, batch); err != nil {
						b.Fatal(err)
					}
					return size
				}
			},
		})
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

func benchBatch(topic string, size, keys int) []*outbox.Message {
	batch := brokertest.Messages(topic, size, keys)
	for _, m := range batch {
		m.Payload = make([]byte, 256)
		m.EventType, m.ContentType = "OrderCreated", "application/json"
	}
	return batch
}
