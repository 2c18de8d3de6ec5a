package jsonl

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pgoutbox/outbox"
)

// line is one message in the file, without its payload. repair recognises a torn line by its first member.
type line struct {
	ID            string  `json:"id"`
	Position      int64   `json:"position,omitempty"`
	Topic         string  `json:"topic"`
	Key           string  `json:"key,omitempty"`
	AggregateType string  `json:"aggregate_type,omitempty"`
	AggregateID   string  `json:"aggregate_id,omitempty"`
	EventType     string  `json:"event_type,omitempty"`
	ContentType   string  `json:"content_type,omitempty"`
	Headers       headers `json:"headers,omitempty"`
	CreatedAt     string  `json:"created_at,omitempty"`
	DeliverAt     string  `json:"deliver_at,omitempty"`
}

// beginning is how every line begins.
const beginning = `{"id":"`

// headers are an object of strings that keeps their order.
type headers []outbox.Header

func (h headers) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	text := json.NewEncoder(&b)
	text.SetEscapeHTML(false)
	b.WriteByte('{')
	for i, header := range h {
		if i > 0 {
			b.WriteByte(',')
		}
		if err := text.Encode(header.Name); err != nil {
			return nil, err
		}
		b.WriteByte(':')
		if err := text.Encode(header.Value); err != nil {
			return nil, err
		}
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

func (h *headers) UnmarshalJSON(object []byte) error {
	*h = nil
	tokens := json.NewDecoder(bytes.NewReader(object))
	if t, err := tokens.Token(); err != nil || t != json.Delim('{') {
		return errors.New("headers are not an object")
	}
	for tokens.More() {
		name, _ := tokens.Token() // package json has checked the syntax
		value, _ := tokens.Token()
		text, ok := value.(string)
		if !ok {
			return fmt.Errorf("header %q is not a string", name)
		}
		*h = append(*h, outbox.Header{Name: name.(string), Value: text})
	}
	return nil
}

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
		e.lines = bytes.Buffer{} // e.json goes on writing to it
	}
	e.lines.Reset()
	e.ends = e.ends[:0]
}

func (e *encoder) add(m *outbox.Message) error {
	err := e.json.Encode(&line{
		ID:            m.ID.String(),
		Position:      m.Position,
		Topic:         m.Topic,
		Key:           m.Key,
		AggregateType: m.AggregateType,
		AggregateID:   m.AggregateID,
		EventType:     m.EventType,
		ContentType:   m.ContentType,
		Headers:       m.Headers,
		CreatedAt:     timestamp(m.CreatedAt),
		DeliverAt:     timestamp(m.DeliverAt),
	})
	if err != nil {
		return err
	}
	e.lines.Truncate(e.lines.Len() - len("}\n"))
	if err := e.payload(m); err != nil {
		return err
	}
	e.lines.WriteString("}\n")
	e.ends = append(e.ends, e.lines.Len())
	return nil
}

// payload appends the payload's members. payload is for reading; payload_base64 stands beside it, or in its place, if
// payload doesn't say what each byte was.
func (e *encoder) payload(m *outbox.Message) error {
	declared := isJSON(m.ContentType)
	switch {
	case m.Payload == nil:
		e.lines.WriteString(`,"payload":null`)
		return nil
	case declared && utf8.Valid(m.Payload) && json.Valid(m.Payload):
		e.lines.WriteString(`,"payload":`)
		trimmed := bytes.TrimSpace(m.Payload)
		if bytes.ContainsAny(trimmed, "\r\n") { // readers of lines may end one at either
			if err := json.Compact(&e.lines, trimmed); err != nil {
				return err
			}
		} else {
			e.lines.Write(trimmed)
			if len(trimmed) == len(m.Payload) && string(trimmed) != "null" {
				return nil
			}
		}
	case !declared && isText(m.Payload):
		e.lines.WriteString(`,"payload":`)
		if err := e.json.Encode(string(m.Payload)); err != nil {
			return err
		}
		e.lines.Truncate(e.lines.Len() - len("\n"))
		return nil
	}
	e.lines.WriteString(`,"payload_base64":"`)
	e.lines.Write(base64.StdEncoding.AppendEncode(e.lines.AvailableBuffer(), m.Payload))
	e.lines.WriteByte('"')
	return nil
}

// Decode reads a line. The message is that which was published, with every byte of its payload.
func Decode(text []byte) (*outbox.Message, error) {
	var l struct {
		line
		Payload       json.RawMessage `json:"payload"`
		PayloadBase64 []byte          `json:"payload_base64"`
	}
	if err := json.Unmarshal(text, &l); err != nil {
		return nil, fmt.Errorf("jsonl: decode: %w", err)
	}
	m := &outbox.Message{
		Position: l.Position, Topic: l.Topic, Key: l.Key, AggregateType: l.AggregateType, AggregateID: l.AggregateID,
		EventType: l.EventType, ContentType: l.ContentType, Headers: l.Headers, Payload: l.PayloadBase64,
	}
	var err error
	if m.ID, err = outbox.ParseID(l.ID); err != nil {
		return nil, fmt.Errorf("jsonl: decode: %w", err)
	}
	for t, text := range map[*time.Time]string{&m.CreatedAt: l.CreatedAt, &m.DeliverAt: l.DeliverAt} {
		if text == "" {
			continue
		}
		if *t, err = time.Parse(time.RFC3339Nano, text); err != nil {
			return nil, fmt.Errorf("jsonl: decode %s: %w", m.ID, err)
		}
	}
	switch {
	case m.Payload != nil || string(l.Payload) == "null":
	case isJSON(m.ContentType) && len(l.Payload) > 0:
		m.Payload = l.Payload
	default:
		var text string
		if err := json.Unmarshal(l.Payload, &text); err != nil {
			return nil, fmt.Errorf("jsonl: decode the payload of %s: %w", m.ID, err)
		}
		m.Payload = []byte(text)
	}
	return m, nil
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
