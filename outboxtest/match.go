package outboxtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pgoutbox/outbox"
)

// Match describes a message. A zero field matches every message.
type Match struct {
	ID            outbox.ID
	Topic         string
	Key           string
	AggregateType string
	AggregateID   string
	EventType     string
	ContentType   string

	// Payload matches the same bytes. An empty slice that is not nil matches empty and NULL payloads.
	Payload []byte

	// JSON matches a payload that is the same JSON value, whatever its spelling.
	JSON string

	// Headers matches messages that have at least all of these.
	Headers []outbox.Header

	// DeliverAt matches the same moment, to PostgreSQL's microsecond.
	DeliverAt time.Time

	// Where matches messages for which it returns true. Other fields are compared first.
	Where func(m outbox.Message) bool
}

func (w *Match) fits(m *outbox.Message) bool { return len(w.differences(m)) == 0 }

func fitsAny(matches []Match, m *outbox.Message) bool {
	for i := range matches {
		if matches[i].fits(m) {
			return true
		}
	}
	return false
}

// differences returns why m doesn't match, nothing if it does.
func (w *Match) differences(m *outbox.Message) []string {
	var found []string
	if !w.ID.IsZero() && w.ID != m.ID {
		found = append(found, "ID is "+m.ID.String())
	}
	for _, f := range []struct{ name, want, got string }{
		{"Topic", w.Topic, m.Topic}, {"Key", w.Key, m.Key}, {"AggregateType", w.AggregateType, m.AggregateType},
		{"AggregateID", w.AggregateID, m.AggregateID}, {"EventType",
			w.EventType, m.EventType}, {"ContentType", w.ContentType, m.ContentType},
	} {
		if f.want != "" && f.want != f.got {
			found = append(found, fmt.Sprintf("%s is %q", f.name, f.got))
		}
	}
	if w.Payload != nil && !bytes.Equal(w.Payload, m.Payload) {
		found = append(found, "Payload is "+payloadText(m.Payload))
	}
	if w.JSON != "" && !sameJSON(w.JSON, m.Payload) {
		found = append(found, "Payload is "+payloadText(m.Payload))
	}
	for _, h := range w.Headers {
		switch value, ok := m.Header(h.Name); {
		case !ok:
			found = append(found, fmt.Sprintf("header %q is missing", h.Name))
		case value != h.Value:
			found = append(found, fmt.Sprintf("header %q is %q", h.Name, value))
		}
	}
	if !w.DeliverAt.IsZero() && !w.DeliverAt.Truncate(time.Microsecond).Equal(m.DeliverAt) {
		found = append(found, "DeliverAt is "+timeText(m.DeliverAt))
	}
	if len(found) == 0 && w.Where != nil && !w.Where(*m) {
		found = append(found, "Where says no")
	}
	return found
}

// sameJSON compares values; it compares numbers by their text, so that large ones stay distinct.
func sameJSON(want string, got []byte) bool {
	a, errA := decodeJSON([]byte(want))
	b, errB := decodeJSON(got)
	return errA == nil && errB == nil && reflect.DeepEqual(a, b)
}

func decodeJSON(text []byte) (value any, err error) {
	if !json.Valid(text) {
		return nil, fmt.Errorf("not JSON: %s", payloadText(text))
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	err = decoder.Decode(&value)
	return value, err
}

// String shows the fields that are set.
func (w Match) String() string {
	m := outbox.Message{ID: w.ID, Topic: w.Topic, Key: w.Key, AggregateType: w.AggregateType, AggregateID: w.AggregateID,
		EventType: w.EventType, ContentType: w.ContentType, Headers: w.Headers, DeliverAt: w.DeliverAt}
	fields := describe(&m)
	if w.Payload != nil {
		fields = append(fields, "Payload: "+payloadText(w.Payload))
	}
	if w.JSON != "" {
		fields = append(fields, "JSON: "+payloadText([]byte(w.JSON)))
	}
	if w.Where != nil {
		fields = append(fields, "Where: a function")
	}
	return "{" + strings.Join(fields, ", ") + "}"
}

// list shows messages, each with the reasons why it doesn't match want.
func list(all []outbox.Message, want *Match) string {
	if len(all) == 0 {
		return "this transaction sees no message"
	}
	const most = 20
	var b strings.Builder
	fmt.Fprintf(&b, "this transaction sees %s:", count(len(all), "message"))
	for i := range all {
		if i == most {
			fmt.Fprintf(&b, "\n  and %d more", len(all)-most)
			break
		}
		fields := append(describe(&all[i]), "Payload: "+payloadText(all[i].Payload))
		fmt.Fprintf(&b, "\n  %d. {%s}", i+1, strings.Join(fields, ", "))
		if want == nil {
			continue
		}
		if differences := want.differences(&all[i]); len(differences) > 0 {
			fmt.Fprintf(&b, "\n     doesn't fit: %s", strings.Join(differences, ", "))
		} else {
			b.WriteString("\n     fits, but stands before")
		}
	}
	return b.String()
}

// describe shows the fields of m that are set, without the payload.
func describe(m *outbox.Message) []string {
	var fields []string
	if !m.ID.IsZero() {
		fields = append(fields, "ID: "+m.ID.String())
	}
	for _, f := range []struct{ name, value string }{
		{"Topic", m.Topic}, {"Key", m.Key}, {"AggregateType", m.AggregateType}, {"AggregateID", m.AggregateID},
		{"EventType", m.EventType}, {"ContentType", m.ContentType},
	} {
		if f.value != "" {
			fields = append(fields, fmt.Sprintf("%s: %q", f.name, f.value))
		}
	}
	for _, h := range m.Headers {
		fields = append(fields, fmt.Sprintf("header %q: %q", h.Name, h.Value))
	}
	if !m.DeliverAt.IsZero() {
		fields = append(fields, "DeliverAt: "+timeText(m.DeliverAt))
	}
	return fields
}

func timeText(t time.Time) string {
	if t.IsZero() {
		return "not set"
	}
	return t.UTC().Format(time.RFC3339Nano)
}

func payloadText(payload []byte) string {
	const most = 200
	switch {
	case payload == nil:
		return "NULL"
	case !utf8.Valid(payload):
		return fmt.Sprintf("%d bytes in hexadecimal, %x…", len(payload), payload[:min(len(payload), most/4)])
	case len(payload) > most:
		return fmt.Sprintf("%d bytes, %s…", len(payload), strings.ToValidUTF8(string(payload[:most]), ""))
	}
	return "`" + string(payload) + "`"
}
