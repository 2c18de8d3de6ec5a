// Package cloudevents_test reads back, by the CloudEvents SDK, what package format writes for each binding.
package cloudevents_test

import (
	"bytes"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/event"
	sdkhttp "github.com/cloudevents/sdk-go/v2/protocol/http"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/sdkread"
	"github.com/pgoutbox/outbox/format"
)

func order() *outbox.Message {
	return &outbox.Message{
		ID: outbox.ID{1, 2, 3}, Topic: "orders", Key: "o-1", AggregateType: "Order", AggregateID: `7 € "x" 50%`, EventType: "OrderCreated",
		Payload: []byte(`{"id":1,"text":"é\n"}`), ContentType: "application/json",
		Headers: []outbox.Header{
			{Name: "tenant", Value: "acmé"},
			{Name: "traceparent", Value: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
			{Name: "tracestate", Value: "a=1,b=2"},
		},
		CreatedAt: time.Date(2026, 11, 21, 3, 4, 5, 678000, time.UTC), Position: 4711,
	}
}

var payloads = []struct {
	name, contentType string
	payload           []byte
}{
	{"JSON", "application/json", []byte(`{"id":1,"text":"é\n"}`)},
	{"JSON of another kind", "application/vnd.shop+json; charset=utf-8", []byte(`[1.0, 2]`)},
	{"text", "text/plain", []byte("a \"b\"\n\t\\ é")},
	{"XML", "application/xml", []byte("<a/>")},
	{"bytes", "application/octet-stream", []byte{0, 1, 2, 0xff}},
	{"no content type", "", []byte(`{"a":1}`)},
	{"nothing", "application/json", nil},
}

// eachMode runs check for every binding, mode and payload.
func eachMode(t *testing.T, check func(t *testing.T, b format.Binding, structured bool, m *outbox.Message)) {
	names := map[format.Binding]string{format.Kafka: "kafka",
		format.NATS: "nats", format.HTTP: "http", format.AMQP: "amqp", format.PubSub: "pubsub",
		format.SQS: "sqs", format.SNS: "sns", format.Redis: "redis", format.GRPC: "grpc"}
	for b, name := range names {
		for _, mode := range []string{"binary", "structured"} {
			for _, p := range payloads {
				t.Run(name+" "+mode+" "+p.name, func(t *testing.T) {
					t.Parallel()
					m := order()
					m.Payload, m.ContentType = p.payload, p.contentType
					check(t, b, mode == "structured", m)
				})
			}
		}
	}
}

func TestTheSDKReadsEveryBindingBack(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, b format.Binding, structured bool, m *outbox.Message) {
		ce := format.CloudEvents{Structured: structured, Source: "/shop", DataSchema: "https://example.com/s", Extensions: []format.Extension{{Name: "tenant", Value: "{header.tenant}"}}}
		encoder, err := ce.Bind(b)
		if err != nil {
			t.Fatal(err)
		}
		var r format.Record
		if err := encoder.Encode(&r, m); err != nil {
			t.Fatal(err)
		}
		e, err := binding.ToEvent(t.Context(), received(t, b, &r))
		if err != nil {
			t.Fatal(err)
		}
		if b == format.HTTP && !structured {
			unescape(t, e)
		}
		compare(t, e, m)
	})
}

// unescape does what the HTTP binding asks of a reader (3.1.3.2) and the SDK leaves out.
func unescape(t *testing.T, e *event.Event) {
	t.Helper()
	values := map[string]*string{"subject": new(string), "tenant": new(string)}
	for name, raw := range map[string]string{"subject": e.Subject(), "tenant": extension(e, "tenant")} {
		text, ok := format.UnescapePercent(raw)
		if !ok || text == raw {
			t.Errorf("%s is %q: not percent-encoded", name, raw)
		}
		*values[name] = text
	}
	e.SetSubject(*values["subject"])
	e.SetExtension("tenant", *values["tenant"])
}

func compare(t *testing.T, e *event.Event, m *outbox.Message) {
	t.Helper()
	if err := e.Validate(); err != nil {
		t.Errorf("not valid: %v", err)
	}
	for _, x := range []struct{ what, got, want string }{
		{"specversion", e.SpecVersion(), "1.0"},
		{"id", e.ID(), m.ID.String()},
		{"source", e.Source(), "/shop"},
		{"type", e.Type(), m.EventType},
		{"subject", e.Subject(), m.AggregateID},
		{"time", e.Time().Format(time.RFC3339Nano), m.CreatedAt.Format(time.RFC3339Nano)},
		{"datacontenttype", e.DataContentType(), m.ContentType},
		{"dataschema", e.DataSchema(), "https://example.com/s"},
		{"data", string(e.Data()), string(m.Payload)},
		{"partitionkey", extension(e, "partitionkey"), "o-1"},
		{"sequence", extension(e, "sequence"), "0000000000000004711"},
		{"traceparent", extension(e, "traceparent"), m.Headers[1].Value},
		{"tracestate", extension(e, "tracestate"), m.Headers[2].Value},
		{"tenant", extension(e, "tenant"), "acmé"},
	} {
		if x.got != x.want {
			t.Errorf("%s is %q, want %q", x.what, x.got, x.want)
		}
	}
	if got := len(e.Extensions()); got != 5 {
		t.Errorf("there are %d extensions: %v", got, e.Extensions())
	}
}

func extension(e *event.Event, name string) string {
	text, _ := e.Extensions()[name].(string)
	return text
}

// received is a record as a consumer of the protocol has it.
func received(t *testing.T, b format.Binding, r *format.Record) binding.Message {
	t.Helper()
	if b == format.HTTP {
		// Through a request's wire format, as a server reads it.
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost/", bytes.NewReader(r.Value))
		if err != nil {
			t.Fatal(err)
		}
		if r.ContentType != "" {
			req.Header.Set("Content-Type", r.ContentType)
		}
		for _, h := range r.Headers {
			req.Header.Add(h.Name, string(h.Value))
		}
		return sdkhttp.NewMessageFromHttpRequest(req)
	}
	headers := map[string]string{}
	prefix := "ce-"
	switch b {
	case format.Kafka:
		prefix = "ce_"
	case format.AMQP:
		prefix = "cloudEvents:"
	}
	encoded := b == format.NATS || b == format.SQS || b == format.SNS
	for _, h := range r.Headers {
		value := string(h.Value)
		if encoded && strings.HasPrefix(h.Name, prefix) {
			var ok bool
			if value, ok = format.UnescapePercent(value); !ok {
				t.Fatalf("%s: %q", h.Name, h.Value)
			}
		}
		headers[h.Name] = value
	}
	return sdkread.Message(prefix, r.ContentType, headers, r.Value)
}
