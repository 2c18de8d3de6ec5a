package format

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/pgoutbox/outbox"
)

// Debezium makes the records that Debezium's outbox event router makes from a row of its documented table (id uuid,
// aggregatetype, aggregateid, type, payload), so a consumer written for it needs no change. The key is the ordering
// key, the value is the payload, and a header "id" has the message id. Placed columns follow, and the message's own
// headers, which a row of that table doesn't have.
//
// A format doesn't choose the topic: route by DebeziumTopic.
type Debezium struct {
	// Key, Value and Header are the converters that the consumers expect. Debezium Server's own defaults are
	// ConnectJSONSchema for all three; plain text is common.
	Key, Value, Header Converter

	// Payload is the type of the former payload column. Default PayloadJSON.
	Payload PayloadType

	// Expand is table.expand.json.payload: a payload that is a JSON object or array is sent as such, not as a string
	// with JSON in it. It needs a JSON converter for the value. As in Debezium, null members and empty arrays are left
	// out, and a payload that it can't expand is sent as a string.
	Expand bool

	// Place is table.fields.additional.placement: fields of the message that become headers, or that are put into an
	// envelope with the payload. An envelope needs a JSON converter for the value.
	Place []Placement

	// Tombstone is route.tombstone.on.empty.payload: a payload that is null or blank is sent as null.
	Tombstone bool

	// Schema is the name of the connector's value schema, "<topic.prefix>.<schema>.<table>.Value". It is only visible
	// in envelopes with ConnectJSONSchema. Default "outbox.public.outboxevent.Value".
	Schema string

	// Compact is message.format=compact of Debezium Server's sink for Redis, its default: an entry has one field, whose
	// name is the key and whose value is the value; a null of either is the text "default". There are no headers, so
	// consumers don't learn the message's id. For other protocols it has no effect.
	Compact bool
}

// DebeziumTopic is the event router's default topic as a template: route.topic.replacement
// "outbox.event.${routedByValue}".
const DebeziumTopic = "outbox.event.{aggregate_type}"

// Converter is the way in which Kafka Connect turns a value into bytes.
type Converter string

const (
	// ConnectString is StringConverter, and SimpleHeaderConverter for headers: the text itself.
	ConnectString Converter = "string"
	// ConnectJSON is JsonConverter with schemas.enable=false: a text is a JSON string, in quotes.
	ConnectJSON Converter = "json"
	// ConnectJSONSchema is JsonConverter with schemas.enable=true: {"schema":…,"payload":…}.
	ConnectJSONSchema Converter = "json-schema"
)

func (c Converter) json() bool { return c == ConnectJSON || c == ConnectJSONSchema }

// PayloadType is the type of a payload column.
type PayloadType string

const (
	PayloadJSON  PayloadType = "jsonb" // jsonb or json
	PayloadText  PayloadType = "text"
	PayloadBytes PayloadType = "bytea" // base64 with a JSON converter, the bytes themselves with ConnectString
)

// Placement puts a field of the message beside the payload. A placed header isn't also sent under its own name.
type Placement struct {
	// Field is one of event_type, aggregate_type, aggregate_id, topic, key, content_type and header.NAME.
	Field string
	// Type is the PostgreSQL type of the column: smallint, integer, bigint, real, double precision, boolean,
	// numeric(p,s), timestamptz, timestamp, date, uuid, jsonb or text. The field has the column's text, and is sent as
	// Debezium sends a value of that type: a number as a number, a time in its form. Default text.
	Type string
	// Envelope puts it into the value; otherwise it is a header.
	Envelope bool
	// Alias is its name there. Default: Debezium's name of the column (type, aggregatetype, aggregateid), or the name
	// of the field or header.
	Alias string
}

