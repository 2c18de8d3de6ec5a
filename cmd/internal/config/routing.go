package config

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/registry"
	records "github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/route"
)

// What a destination selects, under which topics and headers, and as what its messages are sent.

// Match is a condition on a message. Every pattern that is given must match.
type Match struct {
	Topic         string `json:"topic" jsonschema:"Pattern of the topic; * stands for any text."`
	EventType     string `json:"event_type" jsonschema:"Pattern of the event type."`
	AggregateType string `json:"aggregate_type" jsonschema:"Pattern of the aggregate type."`
	ContentType   string `json:"content_type" jsonschema:"Pattern of the content type."`
	Header        string `json:"header" jsonschema:"Name of a header that must be there."`
	HeaderValue   string `json:"header_value" jsonschema:"Pattern of that header's value. Empty: any."`
}

// Route chooses topics and changes headers.
type Route struct {
	Rules   []RouteRule  `json:"rules" jsonschema:"The first rule that matches a message says what becomes of it."`
	Default string       `json:"default" jsonschema:"Template of the topic of messages that no rule matches. Empty: they keep theirs (with the debezium format, outbox.event.{aggregate_type})."`
	Headers []HeaderRule `json:"headers" jsonschema:"Changes to headers, one after the other."`
}

// RouteRule is a condition with what follows from it.
type RouteRule struct {
	Topic         string `json:"topic" jsonschema:"Pattern of the topic; * stands for any text."`
	EventType     string `json:"event_type" jsonschema:"Pattern of the event type."`
	AggregateType string `json:"aggregate_type" jsonschema:"Pattern of the aggregate type."`
	ContentType   string `json:"content_type" jsonschema:"Pattern of the content type."`
	Header        string `json:"header" jsonschema:"Name of a header that must be there."`
	HeaderValue   string `json:"header_value" jsonschema:"Pattern of that header's value. Empty: any."`
	To            string `json:"to" jsonschema:"Template of the topic, with the fields {topic}, {key}, {event_type}, {aggregate_type}, {aggregate_id}, {content_type}, {id} and {header.NAME}."`
	Drop          bool   `json:"drop" jsonschema:"Leave the message out, instead of to. It counts as delivered."`
}

// HeaderRule changes a header: exactly one of Rename, Value and Drop.
type HeaderRule struct {
	Name   string `json:"name" jsonschema:"Name of the header; with drop it may be a pattern."`
	Rename string `json:"rename" jsonschema:"Its new name."`
	Value  string `json:"value" jsonschema:"Template of its value. An empty result leaves it out."`
	Drop   bool   `json:"drop" jsonschema:"Leave it out."`
}

// Format has at most one member that is not nil; with none, payloads are sent as they are.
type Format struct {
	CloudEvents *CloudEvents `json:"cloudevents" jsonschema:"CloudEvents 1.0."`
	Debezium    *Debezium    `json:"debezium" jsonschema:"The records of Debezium's outbox event router."`
}

// CloudEvents configures events.
type CloudEvents struct {
	Mode       string      `json:"mode" enum:"binary,structured" jsonschema:"binary: attributes are headers. structured: attributes and data are one JSON document."`
	Source     string      `json:"source" jsonschema:"Template of the source."`
	Type       string      `json:"type" jsonschema:"Template of the type. Empty: the event type, or the topic of a message without."`
	Subject    string      `json:"subject" jsonschema:"Template of the subject; - for none."`
	DataSchema string      `json:"dataschema" jsonschema:"Template of the address of the data's schema. Empty: none."`
	Extensions []Extension `json:"extensions" jsonschema:"Further attributes."`
}

// Extension is an attribute of events.
type Extension struct {
	Name  string `json:"name" jsonschema:"1 to 20 of a-z and 0-9."`
	Value string `json:"value" jsonschema:"Template of its value, such as {header.tenant}. An empty result leaves it out."`
}

// Debezium configures the event router's layout.
type Debezium struct {
	Key       string      `json:"key" enum:"string,json,json-schema" jsonschema:"Converter of the key: string (StringConverter), json (JsonConverter without schemas) or json-schema (with)."`
	Value     string      `json:"value" enum:"string,json,json-schema" jsonschema:"Converter of the value."`
	Header    string      `json:"header" enum:"string,json,json-schema" jsonschema:"Converter of headers."`
	Payload   string      `json:"payload" enum:"jsonb,text,bytea" jsonschema:"Type that the payload column had."`
	Expand    bool        `json:"expand" jsonschema:"table.expand.json.payload: send JSON payloads as JSON and not as strings with JSON in them."`
	Tombstone bool        `json:"tombstone" jsonschema:"route.tombstone.on.empty.payload: send empty payloads as null."`
	Place     []Placement `json:"place" jsonschema:"table.fields.additional.placement."`
	Schema    string      `json:"schema" jsonschema:"Name of the connector's value schema, for envelopes with json-schema."`
	Compact   bool        `json:"compact" jsonschema:"To Redis: an entry has one field, the key, with the value, as the sink of Debezium Server has it without message.format=extended."`
}

