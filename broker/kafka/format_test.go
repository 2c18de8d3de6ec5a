package kafka_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/internal/sdkread"
	"github.com/pgoutbox/outbox/broker/kafka"
	"github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/relay/relaytest"
	"github.com/twmb/franz-go/pkg/kgo"
)

// cloudEvents keeps what a CloudEvent carries of a message, for reading it back.
func cloudEvents(structured bool) format.CloudEvents {
	return format.CloudEvents{Structured: structured, Source: "/shop",
		Extensions: []format.Extension{{Name: "topic", Value: "{topic}"}, {Name: "aggregate", Value: "{aggregate_type}"}}}
}

// read is what the SDK makes of a record.
func read(r *kgo.Record) (*event.Event, error) {
	headers := map[string]string{}
	contentType := ""
	for _, h := range r.Headers {
		if h.Key == "content-type" {
			contentType = string(h.Value)
		}
		headers[h.Key] = string(h.Value)
	}
	return binding.ToEvent(context.Background(), sdkread.Message("ce_", contentType, headers, r.Value))
}

// The suite finds what it published in what the SDK reads: batches, limits, order and refusals are those
// of a broker with a format too.
func TestKafkaDoesWhatABrokerMustWithCloudEvents(t *testing.T) {
	t.Parallel()
	c := realCluster(t)
	relaytest.RunBroker(t, func(t *testing.T) relaytest.BrokerHarness {
		h := c.harness(kafka.Config{Format: cloudEvents(false)})
		h.Read = func(ctx context.Context) ([]outbox.Message, error) {
			records, err := c.records(ctx, h.Topics[:]...)
			if err != nil {
				return nil, err
			}
			var all []outbox.Message
			for _, r := range records {
				e, err := read(r)
				if err != nil {
					return nil, err
				}
				id, err := outbox.ParseID(e.ID())
				if err != nil {
					return nil, err
				}
				m := outbox.Message{ID: id, Topic: r.Topic, Key: string(r.Key),
					EventType: e.Type(), AggregateID: e.Subject(), ContentType: e.DataContentType(),
					AggregateType: extension(e, "aggregate"), Payload: r.Value, CreatedAt: e.Time()}
				for _, h := range r.Headers {
					if !strings.HasPrefix(h.Key, "ce_") && h.Key != "content-type" {
						m.Headers = append(m.Headers, outbox.Header{Name: h.Key, Value: string(h.Value)})
					}
				}
				all = append(all, m)
			}
			return all, nil
		}
		h.Forget = func(m *outbox.Message) {
			m.Key = m.OrderingKey()
			if m.EventType == "" {
				m.EventType = m.Topic
			}
		}
		return h
	})
}

func extension(e *event.Event, name string) string {
	text, _ := e.Extensions()[name].(string)
	return text
}

func TestTheSDKReadsStructuredCloudEventsFromATopic(t *testing.T) {
	t.Parallel()
	c := realCluster(t)
	topic := c.topic(2)
	b := c.broker(kafka.Config{Format: cloudEvents(true)})
	batch := brokertest.Messages(topic, 100, 10)
	for i, m := range batch {
		m.EventType, m.ContentType, m.AggregateID, m.Payload = "Created", "application/json", "7 €", fmt.Appendf(nil, `{"i":%d}`, i)
	}
	accepted(t, b.Publish(patient(t), batch))
	records, err := c.records(patient(t), topic)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]*outbox.Message{}
	for _, m := range batch {
		want[m.ID.String()] = m
	}
	for _, r := range records {
		e, err := read(r)
		if err != nil {
			t.Fatal(err)
		}
		m := want[e.ID()]
		delete(want, e.ID())
		if m == nil || e.Validate() != nil || string(e.Data()) != string(m.Payload) ||
			e.Subject() != "7 €" || e.Type() != "Created" || string(r.Key) != m.Key {
			t.Errorf("the event %v is not of the message %+v", e, m)
		}
	}
	if len(want) > 0 {
		t.Errorf("%d messages are missing", len(want))
	}
}

