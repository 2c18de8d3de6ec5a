package rabbitmq_test

import (
	"fmt"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/consume"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/internal/lanes/lanestest"
	"github.com/pgoutbox/outbox/broker/internal/sdkread"
	"github.com/pgoutbox/outbox/broker/rabbitmq"
	"github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/rabbitmq/amqp091-go"
)

func TestCloudEventsInAQueue(t *testing.T) {
	t.Parallel()
	url := servers.TestRabbitMQ(t).URL()
	sdkread.Run(t, "cloudEvents:", func(t *testing.T, f format.CloudEvents) sdkread.Target {
		q := newQueue(t, url, nil)
		return sdkread.Target{Broker: newBroker(t, url, rabbitmq.Config{Format: f}), Topic: q.name,
			Read: func(t *testing.T, m *outbox.Message) (all []sdkread.Record) {
				got, err := q.read(patient(t))
				if err != nil {
					t.Fatal(err)
				}
				for _, d := range got {
					headers := map[string]string{}
					for name, value := range d.Headers {
						headers[name] = fmt.Sprint(value)
					}
					all = append(all, sdkread.Record{ContentType: d.ContentType, Headers: headers, Value: d.Body})
					if m != nil && (d.MessageId != m.ID.String() || d.DeliveryMode != amqp091.Persistent) {
						t.Errorf("message id %q, delivery mode %d", d.MessageId, d.DeliveryMode)
					}
				}
				return all
			}}
	})
}

func TestDebeziumsLayoutIsHeadersAndBody(t *testing.T) {
	t.Parallel()
	url := servers.TestRabbitMQ(t).URL()
	q := newQueue(t, url, nil)
	m := sdkread.Order(q.name)
	layout := format.Debezium{Value: format.ConnectJSON, Place: []format.Placement{{Field: "event_type", Alias: "eventType"}}}
	accepted(t, newBroker(t, url, rabbitmq.Config{Format: layout}).Publish(patient(t), []*outbox.Message{m}))
	got, err := q.read(patient(t))
	if err != nil || len(got) != 1 {
		t.Fatalf("%d messages, %v", len(got), err)
	}
	want := amqp091.Table{"id": m.ID.String(), "eventType": "Created", "tenant": "acme"}
	if body := string(got[0].Body); body != `"{\"i\":1}"` || fmt.Sprint(got[0].Headers) != fmt.Sprint(want) {
		t.Errorf("body %s, headers %v", body, got[0].Headers)
	}
}

func TestAConsumerReadsCloudEventsBack(t *testing.T) {
	t.Parallel()
	url := servers.TestRabbitMQ(t).URL()
	for _, structured := range []bool{false, true} {
		q := newQueue(t, url, nil)
		m := sdkread.Order(q.name)
		accepted(t, newBroker(t, url, rabbitmq.Config{Format: format.CloudEvents{Structured: structured}}).Publish(patient(t),
			[]*outbox.Message{m}))
		lanestest.ReadBack(t, m, true, func(handler consume.Handler) (lanestest.Consumer, error) {
			return rabbitmq.NewConsumer(url, rabbitmq.Config{},
				rabbitmq.ConsumerConfig{Queue: q.name, Handling: consume.Config{Decode: consume.CloudEvent}}, handler)
		})
	}
}

func TestAReturnedMessageOfAFormatHasFailed(t *testing.T) {
	t.Parallel()
	url := servers.TestRabbitMQ(t).URL()
	m := brokertest.Message("nowhere-"+newName(), "k", 0)
	b := newBroker(t, url, rabbitmq.Config{Format: format.CloudEvents{Structured: true}})
	brokertest.CheckFirst(t, b, []*outbox.Message{m}, "topic unavailable")
}

func TestTheSizeOfTheBodyIsWhatCounts(t *testing.T) {
	t.Parallel()
	url := servers.TestRabbitMQ(t).URL()
	q := newQueue(t, url, nil)
	m := brokertest.Message(q.name, "k", 0)
	m.ContentType, m.Payload = "application/octet-stream", make([]byte, 900) // in base64 it is a third more
	b := newBroker(t, url, rabbitmq.Config{MaxMessageBytes: 1000, Format: format.CloudEvents{Structured: true}})
	brokertest.CheckFirst(t, b, []*outbox.Message{m}, "refused")
}
