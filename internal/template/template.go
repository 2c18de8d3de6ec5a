// Package template makes names out of messages: of topics, subjects, streams, queues and paths. A template is a text with
// fields in it, such as "shop.{aggregate_type}"; what makes a name a good one, the adapters know.
package template

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pgoutbox/outbox"
)

// Field returns its value in a message.
type Field func(*outbox.Message) string

// every has the names of all fields.
func every() []string {
	return []string{"topic", "key", "event_type", "aggregate_type", "aggregate_id"}
}

// Named returns the field of that name, nil if there is none: topic, key (the ordering key), event_type, aggregate_type
// or aggregate_id.
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
	}
	return nil
}

// Template is a parsed text: Literals[0] Fields[0] Literals[1] Fields[1] ... Literals[n]. It may be used by several
// goroutines at once.
type Template struct {
	Literals []string
	Fields   []Field
}

// Fault says what is wrong with a template, at which place of it.
type Fault struct {
	Expected []string // the names of the fields that may stand there
	At       string   // the rest of the text
}

func (f *Fault) Error() string {
	return fmt.Sprintf("expected one of {%s} at %q", strings.Join(f.Expected, "}, {"), f.At)
}

// Parse reads a text in which fields of these names may stand, or of any if none is given. A brace that closes none is a
// literal. The error is a *Fault.
func Parse(text string, fields ...string) (*Template, error) {
	if len(fields) == 0 {
		fields = every()
	}
	t := &Template{}
	for rest := text; ; {
		literal, field, found := strings.Cut(rest, "{")
		t.Literals = append(t.Literals, literal)
		if !found {
			return t, nil
		}
		name, after, closed := strings.Cut(field, "}")
		if !closed || !slices.Contains(fields, name) {
			return nil, &Fault{Expected: fields, At: "{" + field}
		}
		t.Fields = append(t.Fields, Named(name))
		rest = after
	}
}

// Constant reports whether the text is the same for all messages: Literals[0].
func (t *Template) Constant() bool { return len(t.Fields) == 0 }

// With returns the text in which value stands for every field.
func (t *Template) With(value string) string { return strings.Join(t.Literals, value) }

// Append appends the text for m to b.
func (t *Template) Append(b []byte, m *outbox.Message) []byte {
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
		return t.Literals[0]
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