func TestTheDebeziumLayoutIsWhatATopicHas(t *testing.T) {
	t.Parallel()
	c := realCluster(t)
	topic := c.topic(1)
	b := c.broker(kafka.Config{Format: format.Debezium{Key: format.ConnectJSON,
		Value: format.ConnectJSON, Header: format.ConnectJSON, Expand: true,
		Place: []format.Placement{{Field: "event_type", Alias: "eventType"}}}})
	m := &outbox.Message{ID: outbox.NewID(), Topic: topic, AggregateType: "Order", AggregateID: "1", EventType: "OrderCreated",
		Payload: []byte(`{"id": 1, "gone": null}`), ContentType: "application/json"}
	accepted(t, b.Publish(patient(t), []*outbox.Message{m}))
	records, err := c.records(patient(t), topic)
	if err != nil {
		t.Fatal(err)
	}
	r := records[0]
	if string(r.Key) != `"1"` || string(r.Value) != `{"id":1}` {
		t.Errorf("key %s, value %s", r.Key, r.Value)
	}
	want := []string{`id: "` + m.ID.String() + `"`, `eventType: "OrderCreated"`}
	var got []string
	for _, h := range r.Headers {
		got = append(got, h.Key+": "+string(h.Value))
	}
	if !slices.Equal(got, want) {
		t.Errorf("headers are %q, want %q", got, want)
	}
}

func TestTheLimitIsAboutTheRecordOfTheFormat(t *testing.T) {
	t.Parallel()
	c := realCluster(t)
	topic := c.topic(1, "max.message.bytes", "5000")
	b := c.broker(kafka.Config{Format: cloudEvents(true)})
	largest := 0
	for bytes := 3000; bytes <= 3500; bytes++ {
		m := brokertest.Messages(topic, 1, 1)
		m[0].Payload, m[0].ContentType = make([]byte, bytes), "application/octet-stream" // as base64 it has a third more
		errs := b.Publish(patient(t), m)
		switch {
		case errs == nil:
			largest = bytes
		case outbox.IsPermanent(errs[0]):
			contains(t, errs[0], "the record has", "5000 at most")
		default:
			t.Fatal(errs[0])
		}
		if errs != nil {
			break
		}
	}
	if largest < 3100 || largest == 3500 {
		t.Errorf("%d bytes were accepted", largest)
	}
}

func TestAMessageThatTheFormatRefusesStopsItsKeyAlone(t *testing.T) {
	t.Parallel()
	c := realCluster(t)
	topic := c.topic(1)
	b := c.broker(kafka.Config{Format: cloudEvents(false)})
	batch := brokertest.Messages(topic, 9, 3)
	batch[3].Headers = []outbox.Header{{Name: "ce_id", Value: "x"}}
	brokertest.CheckRefused(t, batch, b.Publish(patient(t), batch), 3)
}

func TestAFormatIsCheckedAtTheStart(t *testing.T) {
	t.Parallel()
	_, err := kafka.New(kafka.Config{Format: format.CloudEvents{Source: "{x}"}})
	contains(t, err, "cloudevents source", "Brokers: none is given")
}

func BenchmarkFormats(b *testing.B) {
	for name, f := range map[string]format.Format{"raw": nil, "cloudevents": cloudEvents(false), "structured": cloudEvents(true)} {
		b.Run(name, func(b *testing.B) {
			c := realCluster(b)
			topic := c.topic(2)
			broker := c.broker(kafka.Config{Format: f})
			batch := brokertest.Messages(topic, 5000, 1000)
			for _, m := range batch {
				m.Payload = fmt.Appendf(nil, `{"text":"%0240d"}`, 7)
				m.EventType, m.AggregateType, m.AggregateID = "OrderCreated", "order", m.Key
				m.ContentType, m.CreatedAt = "application/json", time.Now()
			}
			b.ReportAllocs()
			for b.Loop() {
				accepted(b, broker.Publish(b.Context(), batch))
			}
			b.ReportMetric(float64(b.N)*float64(len(batch))/b.Elapsed().Seconds(), "msg/s")
		})
	}
}
