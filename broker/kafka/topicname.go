package kafka

import (
	"fmt"
	"strings"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/template"
)

// topicName makes the names of topics.
type topicName struct {
	*template.Template
	plain bool // the message's topic as it is

	internals bool   // messages may go to what is Kafka's own and to cursor topics
	cursors   string // this destination's own cursor topic, "" if it has none: never
}

func parseTopic(text string, internals bool) (topicName, error) {
	t, err := template.Parse(text, "topic", "aggregate_type", "event_type")
	if err != nil {
		return topicName{}, fmt.Errorf("topic template %q: %w", text, err)
	}
	name := topicName{Template: t, plain: text == "{topic}", internals: internals}
	// With every field standing for a plain name, what is left is the template's own.
	if fault := name.fault(t.With("x")); fault != "" {
		return topicName{}, fmt.Errorf("topic template %q: a topic %s", text, fault)
	}
	return name, nil
}

// fault tells why no message may go to the topic of this name; "" if one may. Whoever may write a message names its topic, and
// must not reach by a relay's rights what only the cluster and relays write.
func (t topicName) fault(name string) string {
	switch {
	case name == t.cursors && name != "":
		return "must not be the destination's cursor topic, where its relays write alone"
	case t.internals:
	case strings.HasPrefix(name, "__"):
		return "must not begin with __, as the cluster's own do (internal_topics: true allows it)"
	case strings.HasSuffix(name, cursorSuffix):
		return "must not end with " + cursorSuffix + ", as those do that exactly-once relays keep their cursors in (internal_topics: true allows it)"
	}
	return topicFault(name)
}

// cursorSuffix ends the names of cursor topics, unless they are given.
const cursorSuffix = "-cursor"

// topicFault tells why Kafka takes no topic of this name; "" if it does.
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
