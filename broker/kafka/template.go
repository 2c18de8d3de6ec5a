package kafka

import (
	"fmt"
	"strings"

	"github.com/pgoutbox/outbox"
)

// template is a parsed Config.Topic: literals[0] fields[0] literals[1] ... literals[n].
type template struct {
	literals []string
	fields   []func(*outbox.Message) string
	plain    bool // the message's topic as it is
}

func parseTemplate(text string) (template, error) {
	t := template{plain: text == "{topic}"}
	rest := text
	for {
		literal, field, found := strings.Cut(rest, "{")
		t.literals = append(t.literals, literal)
		if !found {
			break
		}
		name, after, closed := strings.Cut(field, "}")
		value := templateField(name)
		if !closed || value == nil {
			return t, fmt.Errorf("topic template %q: expected {topic}, {aggregate_type} or {event_type} at %q", text, "{"+field)
		}
		t.fields = append(t.fields, value)
		rest = after
	}
	// With every field standing for a plain name, what is left is the template's own.
	if fault := topicFault(strings.Join(t.literals, "x")); fault != "" {
		return t, fmt.Errorf("topic template %q: a topic %s", text, fault)
	}
	return t, nil
}

func templateField(name string) func(*outbox.Message) string {
	switch name {
	case "topic":
		return func(m *outbox.Message) string { return m.Topic }
	case "aggregate_type":
		return func(m *outbox.Message) string { return m.AggregateType }
	case "event_type":
		return func(m *outbox.Message) string { return m.EventType }
	}
	return nil
}

// expand appends m's topic to b.
func (t *template) expand(b []byte, m *outbox.Message) []byte {
	b = append(b, t.literals[0]...)
	for i, field := range t.fields {
		b = append(b, field(m)...)
		b = append(b, t.literals[i+1]...)
	}
	return b
}

// topicFault says why Kafka takes no topic of this name; "" if it does.
func topicFault(name string) string {
	switch {
	case name == "":
		return "must have a name"
	case name == "." || name == "..":
		return "must not be called . or .."
	case len(name) > outbox.MaxTopicBytes:
		return fmt.Sprintf("must not be longer than %d characters", outbox.MaxTopicBytes)
	}
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' {
			return fmt.Sprintf("can have letters, digits, dots, underscores and hyphens only, and this has %q", c)
		}
	}
	return ""
}
