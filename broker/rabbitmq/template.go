package rabbitmq

import (
	"fmt"
	"strings"

	"github.com/pgoutbox/outbox"
)

// template is a parsed Config.Exchange or Config.RoutingKey: literals[0] fields[0] literals[1] ... literals[n].
type template struct {
	literals []string
	fields   []func(*outbox.Message) string
	plain    bool // the message's topic as it is
}

// templateField returns the named field's value in a message, nil if there is no such field.
func templateField(name string) func(*outbox.Message) string {
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

func parseTemplate(what, text string) (*template, error) {
	t := &template{plain: text == "{topic}"}
	rest := text
	for {
		literal, field, found := strings.Cut(rest, "{")
		if strings.Contains(literal, "}") {
			return nil, fmt.Errorf("%s template %q has a brace without its counterpart", what, text)
		}
		t.literals = append(t.literals, literal)
		if !found {
			break
		}
		name, after, closed := strings.Cut(field, "}")
		value := templateField(name)
		if !closed || value == nil {
			return nil, fmt.Errorf("%s template %q: expected one of {topic}, {key}, {event_type}, {aggregate_type}, {aggregate_id} at %q", what, text, "{"+field)
		}
		t.fields = append(t.fields, value)
		rest = after
	}
	if n := len(strings.Join(t.literals, "")); n > shortString {
		return nil, fmt.Errorf("%s template: %d bytes are more than the %d that AMQP takes", what, n, shortString)
	}
	return t, nil
}

// constant reports whether the text is the same for all messages.
func (t *template) constant() bool { return len(t.fields) == 0 }

func (t *template) expand(m *outbox.Message) string {
	switch {
	case t.plain:
		return m.Topic
	case t.constant():
		return t.literals[0]
	}
	var b strings.Builder
	b.Grow(64)
	b.WriteString(t.literals[0])
	for i, field := range t.fields {
		b.WriteString(field(m))
		b.WriteString(t.literals[i+1])
	}
	return b.String()
}
