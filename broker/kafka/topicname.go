package kafka

import (
	"fmt"
	"strings"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/template"
)

// topicName builds the names of topics.
type topicName struct {
	*template.Template
	plain bool // the message's topic, unchanged

	internals bool   // messages may go to Kafka's own topics and to cursor topics
	cursors   string // the cursor topic of this destination, which messages may never go to; "" if there is none
}

func parseTopic(text string, internals bool) (topicName, error) {
	t, err := template.Parse(text, "topic", "aggregate_type", "event_type")
	if err != nil {
		return topicName{}, fmt.Errorf("topic template %q: %w", text, err)
	}
	name := topicName{Template: t, plain: text == "{topic}", internals: internals}
	// With a plain name in place of every field, the fault is the template's own.
	if fault := name.fault(t.With("x")); fault != "" {
		return topicName{}, fmt.Errorf("topic template %q: a topic %s", text, fault)
	}
	return name, nil
}

// fault returns why no message may go to this topic; "" if one may. The writer of a message names its topic. It must
// not reach, by a relay's rights, topics that only the cluster and relays write.
func (t topicName) fault(name string) string {
	switch {
	case name == t.cursors && name != "":
		return "must not be the destination's cursor topic, where its relays write alone"
	case t.internals:
	case strings.HasPrefix(name, "__"):
		return "must not begin with __, as the cluster's own do (internal_topics: true allows it)"
	case strings.HasSuffix(name, cursorSuffix):
		return "must not end with " + cursorSuffix +
			", as those do that exactly-once relays keep their cursors in (internal_topics: true allows it)"
	}
	return topicFault(name)
}

// cursorSuffix ends the default names of cursor topics.
const cursorSuffix = "-cursor"

// topicFault returns why a topic can't have this name in Kafka; "" if it can.
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
