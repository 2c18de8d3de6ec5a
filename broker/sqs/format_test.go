package sqs_test

import (
	"strings"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/consume"
	"github.com/pgoutbox/outbox/broker/internal/amazon/amazontest"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/internal/lanes/lanestest"
	"github.com/pgoutbox/outbox/broker/internal/sdkread"
	"github.com/pgoutbox/outbox/broker/sqs"
	"github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/internal/servers"
)

// event has characters that HTTP's attributes encode, and one that SQS takes in no attribute.
func event(topic string) *outbox.Message {
	m := sdkread.Order(topic)
	m.Key = "größe 100%25\x01"
	return m
}

func TestCloudEventsInAQueue(t *testing.T) {
	t.Parallel()
	a := connect(t, servers.TestElasticMQ(t).URL())
	sdkread.Run(t, "ce-", func(t *testing.T, f format.CloudEvents) sdkread.Target {
		queue := a.queue(".fifo")
		return sdkread.Target{Broker: a.broker(sqs.Config{Format: f}), Topic: strings.TrimSuffix(queue, ".fifo"),
			Read: func(t *testing.T, m *outbox.Message) []sdkread.Record {
				got, err := a.read(patient(t), queue)
				if err != nil {
					t.Fatal(err)
				}
				return amazontest.Records(t, got)
			}}
	})
}

func TestAConsumerReadsFormatsBack(t *testing.T) {
	t.Parallel()
	server := servers.TestElasticMQ(t)
	a := connect(t, server.URL())
	for name, test := range map[string]struct {
		format format.Format
		decode func(*outbox.Message) error
	}{
		"binary":     {format.CloudEvents{}, consume.CloudEvent},
		"structured": {format.CloudEvents{Structured: true}, consume.CloudEvent},
		"debezium":   {format.Debezium{}, consume.Debezium},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			queue := a.queue(".fifo", "VisibilityTimeout", "30")
			m := event(strings.TrimSuffix(queue, ".fifo"))
			if name == "debezium" {
				m.Key = "k-1" // a message group says it
			}
			accepted(t, a.broker(sqs.Config{Format: test.format}).Publish(patient(t), []*outbox.Message{m}))
			lanestest.ReadBack(t, m, name != "debezium", func(handler consume.Handler) (lanestest.Consumer, error) {
				return sqs.NewConsumer(sqs.Config{Endpoint: server.URL(), AWS: amazontest.Anyone()},
					sqs.ConsumerConfig{Queue: queue, Handling: consume.Config{Decode: test.decode}}, handler)
			})
		})
	}
}

func TestAMessageWithTooManyAttributesStopsItsKeyAlone(t *testing.T) {
	t.Parallel()
	a := connect(t, servers.TestElasticMQ(t).URL())
	queue := a.queue(".fifo")
	batch := brokertest.Messages(strings.TrimSuffix(queue, ".fifo"), 6, 2)
	for _, name := range strings.Split("abcdef", "") {
		batch[2].Headers = append(batch[2].Headers, outbox.Header{Name: name, Value: "v"})
	}
	errs := a.broker(sqs.Config{Format: format.CloudEvents{}}).Publish(patient(t), batch)
	brokertest.CheckRefused(t, batch, errs, 2)
	contains(t, errs[2], "11 attributes")
}

func TestAFormatsOwnFaultsAreFaultsOfTheConfiguration(t *testing.T) {
	t.Parallel()
	_, err := sqs.New(sqs.Config{AWS: amazontest.Anyone(), Format: format.CloudEvents{Source: "{"}, Requests: -1})
	contains(t, err, "cloudevents source", "Requests: ")
}
