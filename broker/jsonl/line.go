package jsonl

import (
	"bytes"
	"encoding/json"
	"mime"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pgoutbox/outbox"
)

// line is one message in the file. repair recognises a torn line by its first member.
type line struct {
	ID            string            `json:"id"`
	Position      int64             `json:"position,omitempty"`
	Topic         string            `json:"topic"`
	Key           string            `json:"key,omitempty"`
	AggregateType string            `json:"aggregate_type,omitempty"`
	AggregateID   string            `json:"aggregate_id,omitempty"`
	EventType     string            `json:"event_type,omitempty"`
	ContentType   string            `json:"content_type,omitempty"`
	Headers       map[string]string `json:"headers,omitempty"`
	CreatedAt     string            `json:"created_at,omitempty"`
	DeliverAt     string            `json:"deliver_at,omitempty"`
	Payload       any               `json:"payload,omitempty"`
	PayloadBase64 []byte            `json:"payload_base64,omitempty"`
}

// beginning is how every line begins.
const beginning = `{"id":"`

// encoder collects lines.
type encoder struct {
	lines bytes.Buffer
	ends  []int // of each message's line
	json  *json.Encoder
}

func newEncoder() *encoder {
	e := &encoder{}
	e.json = json.NewEncoder(&e.lines)
	e.json.SetEscapeHTML(false)
	return e
}

// reset removes all lines, and releases the memory of an unusually large batch.
func (e *encoder) reset() {
	const most = 4 << 20
	if e.lines.Cap() > most {
		*e = *newEncoder()
	}
	e.lines.Reset()
	e.ends = e.ends[:0]
}

func (e *encoder) add(m *outbox.Message) error {
	l := line{
		ID:            m.ID.String(),
		Position:      m.Position,
		Topic:         m.Topic,
		Key:           m.Key,
		AggregateType: m.AggregateType,
		AggregateID:   m.AggregateID,
		EventType:     m.EventType,
		ContentType:   m.ContentType,
		CreatedAt:     timestamp(m.CreatedAt),
		DeliverAt:     timestamp(m.DeliverAt),
	}
	if len(m.Headers) > 0 {
		l.Headers = make(map[string]string, len(m.Headers))
		for _, h := range m.Headers {
			l.Headers[h.Name] = h.Value
		}
	}
	switch called := isJSON(m.ContentType); {
	case m.Payload == nil:
		l.Payload = json.RawMessage("null")
	case called && utf8.Valid(m.Payload) && json.Valid(m.Payload):
		l.Payload = json.RawMessage(m.Payload)
	case !called && isText(m.Payload):
		l.Payload = string(m.Payload)
	default:
		l.PayloadBase64 = m.Payload
	}
	if l.PayloadBase64 != nil && len(l.PayloadBase64) == 0 {
		l.Payload, l.PayloadBase64 = "", nil // an empty payload has no form, whatever its content type
	}
	if err := e.json.Encode(&l); err != nil {
		return err
	}
	e.ends = append(e.ends, e.lines.Len())
	return nil
}

func timestamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

func isJSON(contentType string) bool {
	if contentType == "" || contentType == "application/json" {
		return contentType != ""
	}
	media, _, err := mime.ParseMediaType(contentType)
	return err == nil && (media == "application/json" || strings.HasSuffix(media, "+json"))
}

// isText reports whether p is readable. As a JSON string, control characters would be six times as long, and base64 is
// not.
func isText(p []byte) bool {
	for _, c := range p {
		if c < ' ' && c != '\t' && c != '\n' && c != '\r' {
			return false
		}
	}
	return utf8.Valid(p)
}
