package rabbitmq_test

import (
	"testing"

	"github.com/pgoutbox/outbox/broker/consume"
	"github.com/pgoutbox/outbox/broker/internal/lanes/lanestest"
	"github.com/pgoutbox/outbox/broker/rabbitmq"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/rabbitmq/amqp091-go"
)

func TestARabbitMQConsumerDoesWhatAConsumerMust(t *testing.T) {
	t.Parallel()
	url := servers.TestRabbitMQ(t).URL()
	lanestest.Run(t, lanestest.Harness{Reject: true, Ordered: true, LagByAsking: true, Source: func(t *testing.T) lanestest.Source {
		q := newQueue(t, url, amqp091.Table{"x-single-active-consumer": true})
		return lanestest.Source{
			Topic:   q.name,
			Publish: newBroker(t, url, rabbitmq.Config{}).Publish,
			Foreign: func(t *testing.T, key, id string) {
				ask(t, url, func(ch *amqp091.Channel) error {
					return ch.PublishWithContext(t.Context(), "", q.name, true, false, amqp091.Publishing{
						MessageId:    id[:min(len(id), 255)], // AMQP allows no longer one
						DeliveryMode: amqp091.Persistent, Headers: amqp091.Table{"outbox-key": key}, Body: []byte("1"),
					})
				})
			},
			Open: func(t *testing.T, cfg consume.Config, handler consume.Handler) lanestest.Consumer {
				c, err := rabbitmq.NewConsumer(url, rabbitmq.Config{}, rabbitmq.ConsumerConfig{Queue: q.name, Handling: cfg}, handler)
				if err != nil {
					t.Fatal(err)
				}
				return c
			},
		}
	}})
}
