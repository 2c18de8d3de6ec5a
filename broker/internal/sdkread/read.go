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
