package format

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/route"
)

// CloudEvents makes CloudEvents 1.0. The attributes are
//
//	id                     the message id, so that a repeat of a delivery is recognised
//	source, type, subject  by the templates below
//	time                   when the message was inserted
//	datacontenttype        the message's content type, if it has one
//	dataschema             by the template below, if that gives something
//	partitionkey           the ordering key, if there is one; it is the record's key as well
//	sequence               the position, with leading zeros, which grows within a key
//	traceparent, tracestate  the message's headers of these names, if any
//
// The headers of the message are kept beside it under their own names, traceparent and tracestate too.
// One that looks like an attribute (ce_id in Kafka, ce-id in HTTP and so on) is refused.
type CloudEvents struct {
	// Structured puts attributes and data together into one JSON document. Without it (binary mode) the value is the
	// payload unchanged, and attributes are headers.
	Structured bool

	// Source, Type and Subject are templates; see route.Template. Source defaults to "/outbox". Type defaults to
	// "{event_type}", and to the topic for messages without an event type. Subject defaults to "{aggregate_id}"; an
	// empty subject is left out. "-" always leaves it out.
	Source  string
	Type    string
	Subject string

	// DataSchema is a template of the dataschema attribute. Default: none.
	DataSchema string

	// Extensions are further attributes. An attribute with an empty value is left out.
	Extensions []Extension
}

// Extension is an attribute beyond those of the specification.
type Extension struct {
	Name  string // 1 to 20 of a-z and 0-9
	Value string // template
}

const (
	// The content type has no charset, because JSON has none: the SDK for JavaScript compares the whole text, and knows
	// this one and one in lower case.
	structuredJSON = "application/cloudevents+json"

	// DefaultSource is the default source of events.
	DefaultSource = "/outbox"
)

// attribute is an index into attributeNames, or beyond them into the extensions.
type attribute int

const (
	specVersion attribute = iota
	eventID
	source
	eventType
	subject
	eventTime
	dataContentType
	dataSchema
	partitionKey
	sequence
	traceParent
	traceState
)

// attributeNames are the names of the fixed attributes.
var attributeNames = [...]string{"specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema",
	"partitionkey", "sequence", "traceparent", "tracestate"}

