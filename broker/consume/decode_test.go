package consume_test

import (
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/consume"
	"github.com/pgoutbox/outbox/format"
)

// record is what a consumer of the binding reads before Decode: everything is a header, as in the adapters.
func record(t *testing.T, f format.Format, binding format.Binding, m *outbox.Message) *outbox.Message {
	t.Helper()
	encoder, err := f.Bind(binding)
	if err != nil {
		t.Fatal(err)
	}
	var r format.Record
	if err := encoder.Encode(&r, m); err != nil {
		t.Fatal(err)
	}
	got := &outbox.Message{Topic: m.Topic, Key: string(r.Key), Payload: r.Value, ContentType: r.ContentType}
	for _, h := range r.Headers {
		got.Headers = append(got.Headers, outbox.Header{Name: h.Name, Value: string(h.Value)})
	}
	return got
}

func TestFormatsAreReadBack(t *testing.T) {
	t.Parallel()
	sent := &outbox.Message{
		ID: outbox.NewID(), Topic: "orders", Key: "größe 100%", AggregateType: "order", AggregateID: "4711", EventType: "OrderPlaced",
		ContentType: "application/json", Payload: []byte(`{"a":1}`), CreatedAt: time.Date(2026,
			1, 2, 3, 4, 5, 678_000_000, time.UTC), Position: 7,
		Headers: []outbox.Header{{Name: "tenant", Value: "acme"}},
	}
	text, binary := *sent, *sent
	text.ContentType, text.Payload = "text/plain", []byte("hello \"you\"")
	binary.ContentType, binary.Payload = "application/octet-stream", []byte{0, 0xff}
	for name, binding := range map[string]format.Binding{"Kafka": format.Kafka,
		"NATS": format.NATS, "AMQP": format.AMQP, "SQS": format.SQS} {
		for _, structured := range []bool{false, true} {
			for _, m := range []*outbox.Message{sent, &text, &binary} {
				got := record(t, format.CloudEvents{Structured: structured}, binding, m)
				if err := consume.CloudEvent(got); err != nil {
					t.Errorf("%s, structured %v: %v", name, structured, err)
					continue
				}
				tenant, _ := got.Header("tenant")
				if got.ID != m.ID || got.Key != m.Key || got.EventType != m.EventType || got.ContentType != m.ContentType ||
					string(got.Payload) != string(m.Payload) || !got.CreatedAt.Equal(m.CreatedAt) || tenant != "acme" {
					t.Errorf("%s, structured %v:\nsent     %+v\nreceived %+v", name, structured, *m, *got)
				}
			}
		}
	}
	for _, header := range []format.Converter{format.ConnectString, format.ConnectJSON, format.ConnectJSONSchema} {
		got := record(t, format.Debezium{Key: format.ConnectString, Value: format.ConnectString, Header: header}, format.Kafka, sent)
		if err := consume.Debezium(got); err != nil || got.ID != sent.ID {
			t.Errorf("Debezium with headers %v: %v, id %s, want %s", header, err, got.ID, sent.ID)
		}
		if _, there := got.Header("id"); there {
			t.Error("the id is a header still")
		}
	}
}

func TestWhatIsNoEventOfTheFormatIsAnError(t *testing.T) {
	t.Parallel()
	for _, m := range []outbox.Message{
		{},
		{Headers: []outbox.Header{{Name: "ce_id", Value: "4711"}}},
		{ContentType: "application/cloudevents+json; charset=UTF-8", Payload: []byte("no JSON")},
		{ContentType: "application/cloudevents+json", Payload: []byte(`{"id":"` + outbox.NewID().String() + `","data_base64":"?"}`)},
		{ContentType: "application/cloudevents+json", Payload: []byte(`{"id":"` + outbox.NewID().String() + `","time":"now"}`)},
	} {
		if err := consume.CloudEvent(&m); err == nil {
			t.Errorf("%+v was taken for an event", m)
		}
	}
	for _, m := range []outbox.Message{{}, {Headers: []outbox.Header{{Name: "id", Value: "x"}}}} {
		if err := consume.Debezium(&m); err == nil {
			t.Errorf("%+v was taken for a record of an outbox", m)
		}
	}
}
