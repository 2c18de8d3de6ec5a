// Package sdkread lets tests read records with the CloudEvents SDK for protocols whose reader is a module of its own.
package sdkread

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/binding/format"
	"github.com/cloudevents/sdk-go/v2/binding/spec"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	events "github.com/pgoutbox/outbox/format"
)

// Order returns a message with what a CloudEvent carries of one, and characters that some protocols encode.
func Order(topic string) *outbox.Message {
	return &outbox.Message{ID: outbox.NewID(), Topic: topic, Key: "größe 100%", AggregateID: "7 €", EventType: "Created",
		Payload: []byte(`{"i":1}`), ContentType: "application/json", Headers: []outbox.Header{{Name: "tenant", Value: "acme"}},
		CreatedAt: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)}
}

// Check requires that the SDK reads from got the event that the source "/shop" makes of m.
func Check(t *testing.T, got binding.Message, m *outbox.Message) {
	t.Helper()
	e, err := binding.ToEvent(t.Context(), got)
	if err != nil {
		t.Fatal(err)
	}
	if e.Validate() != nil || e.ID() != m.ID.String() || e.Source() != "/shop" ||
		e.Type() != m.EventType || e.Subject() != m.AggregateID || !e.Time().Equal(m.CreatedAt) ||
		e.Extensions()["partitionkey"] != m.Key || string(e.Data()) != string(m.Payload) || e.DataContentType() != m.ContentType {
		t.Errorf("the event is %v, want that of %+v", e, *m)
	}
}

// Message is a received record for the SDK: prefix begins the names of attributes, headers have all of them
// with their values decoded, and value is nil for an event without data.
func Message(prefix, contentType string, headers map[string]string, value []byte) binding.Message {
	return &message{value: value, contentType: contentType, headers: headers, specs: spec.WithPrefix(prefix)}
}

// message reads attributes by the SDK's rules for prefixed names.
type message struct {
	value       []byte
	contentType string
	headers     map[string]string
	specs       *spec.Versions
}

var _ binding.Message = (*message)(nil)

func (m *message) version() spec.Version {
	return m.specs.Version(m.headers[m.specs.PrefixedSpecVersionName()])
}

func (m *message) ReadEncoding() binding.Encoding {
	if format.IsFormat(m.contentType) {
		return binding.EncodingStructured
	}
	if m.version() != nil {
		return binding.EncodingBinary
	}
	return binding.EncodingUnknown
}

func (m *message) ReadStructured(ctx context.Context, w binding.StructuredWriter) error {
	f := format.Lookup(m.contentType)
	if f == nil {
		return binding.ErrNotStructured
	}
	return w.SetStructuredEvent(ctx, f, bytes.NewReader(m.value))
}

func (m *message) ReadBinary(_ context.Context, w binding.BinaryWriter) error {
	v := m.version()
	if m.contentType != "" {
		if err := w.SetAttribute(v.AttributeFromKind(spec.DataContentType), m.contentType); err != nil {
			return err
		}
	}
	for name, value := range m.headers {
		var err error
		if attribute := v.Attribute(name); attribute != nil {
			err = w.SetAttribute(attribute, value)
		} else if extension, ok := strings.CutPrefix(name, m.specs.Prefix()); ok {
			err = w.SetExtension(extension, value)
		}
		if err != nil {
			return err
		}
	}
	if m.value == nil {
		return nil
	}
	return w.SetData(io.NopCloser(bytes.NewReader(m.value)))
}

func (m *message) Finish(error) error { return nil }

func (m *message) GetAttribute(k spec.Kind) (spec.Attribute, any) {
	a := m.version().AttributeFromKind(k)
	return a, m.headers[a.PrefixedName()]
}

func (m *message) GetExtension(name string) any { return m.headers[m.specs.Prefix()+name] }

// Record is a record as its consumer gets it.
type Record struct {
	ContentType string
	Headers     map[string]string // decoded
	Value       []byte
}

// Target is a broker with a format, a topic of its own, and what is in the topic. If m isn't nil, it is the message
// that was published, and Read checks what else the broker keeps of it.
type Target struct {
	Broker brokertest.Publisher
	Topic  string
	Read   func(t *testing.T, m *outbox.Message) []Record
}

// Run checks a broker whose CloudEvents have attributes with that prefix.
func Run(t *testing.T, prefix string, open func(t *testing.T, f events.CloudEvents) Target) {
	for name, structured := range map[string]bool{"binary": false, "structured": true} {
		t.Run("the SDK reads events, "+name, func(t *testing.T) {
			t.Parallel()
			to := open(t, events.CloudEvents{Structured: structured, Source: "/shop"})
			m := Order(to.Topic)
			brokertest.Accepted(t, to.Broker.Publish(t.Context(), []*outbox.Message{m}))
			records := to.Read(t, m)
			if len(records) != 1 {
				t.Fatalf("%d records", len(records))
			}
			r := records[0]
			Check(t, Message(prefix, r.ContentType, r.Headers, r.Value), m)
			if r.Headers["tenant"] != "acme" {
				t.Errorf("headers %v", r.Headers)
			}
			for name := range r.Headers {
				if strings.HasPrefix(strings.ToLower(name), "outbox-") {
					t.Errorf("%s stands beside the headers of the format", name)
				}
			}
		})
	}
	t.Run("a message that the format refuses stops its key alone", func(t *testing.T) {
		t.Parallel()
		to := open(t, events.CloudEvents{Source: "/shop"})
		batch := brokertest.Messages(to.Topic, 6, 2)
		batch[2].Headers = []outbox.Header{{Name: prefix + "id", Value: "x"}}
		brokertest.CheckRefused(t, batch, to.Broker.Publish(t.Context(), batch), 2)
		if got := len(to.Read(t, nil)); got != 4 {
			t.Errorf("%d records, want 4", got)
		}
	})
}
