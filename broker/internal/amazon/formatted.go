package amazon

import (
	"fmt"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/internal/printed"
)

// formatted sets the body and attributes of a message in a format, and an attribute that tells how to read the body if
// that isn't plain text. Every header needs an attribute of its own, because consumers that know the format look for it
// only there. A message with more headers than attributes is refused.
func (p Payload) formatted(e *Entry, m *outbox.Message, records format.Encoder) error {
	var record format.Record
	if err := records.Encode(&record, m); err != nil {
		return err
	}
	body, form, err := p.body(record.Value)
	if err != nil {
		return err
	}
	e.Body = body
	e.Attributes = make([]Attribute, 0, len(record.Headers)+2)
	add := func(name, value string) {
		if value != "" {
			e.Attributes = append(e.Attributes, Attribute{name, value})
		}
	}
	add(attributePayload, form)
	add(contentType, record.ContentType)
	for _, h := range record.Headers {
		if outbox.ReservedHeader(h.Name) {
			return reserved(h.Name)
		}
		if err := checkAttribute(h.Name, string(h.Value)); err != nil {
			return err
		}
		add(h.Name, string(h.Value))
	}
	if n := len(e.Attributes); n > maxAttributes {
		return refuse("%d attributes can't be sent: a message has at most %d, those of the format and the message's own "+
			"headers together; use the structured mode of CloudEvents, or drop headers by a header rule of the destination",
			n, maxAttributes)
	}
	return nil
}

// checkAttribute refuses names and values that an attribute can't have.
func checkAttribute(name, value string) error {
	switch {
	case !isAttributeName(name):
		return refuse("header %q can't be sent: an attribute's name has 1 to %d letters, digits, underscores, hyphens "+
			"and single dots, and doesn't begin with aws. or amazon.; rename it", printed.Short(name), maxName)
	case value == "":
		return refuse("header %q can't be sent: an attribute's value is not empty; drop it by a header rule of the destination",
			printed.Short(name))
	case !isText([]byte(value)):
		return refuse("header %q can't be sent: an attribute's value is UTF-8 without control characters", printed.Short(name))
	}
	return nil
}

func refuse(format string, args ...any) error { return outbox.Permanent(fmt.Errorf(format, args...)) }
