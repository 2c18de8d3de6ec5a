package pubsub

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/internal/printed"
	"github.com/pgoutbox/outbox/internal/template"
	"google.golang.org/protobuf/proto"
)

// Limits of the service.
const (
	maxMessage    = 10_000_000 // bytes, attributes included
	maxAttributes = 100
	maxName       = 256  // bytes of an attribute's name
	maxValue      = 1024 // bytes of an attribute's value
	maxKey        = 1024 // bytes
)

func parseTopic(text string) (*template.Template, error) {
	t, err := template.Parse(text, "topic", "aggregate_type", "event_type")
	if err != nil {
		return nil, fmt.Errorf("topic template %q: %w", text, err)
	}
	// With a plain name in place of every field, the fault is the template's own.
	if fault := topicFault(t.With("xxx")); fault != "" {
		return nil, fmt.Errorf("topic template %q %s", text, fault)
	}
	return t, nil
}

// topicOf returns the id of m's topic, or a permanent error if it can't be one.
func topicOf(t *template.Template, m *outbox.Message) (string, error) {
	id := t.Expand(m)
	if fault := topicFault(id); fault != "" {
		return "", outbox.Permanent(fmt.Errorf("pubsub: topic %q %s", printed.Short(id), fault))
	}
	return id, nil
}

// topicFault returns why a topic can't have this id; "" if it can.
func topicFault(id string) string {
	if len(id) < 3 || len(id) > 255 {
		return "can't be the id of a topic, which has 3 to 255 characters"
	}
	for i := range len(id) {
		c := id[i]
		letter := 'a' <= c|0x20 && c|0x20 <= 'z'
		if !letter && (i == 0 || (c < '0' || c > '9') && !strings.ContainsRune("-_.~+%", rune(c))) {
			return fmt.Sprintf("can't be the id of a topic: it begins with a letter and has letters, digits and -_.~+%% "+
				"alone, and this has %q", c)
		}
	}
	if strings.HasPrefix(strings.ToLower(id), "goog") {
		return "can't be the id of a topic: those that begin with goog are reserved"
	}
	return ""
}

// encode returns m as it is sent to a topic, and its size in bytes: in the format of records, or without a format its
// payload, which is not copied, with our attributes.
func encode(m *outbox.Message, topic string, records format.Encoder) (*pubsubpb.PubsubMessage, int, error) {
	key := m.OrderingKey()
	if len(key) > maxKey {
		return nil, 0, refuse("a key of %d bytes can't be sent: an ordering key has at most %d", len(key), maxKey)
	}
	data := m.Payload
	var attributes map[string]string
	var err error
	if records == nil {
		attributes, err = plainAttributes(m, topic)
	} else {
		data, attributes, err = formatted(m, records)
	}
	if err != nil {
		return nil, 0, err
	}
	if err := checkAttributes(attributes); err != nil {
		return nil, 0, err
	}
	sent := &pubsubpb.PubsubMessage{Data: data, Attributes: attributes, OrderingKey: key}
	size := proto.Size(sent)
	if size > maxMessage {
		return nil, 0, refuse("a message of %d bytes can't be sent: it has at most %d, attributes included", size, maxMessage)
	}
	return sent, size, nil
}

func refuse(format string, args ...any) error {
	return outbox.Permanent(fmt.Errorf("pubsub: "+format, args...))
}

// formatted returns the data and attributes of m in its format.
func formatted(m *outbox.Message, records format.Encoder) ([]byte, map[string]string, error) {
	var record format.Record // the message uses its memory, so it is not reused
	if err := records.Encode(&record, m); err != nil {
		return nil, nil, err
	}
	attributes := make(map[string]string, len(record.Headers)+2)
	for _, h := range record.Headers {
		if reserved(h.Name) {
			return nil, nil, refuse("header %q can't be sent: names with the prefixes outbox- and goog are reserved; rename it",
				printed.Short(h.Name))
		}
		attributes[h.Name] = string(h.Value)
	}
	if record.ContentType != "" {
		// Google's binding of CloudEvents requires one name, the SDK for Go looks for the other.
		attributes["content-type"], attributes["Content-Type"] = record.ContentType, record.ContentType
	}
	return record.Value, attributes, nil
}

// plainAttributes are the attributes of a message that is sent without a format.
func plainAttributes(m *outbox.Message, topic string) (map[string]string, error) {
	attributes := make(map[string]string, len(m.Headers)+8)
	for i := range m.Headers {
		h := &m.Headers[i]
		switch {
		case reserved(h.Name):
			return nil, refuse("header %q can't be sent: names with the prefixes outbox- and goog are reserved; rename it",
				printed.Short(h.Name))
		case m.ContentType != "" && strings.EqualFold(h.Name, "content-type"):
			continue
		}
		attributes[h.Name] = h.Value
	}
	set := func(name, value string) {
		if value != "" {
			attributes[name] = value
		}
	}
	set("outbox-id", m.ID.String())
	if m.Payload == nil {
		set("outbox-payload", "null")
	}
	if topic != m.Topic {
		set("outbox-topic", m.Topic)
	}
	set("outbox-event-type", m.EventType)
	set("outbox-aggregate-type", m.AggregateType)
	set("outbox-aggregate-id", m.AggregateID)
	set("content-type", m.ContentType)
	if !m.CreatedAt.IsZero() {
		set("outbox-created-at", m.CreatedAt.UTC().Format("2006-01-02T15:04:05.000000Z07:00"))
	}
	return attributes, nil
}

func checkAttributes(attributes map[string]string) error {
	if len(attributes) > maxAttributes {
		return refuse("%d attributes can't be sent: a message has at most %d, up to eight of them of ours", len(attributes), maxAttributes)
	}
	for name, value := range attributes {
		switch {
		case name == "" || len(name) > maxName:
			return refuse("an attribute's name of %d bytes can't be sent: it has 1 to %d", len(name), maxName)
		case len(value) > maxValue:
			return refuse("attribute %q of %d bytes can't be sent: its value has at most %d", printed.Short(name), len(value), maxValue)
		case !utf8.ValidString(name) || !utf8.ValidString(value):
			return refuse("attribute %q can't be sent: it is not UTF-8", printed.Short(name))
		}
	}
	return nil
}

func reserved(name string) bool {
	return outbox.ReservedHeader(name) || strings.HasPrefix(strings.ToLower(name), "goog")
}
