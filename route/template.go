package route

import (
	"fmt"
	"strings"

	"github.com/pgoutbox/outbox"
)

// Template is a text with fields of a message in it, such as "shop.{aggregate_type}". The fields are
// {topic}, {key} (the ordering key), {event_type}, {aggregate_type}, {aggregate_id}, {content_type}, {id}
// and {header.NAME}; a missing one is empty. The zero Template is the empty text. A Template may be used
// by several goroutines at once.
type Template struct {
	literals []string // one more than fields
	fields   []field
}

// field returns its value in a message.
type field func(m *outbox.Message) string

// ParseTemplate reads a template. A brace can't be written otherwise than around a field.
func ParseTemplate(text string) (Template, error) {
	var t Template
	rest := text
	for {
		literal, after, found := strings.Cut(rest, "{")
		if strings.Contains(literal, "}") {
			return Template{}, fmt.Errorf("template %q: a } stands without its {", text)
		}
		t.literals = append(t.literals, literal)
		if !found {
			return t, nil
		}
		name, next, closed := strings.Cut(after, "}")
		value := fieldNamed(name)
		if !closed || value == nil {
			return Template{}, fmt.Errorf("template %q: expected one of {topic}, {key}, {event_type}, {aggregate_type}, {aggregate_id}, {content_type}, {id} and {header.NAME} at %q", text, "{"+after)
		}
		t.fields = append(t.fields, value)
		rest = next
	}
}

func fieldNamed(name string) field {
	switch name {
	case "topic":
		return func(m *outbox.Message) string { return m.Topic }
	case "key":
		return (*outbox.Message).OrderingKey
	case "event_type":
		return func(m *outbox.Message) string { return m.EventType }
	case "aggregate_type":
		return func(m *outbox.Message) string { return m.AggregateType }
	case "aggregate_id":
		return func(m *outbox.Message) string { return m.AggregateID }
	case "content_type":
		return func(m *outbox.Message) string { return m.ContentType }
	case "id":
		return func(m *outbox.Message) string { return m.ID.String() }
	}
	if header, ok := strings.CutPrefix(name, "header."); ok && header != "" {
		return func(m *outbox.Message) string { value, _ := m.Header(header); return value }
	}
	return nil
}

// Append appends the text for m to b. Apart from {id}, it allocates nothing but what b needs.
func (t *Template) Append(b []byte, m *outbox.Message) []byte {
	if len(t.literals) == 0 {
		return b
	}
	b = append(b, t.literals[0]...)
	for i, value := range t.fields {
		b = append(b, value(m)...)
		b = append(b, t.literals[i+1]...)
	}
	return b
}

// Expand returns the text for m.
func (t *Template) Expand(m *outbox.Message) string {
	switch len(t.fields) {
	case 0:
		text, _ := t.Constant()
		return text
	case 1:
		return t.literals[0] + t.fields[0](m) + t.literals[1]
	}
	return string(t.Append(nil, m))
}

// Constant returns the text, if it is the same for every message.
func (t *Template) Constant() (string, bool) {
	if len(t.literals) == 0 {
		return "", true
	}
	return t.literals[0], len(t.fields) == 0
}
