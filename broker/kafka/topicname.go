package kafka

import (
	"fmt"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/template"
)

// topicName makes the names of topics.
type topicName struct {
	*template.Template
	plain bool // the message's topic as it is
}

func parseTopic(text string) (topicName, error) {
	t, err := template.Parse(text, "topic", "aggregate_type", "event_type")
	if err != nil {
		return topicName{}, fmt.Errorf("topic template %q: %w", text, err)
	}
	// With every field standing for a plain name, what is left is the template's own.
	if fault := topicFault(t.With("x")); fault != "" {
		return topicName{}, fmt.Errorf("topic template %q: a topic %s", text, fault)
	}
	return topicName{t, text == "{topic}"}, nil
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
