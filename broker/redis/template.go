package redis

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/template"
)

// parseTemplate reads a template. The hash tag of a Redis Cluster is written with doubled braces: "{{orders}}:{topic}".
func parseTemplate(text string) (*template.Template, error) {
	t := &template.Template{}
	var literal strings.Builder
	for rest := text; rest != ""; {
		switch {
		case strings.HasPrefix(rest, "{{"), strings.HasPrefix(rest, "}}"):
			literal.WriteByte(rest[0])
			rest = rest[2:]
		case rest[0] == '{':
			name, after, closed := strings.Cut(rest[1:], "}")
			if !closed || !slices.Contains(template.Names(), name) {
				return nil, fmt.Errorf("stream template %q: expected one of {topic}, {key}, {event_type}, "+
					"{aggregate_type}, {aggregate_id} at %q; a brace itself is doubled", text, rest)
			}
			t.Literals = append(t.Literals, literal.String())
			t.Fields = append(t.Fields, template.Named(name))
			literal.Reset()
			rest = after
		case rest[0] == '}':
			return nil, fmt.Errorf("stream template %q: a brace itself is doubled, as in {{orders}}:{topic}", text)
		default:
			literal.WriteByte(rest[0])
			rest = rest[1:]
		}
	}
	t.Literals = append(t.Literals, literal.String())
	if text == "" {
		return nil, errors.New("the stream template is empty")
	}
	return t, nil
}

// streamOf returns the name of m's stream, or a permanent error if it can't have one.
func streamOf(t *template.Template, m *outbox.Message) (string, error) {
	name := t.Expand(m)
	switch {
	case name == "":
		return "", outbox.Permanent(errors.New("redis: the stream's name is empty: the fields of the template are empty in this message"))
	case strings.HasSuffix(name, recentSuffix), strings.HasSuffix(name, olderSuffix), strings.HasSuffix(name, knownSuffix):
		return "",
			outbox.Permanent(fmt.Errorf("redis: stream %q has the name of an index of message ids; change the message's topic", name))
	case strings.HasPrefix(name, oncePrefix) && !strings.HasPrefix(t.Literals[0], oncePrefix):
		return "", outbox.Permanent(
			fmt.Errorf("redis: stream %q has the name of a note that an effect was made; change the message's topic", name))
	}
	return name, nil
}

// The ids of a stream's messages are in two sets beside it, and the record about these sets is in a string.
const (
	recentSuffix = ":outbox:recent"
	olderSuffix  = ":outbox:older"
	knownSuffix  = ":outbox:known"
)

// oncePrefix begins the keys of package once by default.
const oncePrefix = "outbox:once:"

// indexName returns the beginning of the names of a stream's sets. In a cluster they must have the stream's slot, which
// is decided by the text between the first brace and the next closing one, if it isn't empty.
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
