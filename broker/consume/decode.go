package consume

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/pgoutbox/outbox"
)

// CloudEvent is a [Config.Decode] for messages in the format CloudEvents, in binary or structured mode, from
// [github.com/pgoutbox/outbox/format.CloudEvents] or other producers. id, type, time and partitionkey become ID,
// EventType, CreatedAt and Key; the other attributes become headers under their plain names. An id that is not a UUID
// is an error: ids of other producers need a Decode of your own and the inbox's DedupKey.
func CloudEvent(msg *outbox.Message) error {
	if media, _, err := mime.ParseMediaType(msg.ContentType); err == nil && media == "application/cloudevents+json" {
		return structured(msg)
	}
	attributes := map[string]string{}
	own := msg.Headers[:0:0]
	encoded := false
	for _, h := range msg.Headers {
		name, found := strings.CutPrefix(strings.ToLower(h.Name), "ce-")
		encoded = encoded || found
		if !found {
			name, found = strings.CutPrefix(strings.ToLower(h.Name), "ce_")
		}
		if !found {
			name, found = strings.CutPrefix(h.Name, "cloudEvents:")
		}
		if found {
			attributes[name] = h.Value
		} else {
			own = append(own, h)
		}
	}
	if encoded { // the bindings with hyphens use percent-encoding
		for name, value := range attributes {
			if text, err := url.PathUnescape(value); err == nil {
				attributes[name] = text
			}
		}
	}
	msg.Headers = own
	return attribute(msg, attributes)
}

func structured(msg *outbox.Message) error {
	var event map[string]json.RawMessage
	if err := json.Unmarshal(msg.Payload, &event); err != nil {
		return fmt.Errorf("the event is no JSON object: %w", err)
	}
	attributes := map[string]string{}
	msg.Payload, msg.ContentType = nil, ""
	for name, raw := range event {
		switch name {
		case "data":
			msg.Payload = raw
		case "data_base64":
			var text string
			err := json.Unmarshal(raw, &text)
			if err == nil {
				msg.Payload, err = base64.StdEncoding.DecodeString(text)
			}
			if err != nil {
				return fmt.Errorf("data_base64: %w", err)
			}
		default:
			var text string
			if json.Unmarshal(raw, &text) != nil {
				text = string(raw)
			}
			attributes[name] = text
		}
	}
	msg.ContentType = attributes["datacontenttype"]
	// Data that is not JSON is a JSON string.
	if media, _, _ := mime.ParseMediaType(cmp.Or(msg.ContentType, "application/json")); event["data"] != nil &&
		media != "application/json" && !strings.HasSuffix(media, "+json") && media != "text/json" {
		var text string
		if err := json.Unmarshal(msg.Payload, &text); err == nil {
			msg.Payload = []byte(text)
		}
	}
	return attribute(msg, attributes)
}

// attribute puts the attributes of an event into the fields of a message.
func attribute(msg *outbox.Message, attributes map[string]string) (err error) {
	if attributes["id"] == "" {
		return errors.New("it is no CloudEvent: it has no id")
	}
	if msg.ID, err = outbox.ParseID(attributes["id"]); err != nil {
		return fmt.Errorf("id: %w", err)
	}
	msg.EventType = attributes["type"]
	msg.Key = cmp.Or(attributes["partitionkey"], msg.Key)
	if at := attributes["time"]; at != "" {
		if msg.CreatedAt, err = time.Parse(time.RFC3339Nano, at); err != nil {
			return fmt.Errorf("time: %w", err)
		}
	}
	msg.ContentType = cmp.Or(msg.ContentType, attributes["datacontenttype"])
	for _, name := range []string{"id", "type", "time", "partitionkey", "specversion", "datacontenttype", "sequence"} {
		delete(attributes, name) // the event's sequence is not a number within its key
	}
	extra := make([]outbox.Header, 0, len(attributes))
	for name, value := range attributes {
		if !slices.ContainsFunc(msg.Headers, func(h outbox.Header) bool { return h.Name == name }) {
			extra = append(extra, outbox.Header{Name: name, Value: value})
		}
	}
	slices.SortFunc(extra, func(a, b outbox.Header) int { return strings.Compare(a.Name, b.Name) })
	msg.Headers = append(msg.Headers, extra...)
	return nil
}

// Debezium is a [Config.Decode] for records in the layout of Debezium's outbox event router: the message's id is the
// header "id", with or without the quotes of a JSON converter. Everything else is unchanged.
func Debezium(msg *outbox.Message) (err error) {
	for i, h := range msg.Headers {
		if h.Name != "id" {
			continue
		}
		text := h.Value
		var unquoted string
		var schema struct{ Payload string }
		switch {
		case json.Unmarshal([]byte(text), &unquoted) == nil:
			text = unquoted
		case json.Unmarshal([]byte(text), &schema) == nil:
			text = schema.Payload
		}
		if msg.ID, err = outbox.ParseID(text); err != nil {
			return fmt.Errorf("header id: %w", err)
		}
		msg.Headers = slices.Delete(slices.Clone(msg.Headers), i, i+1)
		return nil
	}
	return errors.New("it is no record of an outbox: it has no header id")
}
