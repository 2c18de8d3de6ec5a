package redis

import (
	"errors"
	"fmt"
	"strings"

	"github.com/pgoutbox/outbox"
)

// template is a parsed Config.Stream: literals[0] fields[0] literals[1] fields[1] ... literals[n].
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
	case "event_type":
		return func(m *outbox.Message) string { return m.EventType }
	case "aggregate_type":
		return func(m *outbox.Message) string { return m.AggregateType }
	case "aggregate_id":
		return func(m *outbox.Message) string { return m.AggregateID }
	case "key":
		return (*outbox.Message).OrderingKey
	}
	return nil
}

// parseTemplate reads a template. A Redis Cluster's hash tag is written with doubled braces: "{{orders}}:{topic}".
func parseTemplate(text string) (*template, error) {
	t := &template{plain: text == "{topic}"}
	var literal strings.Builder
	for rest := text; rest != ""; {
		switch {
		case strings.HasPrefix(rest, "{{"), strings.HasPrefix(rest, "}}"):
			literal.WriteByte(rest[0])
			rest = rest[2:]
		case rest[0] == '{':
			name, after, closed := strings.Cut(rest[1:], "}")
			value := templateField(name)
			if !closed || value == nil {
				return nil, fmt.Errorf("stream template %q: expected one of {topic}, {key}, {event_type}, {aggregate_type}, {aggregate_id} at %q; a brace itself is doubled", text, rest)
			}
			t.literals = append(t.literals, literal.String())
			t.fields = append(t.fields, value)
			literal.Reset()
			rest = after
		case rest[0] == '}':
			return nil, fmt.Errorf("stream template %q: a brace itself is doubled, as in {{orders}}:{topic}", text)
		default:
			literal.WriteByte(rest[0])
			rest = rest[1:]
		}
	}
	t.literals = append(t.literals, literal.String())
	if text == "" {
		return nil, errors.New("the stream template is empty")
	}
	return t, nil
}

// constant reports whether all messages go to one stream.
func (t *template) constant() bool { return len(t.fields) == 0 }

// stream returns the name of m's stream, or a permanent error if it can't have one.
func (t *template) stream(m *outbox.Message) (string, error) {
	name := m.Topic
	if !t.plain {
		var b strings.Builder
		b.WriteString(t.literals[0])
		for i, field := range t.fields {
			b.WriteString(field(m))
			b.WriteString(t.literals[i+1])
		}
		name = b.String()
	}
	switch {
	case name == "":
		return "", outbox.Permanent(errors.New("redis: the stream's name is empty: the fields of the template are empty in this message"))
	case strings.HasSuffix(name, recentSuffix), strings.HasSuffix(name, olderSuffix), strings.HasSuffix(name, knownSuffix):
		return "", outbox.Permanent(fmt.Errorf("redis: stream %q has the name of an index of message ids; change the message's topic", name))
	}
	return name, nil
}

// The ids of a stream's messages are kept in two sets beside it, and what is known of the sets in a string.
const (
	recentSuffix = ":outbox:recent"
	olderSuffix  = ":outbox:older"
	knownSuffix  = ":outbox:known"
)

// indexName returns the beginning of the names of a stream's sets. In a cluster they must have the stream's slot, which
// is decided by what stands between the first brace and the next closing one, unless that is nothing.
func indexName(stream string) (name string, sameSlot bool) {
	opening := strings.IndexByte(stream, '{')
	if opening >= 0 {
		if n := strings.IndexByte(stream[opening:], '}'); n > 1 {
			return stream, true // with the stream's own tag
		}
	}
	if strings.IndexByte(stream, '}') < 0 {
		return "{" + stream + "}", true
	}
	return stream, false
}