// Bind implements Format.
func (c CloudEvents) Bind(b Binding) (Encoder, error) {
	e := &cloudEvents{structured: c.Structured, percent: b.percent() && !c.Structured, prefix: b.prefix(),
		typeAttribute: b == NATS || b == PubSub}
	faults := []error{b.valid()}
	parse := func(what, text, standard string) route.Template {
		if text == "" {
			text = standard
		}
		t, err := route.ParseTemplate(text)
		if err != nil {
			faults = append(faults, fmt.Errorf("cloudevents %s: %w", what, err))
		}
		return t
	}
	e.source = parse("source", c.Source, DefaultSource)
	e.kind = parse("type", c.Type, "{event_type}")
	e.topicAsType = c.Type == ""
	if c.Subject != "-" {
		e.subject = parse("subject", c.Subject, "{aggregate_id}")
	}
	e.dataSchema = parse("dataschema", c.DataSchema, "")
	for _, x := range c.Extensions {
		if !attributeName(x.Name) {
			faults = append(faults, fmt.Errorf("cloudevents extension %q: a name is 1 to 20 of a-z and 0-9", x.Name))
		}
		if x.Name == "data" || slices.Contains(attributeNames[:], x.Name) ||
			slices.ContainsFunc(e.extensions, func(y extension) bool { return y.name == x.Name }) {
			faults = append(faults, fmt.Errorf("cloudevents extension %q: there is an attribute of this name already", x.Name))
		}
		e.extensions = append(e.extensions, extension{x.Name, parse("extension "+x.Name, x.Value, "")})
	}
	for _, name := range attributeNames {
		e.names = append(e.names, e.prefix+name)
	}
	for _, x := range e.extensions {
		e.names = append(e.names, e.prefix+x.name)
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return e, nil
}

func attributeName(name string) bool {
	if name == "" || len(name) > 20 {
		return false
	}
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

type cloudEvents struct {
	structured    bool
	percent       bool
	prefix        string
	typeAttribute bool // the content type is an attribute as well
	topicAsType   bool // an empty type is replaced by the topic

	names []string // of attributes, with their prefixes

	source, kind, subject, dataSchema route.Template
	extensions                        []extension
}

type extension struct {
	name  string
	value route.Template
}

// Encode implements Encoder.
func (e *cloudEvents) Encode(r *Record, m *outbox.Message) error {
	r.begin()
	if key := m.OrderingKey(); key != "" {
		r.Key = r.copy(key)
	}
	if err := e.headers(r, m); err != nil {
		return err
	}
	contentType := contentType(m)
	if !e.structured {
		r.Value, r.ContentType = m.Payload, contentType
		return e.attributes(r, m, contentType)
	}
	at := len(r.text)
	if err := e.attributes(r, m, contentType); err != nil {
		return err
	}
	r.text[at] = '{' // replaces the comma before the first attribute
	r.text = appendData(r.text, m.Payload, contentType)
	r.text = append(r.text, '}')
	r.Value, r.ContentType = r.from(at), structuredJSON
	return nil
}

// attributes writes all attributes, in the order of the specification.
func (e *cloudEvents) attributes(r *Record, m *outbox.Message, contentType string) error {
	write(e, r, specVersion, "1.0")
	r.scratch, _ = m.ID.AppendText(r.scratch[:0]) // it never fails
	write(e, r, eventID, r.scratch)

	r.scratch = e.source.Append(r.scratch[:0], m)
	if len(r.scratch) == 0 {
		return refuse("the CloudEvents source is empty for this message; give the destination's template a constant part")
	}
	write(e, r, source, r.scratch)

	r.scratch = e.kind.Append(r.scratch[:0], m)
	if len(r.scratch) == 0 && e.topicAsType {
		r.scratch = append(r.scratch, m.Topic...)
	}
	if len(r.scratch) == 0 {
		return refuse("the CloudEvents type is empty for this message; set its event type, or give the destination's " +
			"template a constant part")
	}
	write(e, r, eventType, r.scratch)

	e.optional(r, subject, &e.subject, m)
	if !m.CreatedAt.IsZero() {
		r.scratch = m.CreatedAt.UTC().AppendFormat(r.scratch[:0], timeLayout)
		write(e, r, eventTime, r.scratch)
	}
	if contentType != "" && (e.structured || e.typeAttribute) {
		write(e, r, dataContentType, contentType)
	}
	e.optional(r, dataSchema, &e.dataSchema, m)
	if len(r.Key) > 0 {
		write(e, r, partitionKey, r.Key)
	}
	if m.Position > 0 {
		r.scratch = appendSequence(r.scratch[:0], m.Position)
		write(e, r, sequence, r.scratch)
	}
	for _, name := range [...]attribute{traceParent, traceState} {
		if value, ok := m.Header(attributeNames[name]); ok && value != "" {
			write(e, r, name, value)
		}
	}
	for i := range e.extensions {
		e.optional(r, attribute(len(attributeNames)+i), &e.extensions[i].value, m)
	}
	return nil
}

const timeLayout = "2006-01-02T15:04:05.000000Z07:00"

func (e *cloudEvents) optional(r *Record, name attribute, value *route.Template, m *outbox.Message) {
	if r.scratch = value.Append(r.scratch[:0], m); len(r.scratch) > 0 {
		write(e, r, name, r.scratch)
	}
}

// appendSequence writes a position such that texts sort like the numbers.
func appendSequence(b []byte, position int64) []byte {
	const digits = 19 // of the largest position
	for limit, n := int64(1e18), 0; n < digits-1 && position < limit; limit, n = limit/10, n+1 {
		b = append(b, '0')
	}
	return strconv.AppendInt(b, position, 10)
}

// write writes an attribute in the place that the mode gives it.
func write[T string | []byte](e *cloudEvents, r *Record, name attribute, value T) {
	if e.structured {
		r.text = append(r.text, ',')
		r.text = appendString(r.text, e.names[name][len(e.prefix):])
		r.text = append(r.text, ':')
		r.text = appendString(r.text, value)
		return
	}
	at := len(r.text)
	if e.percent {
		r.text = appendPercent(r.text, value)
	} else {
		r.text = append(r.text, value...)
	}
	r.header(e.names[name], r.from(at))
}

// appendData appends the JSON document's member with the payload, if there is one.
func appendData(b, payload []byte, contentType string) []byte {
	switch {
	case payload == nil:
		return b
	case isJSON(contentType) && utf8.Valid(payload) && json.Valid(payload):
		b = append(b, `,"data":`...)
		return append(b, payload...)
	case contentType != "" && !isJSON(contentType) && strings.HasPrefix(contentType, "text/") && utf8.Valid(payload):
		b = append(b, `,"data":`...)
		return appendString(b, payload)
	}
	b = append(b, `,"data_base64":"`...)
	b = base64.StdEncoding.AppendEncode(b, payload)
	return append(b, '"')
}

// isJSON reports whether data of the content type is written as a JSON value. By the specification, an event without a
// content type is JSON. Other types of JSON, such as application/vnd.shop+json, are sent as base64, which the
// specification allows for any data: the SDK for Go reads them in no other form (its issue 1273).
func isJSON(contentType string) bool {
	media, _, _ := strings.Cut(contentType, ";")
	media = strings.TrimSpace(media)
	return media == "" || strings.EqualFold(media, "application/json") || strings.EqualFold(media, "text/json")
}

// contentType is the message's content type, or the header that stands for it.
func contentType(m *outbox.Message) string {
	if m.ContentType != "" {
		return m.ContentType
	}
	for i := range m.Headers {
		if strings.EqualFold(m.Headers[i].Name, contentTypeHeader) {
			return m.Headers[i].Value
		}
	}
	return ""
}

const contentTypeHeader = "content-type"

// headers copies the message's headers.
func (e *cloudEvents) headers(r *Record, m *outbox.Message) error {
	for i := range m.Headers {
		h := &m.Headers[i]
		if len(h.Name) == len(contentTypeHeader) && strings.EqualFold(h.Name, contentTypeHeader) {
			continue
		}
		if len(h.Name) > len(e.prefix) && strings.EqualFold(h.Name[:len(e.prefix)], e.prefix) {
			return refuse("header %q would be taken for a CloudEvents attribute; rename it, or drop it by a header rule of the destination",
				h.Name)
		}
		r.header(h.Name, r.copy(h.Value))
	}
	return nil
}