// Placement puts a field beside the payload.
type Placement struct {
	Field    string `json:"field" jsonschema:"event_type, aggregate_type, aggregate_id, topic, key, content_type or header.NAME. A header that is placed isn't sent under its own name besides."`
	Type     string `json:"type" jsonschema:"Type of the column: smallint, integer, bigint, real, double precision, boolean, numeric(p,s), timestamptz, timestamp, date, uuid, jsonb or text. Empty: text."`
	Envelope bool   `json:"envelope" jsonschema:"Put it into the value, and not among the headers."`
	Alias    string `json:"alias" jsonschema:"Its name there. Empty: Debezium's name of the column."`
}

// SchemaRegistry frames payloads for a schema registry's deserializers.
type SchemaRegistry struct {
	URLs         []string         `json:"urls" jsonschema:"Addresses, tried in order, such as http://registry:8081. Required."`
	Username     string           `json:"username" jsonschema:"User name. Empty: none."`
	Password     Secret           `json:"password" jsonschema:"Password."`
	PasswordFile string           `json:"password_file" jsonschema:"File that holds the password, instead of password."`
	Token        Secret           `json:"token" jsonschema:"Bearer token."`
	TokenFile    string           `json:"token_file" jsonschema:"File that holds the token, instead of token."`
	TLS          TLS              `json:"tls" jsonschema:"Transport security of https addresses."`
	Subject      string           `json:"subject" jsonschema:"Template of the subject in which a schema is looked up."`
	IDHeader     string           `json:"id_header" jsonschema:"Header by which a message names its schema's id itself."`
	IndexHeader  string           `json:"index_header" jsonschema:"Header that says which message of a Protobuf schema the payload is, such as 1,0."`
	Protobuf     bool             `json:"protobuf" jsonschema:"Ids in headers are those of Protobuf schemas."`
	Schemas      []RegistrySchema `json:"schemas" jsonschema:"Schemas by which ids are looked up, instead of the latest version of the subject."`
	Register     bool             `json:"register" jsonschema:"Register these schemas if they are not."`
	Refresh      time.Duration    `json:"refresh" jsonschema:"How long the id of the latest version is kept."`
	Timeout      time.Duration    `json:"timeout" jsonschema:"Bound of a request."`
}

// RegistrySchema is a schema of one subject.
type RegistrySchema struct {
	Subject string `json:"subject" jsonschema:"The subject. Required."`
	Type    string `json:"type" enum:"avro,json,protobuf" jsonschema:"Type of the schema."`
	File    string `json:"file" field:"Text" jsonschema:"File that holds the schema. Required."`
}

// Selection says which messages the destination wants.
func (d Destination) Selection() route.Filter {
	f := route.Filter{Topics: d.Topics}
	for _, m := range d.Filter {
		f.Any = append(f.Any, route.Match(m))
	}
	return f
}

// Table says what becomes of them.
func (d Destination) Table() route.Table {
	t := route.Table{Default: d.Route.Default}
	if t.Default == "" && d.Format.Debezium != nil {
		t.Default = records.DebeziumTopic
	}
	for _, r := range d.Route.Rules {
		t.Rules = append(t.Rules, route.Rule{
			Match: route.Match{Topic: r.Topic, EventType: r.EventType, AggregateType: r.AggregateType, ContentType: r.ContentType,
				Header: r.Header, HeaderValue: r.HeaderValue},
			To: r.To, Drop: r.Drop})
	}
	for _, h := range d.Route.Headers {
		t.Headers = append(t.Headers, route.HeaderRule{Name: h.Name, Rename: h.Rename, Value: h.Value, Drop: h.Drop})
	}
	return t
}

// Description is the format as its package has it, nil for payloads as they are.
func (f Format) Description() records.Format {
	switch {
	case f.CloudEvents != nil:
		c := f.CloudEvents
		d := records.CloudEvents{Structured: c.Mode == "structured", Source: c.Source, Type: c.Type, Subject: c.Subject,
			DataSchema: c.DataSchema}
		for _, x := range c.Extensions {
			d.Extensions = append(d.Extensions, records.Extension(x))
		}
		return d
	case f.Debezium != nil:
		c := f.Debezium
		d := records.Debezium{Key: records.Converter(c.Key), Value: records.Converter(c.Value), Header: records.Converter(c.Header),
			Payload: records.PayloadType(c.Payload), Expand: c.Expand, Tombstone: c.Tombstone, Schema: c.Schema, Compact: c.Compact}
		for _, p := range c.Place {
			d.Place = append(d.Place, records.Placement(p))
		}
		return d
	}
	return nil
}