// Bind implements Format.
func (d Debezium) Bind(b Binding) (Encoder, error) {
	e := &debezium{tombstone: d.Tombstone, expand: d.Expand, schema: d.Schema}
	faults := []error{b.valid()}
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf("debezium "+format, args...)) }
	for _, c := range []struct {
		name string
		from Converter
		to   *Converter
	}{{"key", d.Key, &e.keys}, {"value", d.Value, &e.values}, {"header", d.Header, &e.headers}} {
		switch c.from {
		case "":
			c.from = ConnectString
		case ConnectString, ConnectJSON, ConnectJSONSchema:
		default:
			fault("%s: %q is not one of %s, %s, %s", c.name, c.from, ConnectString, ConnectJSON, ConnectJSONSchema)
		}
		*c.to = c.from
	}
	switch e.payload = d.Payload; e.payload {
	case "":
		e.payload = PayloadJSON
	case PayloadJSON, PayloadText, PayloadBytes:
	default:
		fault("payload: %q is not one of %s, %s, %s", d.Payload, PayloadJSON, PayloadText, PayloadBytes)
	}
	if e.schema == "" {
		e.schema = "outbox.public.outboxevent.Value"
	}
	for _, p := range d.Place {
		placed, err := place(p)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		if p.Envelope {
			e.envelope = append(e.envelope, placed)
		} else {
			e.placed = append(e.placed, placed)
		}
	}
	if !e.values.json() && d.Expand {
		fault("expand: it takes a JSON converter for the value, not %q", e.values)
	}
	if !e.values.json() && len(e.envelope) > 0 {
		fault("place: an envelope takes a JSON converter for the value, not %q", e.values)
	}
	if e.payload == PayloadBytes && d.Expand {
		fault("expand: a payload of %s is not expanded", PayloadBytes)
	}
	switch e.compact = d.Compact && b == Redis; b {
	case Redis:
		e.name = strings.ToUpper
	case HTTP:
		e.name = func(name string) string { return "X-DEBEZIUM-" + strings.ToUpper(name) }
		e.base64, e.contentType = true, "application/json"
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return e, nil
}

// column is a placed field.
type column struct {
	field, alias string
	header       string // the header that it is made from, if it is one
	kind         columnType
	schema       string // as JsonConverter writes it, without the closing brace
	value        func(*outbox.Message) (text string, there bool)
}

// Name is Alias or, without one, its default.
func (p Placement) Name() string {
	switch {
	case p.Alias != "":
		return p.Alias
	case p.Field == "event_type":
		return "type"
	case p.Field == "aggregate_type":
		return "aggregatetype"
	case p.Field == "aggregate_id":
		return "aggregateid"
	}
	return strings.TrimPrefix(p.Field, "header.")
}

func place(p Placement) (column, error) {
	c := column{field: p.Field, alias: p.Name()}
	optional := false
	always := func(value func(*outbox.Message) string) {
		c.value = func(m *outbox.Message) (string, bool) { return value(m), true }
	}
	unlessEmpty := func(value func(*outbox.Message) string) {
		optional = true
		c.value = func(m *outbox.Message) (string, bool) { text := value(m); return text, text != "" }
	}
	switch p.Field {
	case "event_type":
		always(func(m *outbox.Message) string { return m.EventType })
	case "aggregate_type":
		always(func(m *outbox.Message) string { return m.AggregateType })
	case "aggregate_id":
		always(func(m *outbox.Message) string { return m.AggregateID })
	case "topic":
		unlessEmpty(func(m *outbox.Message) string { return m.Topic })
	case "key":
		unlessEmpty((*outbox.Message).OrderingKey)
	case "content_type":
		unlessEmpty(func(m *outbox.Message) string { return m.ContentType })
	default:
		name, found := strings.CutPrefix(p.Field, "header.")
		if !found || name == "" {
			return c, fmt.Errorf("debezium place: %q is not a field of a message such as event_type, aggregate_id or header.NAME", p.Field)
		}
		optional, c.header = true, name
		c.value = func(m *outbox.Message) (string, bool) { return m.Header(c.header) }
	}
	if c.alias == "id" && !p.Envelope || c.alias == "payload" && p.Envelope {
		return c, fmt.Errorf("debezium place: %q needs another alias, %q is taken", p.Field, c.alias)
	}
	if p.Type == "" {
		p.Type = "text"
	}
	var err error
	if c.kind, err = typeNamed(p.Type); err != nil {
		return c, fmt.Errorf("debezium place: %q: type %w", p.Field, err)
	}
	c.schema = fmt.Sprintf(`{"type":"%s","optional":%t%s`, c.kind.base, optional, c.kind.named)
	return c, nil
}

