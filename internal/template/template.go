// Package template builds texts from messages: names of topics, subjects, streams and queues, paths, values of headers.
// A template is a text with fields, such as "shop.{aggregate_type}"; its users check whether the result is a valid
// name.
package template

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pgoutbox/outbox"
)

// Field returns its value in a message.
type Field func(*outbox.Message) string

// Names returns the names of the fields that a name may have: topic, key (the ordering key), event_type, aggregate_type
// and aggregate_id.
func Names() []string {
	return []string{"topic", "key", "event_type", "aggregate_type", "aggregate_id"}
}

// AnyHeader stands for the fields header.NAME, with the name of any header.
const AnyHeader = "header.NAME"

// Named returns the field of that name, nil if there is none: one of Names, content_type, id, or header.NAME, which is
// empty if the message has no such header.
func Named(name string) Field {
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

// Template is a parsed text: Literals[0] Fields[0] Literals[1] Fields[1] ... Literals[n]. Safe for concurrent use. The
// zero Template is the empty text.
type Template struct {
	Literals []string
	Fields   []Field
}

// Fault is a mistake in a template.
type Fault struct {
	Expected []string // the names of the allowed fields
	At       string   // the rest of the text
}

func (f *Fault) Error() string {
	return fmt.Sprintf("expected one of {%s} at %q", strings.Join(f.Expected, "}, {"), f.At)
}

// Parse reads a text that may have fields of these names, or of Names if none is given. A closing brace without an
// opening one is a literal. The error is a *Fault.
func Parse(text string, fields ...string) (*Template, error) {
	if len(fields) == 0 {
		fields = Names()
	}
	t := &Template{}
	for rest := text; ; {
		literal, field, found := strings.Cut(rest, "{")
		t.Literals = append(t.Literals, literal)
		if !found {
			return t, nil
		}
		name, after, closed := strings.Cut(field, "}")
		value := Named(name)
		if !closed || value == nil || !allowed(fields, name) {
			return nil, &Fault{Expected: fields, At: "{" + field}
		}
		t.Fields = append(t.Fields, value)
		rest = after
	}
}

func allowed(fields []string, name string) bool {
	return slices.Contains(fields, name) || strings.HasPrefix(name, "header.") && slices.Contains(fields, AnyHeader)
}

// Constant reports whether the text is the same for all messages: Literals[0].
func (t *Template) Constant() bool { return len(t.Fields) == 0 }

// With returns the text with value in place of every field.
func (t *Template) With(value string) string { return strings.Join(t.Literals, value) }

// Append appends the text for m to b.
func (t *Template) Append(b []byte, m *outbox.Message) []byte {
	if len(t.Literals) == 0 {
		return b
	}
	b = append(b, t.Literals[0]...)
	for i, field := range t.Fields {
		b = append(b, field(m)...)
		b = append(b, t.Literals[i+1]...)
	}
	return b
}

// Expand returns the text for m. A field by itself is not copied.
func (t *Template) Expand(m *outbox.Message) string {
	switch {
	case t.Constant():
		return t.With("")
	case len(t.Fields) == 1 && t.Literals[0] == "" && t.Literals[1] == "":
		return t.Fields[0](m)
	}
	var b strings.Builder
	b.Grow(64)
	b.WriteString(t.Literals[0])
	for i, field := range t.Fields {
		b.WriteString(field(m))
		b.WriteString(t.Literals[i+1])
	}
	return b.String()
}
