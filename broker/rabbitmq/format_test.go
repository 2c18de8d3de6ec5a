package rabbitmq_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/consume"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/internal/sdkread"
	"github.com/pgoutbox/outbox/broker/rabbitmq"
	"github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/rabbitmq/amqp091-go"
)

func TestTheSDKReadsCloudEventsFromAQueue(t *testing.T) {
	t.Parallel()
	url := servers.TestRabbitMQ(t).URL()
	for _, structured := range []bool{false, true} {
		q := newQueue(t, url, nil)
		b := newBroker(t, url, rabbitmq.Config{Format: format.CloudEvents{Structured: structured, Source: "/shop"}})
		m := sdkread.Order(q.name)
		accepted(t, b.Publish(patient(t), []*outbox.Message{m}))
		got, err := q.read(patient(t))
		if err != nil || len(got) != 1 {
			t.Fatalf("%d messages, %v", len(got), err)
		}
		headers := map[string]string{}
		for name, value := range got[0].Headers {
			headers[name] = fmt.Sprint(value)
			if strings.HasPrefix(name, "outbox-") {
				t.Errorf("%s stands beside the headers of the format", name)
			}
		}
		sdkread.Check(t, sdkread.Message("cloudEvents:", got[0].ContentType, headers, got[0].Body), m)
		if headers["tenant"] != "acme" {
			t.Errorf("structured %v: headers %v", structured, headers)
		}
		if got[0].MessageId != m.ID.String() || got[0].DeliveryMode != amqp091.Persistent {
			t.Errorf("message id %q, delivery mode %d", got[0].MessageId, got[0].DeliveryMode)
		}
	}
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
		ctx, done := context.WithCancelCause(patient(t))
		var got outbox.Message
		handled := errors.New("handled")
		c, err := rabbitmq.NewConsumer(url, rabbitmq.Config{},
			rabbitmq.ConsumerConfig{Queue: q.name, Handling: consume.Config{Decode: consume.CloudEvent}},
			func(_ context.Context, m *outbox.Message) error {
				got = *m
				done(handled)
				return nil
			})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Run(ctx); err != nil || !errors.Is(context.Cause(ctx), handled) {
			t.Fatalf("%v, %v", err, context.Cause(ctx))
		}
		tenant, _ := got.Header("tenant")
		if got.ID != m.ID || got.Key != m.Key || string(got.Payload) != string(m.Payload) ||
			got.EventType != "Created" || got.ContentType != "application/json" || tenant != "acme" {
			t.Errorf("structured %v:\nreceived %+v\nsent     %+v", structured, got, *m)
		}
	}
}

func TestAMessageThatTheFormatRefusesStopsItsKeyAlone(t *testing.T) {
	t.Parallel()
	url := servers.TestRabbitMQ(t).URL()
	q := newQueue(t, url, nil)
	batch := brokertest.Messages(q.name, 6, 2)
	batch[2].Headers = []outbox.Header{{Name: "cloudEvents:id", Value: "x"}}
	errs := newBroker(t, url, rabbitmq.Config{Format: format.CloudEvents{}}).Publish(patient(t), batch)
	brokertest.CheckRefused(t, batch, errs, 2)
}

func TestAReturnedMessageOfAFormatHasFailed(t *testing.T) {
	t.Parallel()
	url := servers.TestRabbitMQ(t).URL()
	m := brokertest.Message("nowhere-"+newName(), "k", 0)
	errs := newBroker(t, url, rabbitmq.Config{Format: format.CloudEvents{Structured: true}}).Publish(patient(t), []*outbox.Message{m})
	if len(errs) != 1 || errs[0] == nil || outbox.IsUnavailable(errs[0]) || outbox.IsPermanent(errs[0]) {
		t.Errorf("outcomes %v", errs)
	}
}

func TestTheSizeOfTheBodyIsWhatCounts(t *testing.T) {
	t.Parallel()
	url := servers.TestRabbitMQ(t).URL()
	q := newQueue(t, url, nil)
	m := brokertest.Message(q.name, "k", 0)
	m.ContentType, m.Payload = "application/octet-stream", make([]byte, 900) // in base64 it is a third more
	errs := newBroker(t, url, rabbitmq.Config{MaxMessageBytes: 1000, Format: format.CloudEvents{Structured: true}}).Publish(patient(t),
		[]*outbox.Message{m})
	if len(errs) != 1 || !outbox.IsPermanent(errs[0]) {
		t.Errorf("outcomes %v", errs)
	}
}