// append appends the value of the column. json reports whether in JSON, which has a null. ok is false if the value
// isn't one of the column's type.
func (c *column) append(b []byte, m *outbox.Message, json bool) (to []byte, ok bool) {
	text, there := c.value(m)
	switch {
	case !there && json:
		return append(b, "null"...), true
	case !there:
		return b, true
	case c.kind.write == nil && json:
		return appendString(b, text), true
	case c.kind.write == nil:
		return append(b, text...), true
	case c.kind.quote && json:
		b, ok = c.kind.write(append(b, '"'), text, json)
		return append(b, '"'), ok
	}
	return c.kind.write(b, text, json)
}

type debezium struct {
	keys, values, headers Converter
	payload               PayloadType
	tombstone, expand     bool
	schema                string
	placed, envelope      []column
	name                  func(string) string // the name of a header in the protocol's sink
	base64                bool                // whether values of headers are base64
	contentType           string
	compact               bool
}

// Schemas in the form of JsonConverter, without the closing brace. Members come in the order type, fields or items,
// optional, name, version, and the field's name last.
const (
	schemaUUID      = `{"type":"string","optional":false,"name":"io.debezium.data.Uuid","version":1`
	schemaJSON      = `{"type":"string","optional":true,"name":"io.debezium.data.Json","version":1`
	schemaText      = `{"type":"string","optional":true`
	schemaTextThere = `{"type":"string","optional":false`
	schemaBytes     = `{"type":"bytes","optional":true`
)

// Encode implements Encoder.
func (e *debezium) Encode(r *Record, m *outbox.Message) error {
	if err := e.encode(r, m); err != nil || !e.compact {
		return err
	}
	key, value := r.Key, r.Value
	for _, part := range [...]*[]byte{&key, &value} {
		if *part == nil {
			*part = r.copy("default")
		}
	}
	r.begin()
	r.header(string(key), value)
	return nil
}

func (e *debezium) encode(r *Record, m *outbox.Message) error {
	r.begin()
	r.ContentType = e.contentType
	// A row of Debezium's table always has an aggregate, whose id may be the empty text: that is a key too.
	if key := m.OrderingKey(); key != "" || m.AggregateType != "" {
		r.Key = e.text(r, e.keys, schemaTextThere, key)
	}
	id, _ := m.ID.AppendText(r.scratch[:0]) // it never fails
	r.scratch = id
	e.header(r, "id", e.text(r, e.headers, schemaUUID, string(id)))
	for i := range e.placed {
		c := &e.placed[i]
		if _, there := c.value(m); there || e.headers.json() { // no other converter has bytes for null
			value, err := e.column(r, c, m)
			if err != nil {
				return err
			}
			e.header(r, c.alias, value)
		}
	}
	for i := range m.Headers {
		h := &m.Headers[i]
		switch placed, taken := e.placement(h.Name); {
		case placed:
		case taken:
			return refuse("header %q is written by the Debezium layout; rename or drop it by a header rule of the destination", h.Name)
		default:
			e.header(r, h.Name, e.text(r, e.headers, schemaTextThere, h.Value))
		}
	}
	if e.tombstone && len(bytes.TrimFunc(m.Payload, javaSpace)) == 0 {
		return nil
	}
	return e.value(r, m)
}

// javaSpace are the characters that String.trim removes.
func javaSpace(c rune) bool { return c <= ' ' }

// placement reports whether a header of the message was placed, and otherwise whether the layout writes a header of
// that name.
func (e *debezium) placement(name string) (placed, taken bool) {
	taken = name == "id"
	for _, columns := range [...][]column{e.placed, e.envelope} {
		for i := range columns {
			placed = placed || columns[i].header == name
		}
	}
	for i := range e.placed {
		taken = taken || e.placed[i].alias == name
	}
	return placed, taken
}

// header writes a header in the form of the protocol's sink in Debezium Server.
func (e *debezium) header(r *Record, name string, value []byte) {
	if e.name != nil {
		name = e.name(name)
	}
	if e.base64 {
		at := len(r.text)
		r.text = base64.StdEncoding.AppendEncode(r.text, value)
		value = r.from(at)
	}
	r.header(name, value)
}

// text writes a text by a converter, with its schema.
func (e *debezium) text(r *Record, c Converter, schema, text string) []byte {
	at := len(r.text)
	switch c {
	case ConnectString:
		r.text = append(r.text, text...)
	case ConnectJSON:
		r.text = appendString(r.text, text)
	case ConnectJSONSchema:
		r.text = append(r.text, `{"schema":`...)
		r.text = append(r.text, schema...)
		r.text = append(r.text, `},"payload":`...)
		r.text = appendString(r.text, text)
		r.text = append(r.text, '}')
	}
	return r.from(at)
}

