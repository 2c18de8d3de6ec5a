package rabbitmq_test

import (
	"fmt"
	"testing"

	"github.com/pgoutbox/outbox"
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
				flight := make([]*amqp091.DeferredConfirmation, 0, size)
				for i, m := range batch {
					if i >= 1024 && !flight[i-1024].Wait() {
						return fmt.Errorf("message %d was refused", i-1024)
					}
					d, err := ch.PublishWithDeferredConfirm("", q.name, true, false, amqp091.Publishing{
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
			}
			b.ReportMetric(float64(b.N)*size/b.Elapsed().Seconds(), "msg/s")
			return nil
		})
	})
}

func benchBatch(topic string, size, keys int) []*outbox.Message {
	batch := messages(topic, size, keys)
	for _, m := range batch {
		m.Payload = make([]byte, 256)
		m.EventType, m.ContentType = "OrderCreated", "application/json"
	}
	return batch
}