// routing checks what the packages route and format have to say about a destination.
func (d *Destination) checkRouting(r *report, path string) {
	selection := d.Selection()
	selection.Topics = nil // checked already
	for _, fault := range settings.List(selection.Check()) {
		r.fault(r.originOf(path+".filter"), path+".filter", "%v", fault)
	}
	f := d.Format
	r.check(f.CloudEvents == nil || f.Debezium == nil, path+".format",
		"cloudevents and debezium are given; keep one, or make a destination of each")
	if f.Debezium != nil {
		r.check(!f.Debezium.Compact || d.Broker.Redis != nil, path+".format.debezium.compact",
			"true, but the broker is not Redis; leave it out")
		d.checkPlacements(r, path)
	}
}

// placements checks, by a message that has every header that can be known here, that a header which the Debezium layout
// places is there when the header rules have been applied, and that no column becomes one which the layout writes
// itself.
func (d *Destination) checkPlacements(r *report, path string) {
	rules, err := route.Table{Headers: d.Table().Headers}.Parse()
	if err != nil {
		return // reported already
	}
	var m mapping.Mapping
	if d.Source != nil {
		_, m = d.Source.Resolve()
	}
	probe := outbox.Message{Topic: "t"}
	add := func(name string) {
		if _, there := probe.Header(name); !there {
			probe.Headers = append(probe.Headers, outbox.Header{Name: name, Value: "v"})
		}
	}
	for _, h := range m.HeaderColumns {
		add(h.Name)
	}
	placed, written := map[string]bool{}, map[string]bool{"id": true}
	for _, p := range d.Format.Debezium.Place {
		if name, of := strings.CutPrefix(p.Field, "header."); of {
			placed[name] = true
			if d.Source == nil || m.Headers != "" {
				add(name)
			}
		}
		written[records.Placement(p).Name()] = written[records.Placement(p).Name()] || !p.Envelope
	}
	_ = rules.Apply(&probe) // a template that gives a topic to none is reported elsewhere
	at := path + ".format.debezium.place"
	for i, p := range d.Format.Debezium.Place {
		name, of := strings.CutPrefix(p.Field, "header.")
		_, there := probe.Header(name)
		r.check(!of || there, element(at, i), "no message has a header %q when it is placed: a rule in route.headers "+
			"takes it away before, or no column becomes it (source.columns.header_columns: [%s=COLUMN])", name, name)
	}
	for _, h := range m.HeaderColumns {
		_, sent := probe.Header(h.Name)
		r.check(!sent || placed[h.Name] || !written[h.Name], at,
			"the layout writes a header %q itself, which the column %q becomes too, so every message with a value "+
				"would be refused: place header.%s, or rename it in route.headers", h.Name, h.Column, h.Name)
	}
}

func (r *SchemaRegistry) SetDefaults() { adopt(r, registry.Defaults()) }

func (r *RegistrySchema) SetDefaults() { r.Type = "avro" }

func (c *CloudEvents) SetDefaults() {
	c.Mode, c.Source, c.Subject = "binary", records.DefaultSource, "{aggregate_id}"
}

func (d *Debezium) SetDefaults() {
	*d = Debezium{Key: "string", Value: "string", Header: "string", Payload: "jsonb", Schema: "outbox.public.outboxevent.Value"}
}

// open makes what frames payloads, or reports all faults together.
func (r *SchemaRegistry) open() (*registry.Framer, error) {
	var faults settings.Faults
	cfg := registry.Config{
		URLs: r.URLs, Username: r.Username, Password: r.Password.Text(), Token: r.Token.Text(), TLS: r.TLS.config(&faults),
		Subject: r.Subject, IDHeader: r.IDHeader, IndexHeader: r.IndexHeader, Protobuf: r.Protobuf, Register: r.Register,
		Refresh: r.Refresh, Timeout: r.Timeout,
	}
	for i, s := range r.Schemas {
		text, field := []byte(nil), fmt.Sprintf("Schemas[%d].Text", i)
		if s.File == "" {
			faults.Need(false, field, "not given; name the file that holds the schema")
		} else {
			var err error
			text, err = os.ReadFile(s.File)
			faults.Add(field, unreadable(s.File, err))
			if err != nil {
				text = []byte(s.File) // so that it isn't called empty too
			}
		}
		cfg.Schemas = append(cfg.Schemas, registry.Schema{Subject: s.Subject, Type: s.Type, Text: string(text)})
	}
	framer, err := registry.New(cfg)
	faults.Add("", err)
	return framer, faults.Err()
}