// column writes a placed column as a header.
func (e *debezium) column(r *Record, c *column, m *outbox.Message) ([]byte, error) {
	at := len(r.text)
	if e.headers == ConnectJSONSchema {
		r.text = append(append(append(r.text, `{"schema":`...), c.schema...), `},"payload":`...)
	}
	var ok bool
	if r.text, ok = c.append(r.text, m, e.headers.json()); !ok {
		return nil, c.refuse()
	}
	if e.headers == ConnectJSONSchema {
		r.text = append(r.text, '}')
	}
	return r.from(at), nil
}

func (c *column) refuse() error {
	return refuse("%s doesn't hold a value of the type that its placement in the Debezium layout has; correct the type", c.field)
}

// value writes the value of the record.
func (e *debezium) value(r *Record, m *outbox.Message) error {
	if e.values == ConnectString {
		r.Value = m.Payload
		return nil
	}
	if e.payload != PayloadBytes && !utf8.Valid(m.Payload) {
		return refuse("the payload is not UTF-8, and the Debezium layout has a payload column of type %s; set it to %s",
			e.payload, PayloadBytes)
	}
	var expanded *node
	if e.expand {
		expanded = expand(m.Payload)
	}
	at := len(r.text)
	if e.values == ConnectJSONSchema {
		r.text = append(r.text, `{"schema":`...)
		e.valueSchema(r, m, expanded)
		r.text = append(r.text, `,"payload":`...)
	}
	if len(e.envelope) == 0 {
		e.appendPayload(r, m.Payload, expanded)
	} else {
		r.text = append(r.text, `{"payload":`...)
		e.appendPayload(r, m.Payload, expanded)
		for i := range e.envelope {
			c := &e.envelope[i]
			r.text = append(r.text, ',')
			r.text = appendString(r.text, c.alias)
			r.text = append(r.text, ':')
			var ok bool
			if r.text, ok = c.append(r.text, m, true); !ok {
				return c.refuse()
			}
		}
		r.text = append(r.text, '}')
	}
	if e.values == ConnectJSONSchema {
		r.text = append(r.text, '}')
	}
	r.Value = r.from(at)
	return nil
}

func (e *debezium) appendPayload(r *Record, payload []byte, expanded *node) {
	switch {
	case payload == nil:
		r.text = append(r.text, "null"...)
	case expanded != nil:
		r.text = expanded.append(r.text)
	case e.payload == PayloadBytes:
		r.text = append(r.text, '"')
		r.text = base64.StdEncoding.AppendEncode(r.text, payload)
		r.text = append(r.text, '"')
	default:
		r.text = appendString(r.text, payload)
	}
}

// valueSchema writes the schema of the value.
func (e *debezium) valueSchema(r *Record, m *outbox.Message, expanded *node) {
	payload := func(field string) {
		switch {
		case expanded != nil:
			r.text = expanded.schema.append(r.text)
		case e.payload == PayloadBytes:
			r.text = append(r.text, schemaBytes...)
		case e.payload == PayloadText:
			r.text = append(r.text, schemaText...)
		default:
			r.text = append(r.text, schemaJSON...)
		}
		r.text = append(r.text, field...)
		r.text = append(r.text, '}')
	}
	if len(e.envelope) == 0 {
		payload("")
		return
	}
	r.text = append(r.text, `{"type":"struct","fields":[`...)
	payload(`,"field":"payload"`)
	for i := range e.envelope {
		c := &e.envelope[i]
		r.text = append(r.text, ',')
		r.text = append(r.text, c.schema...)
		r.text = append(r.text, `,"field":`...)
		r.text = appendString(r.text, c.alias)
		r.text = append(r.text, '}')
	}
	r.text = append(r.text, `],"optional":false,"name":`...)
	r.text = appendString(r.text, e.schemaName(m.AggregateType))
	r.text = append(r.text, '}')
}

// schemaName is the connector's schema name with the aggregate type before its last part.
func (e *debezium) schemaName(aggregateType string) string {
	dot := strings.LastIndexByte(e.schema, '.')
	return e.schema[:dot+1] + aggregateType + "." + e.schema[dot+1:]
}
