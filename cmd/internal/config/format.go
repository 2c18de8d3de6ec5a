package config

import (
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	records "github.com/pgoutbox/outbox/format"
)

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

// SetDefaults gives binary events with the aggregate as their subject.
func (c *CloudEvents) SetDefaults() {
	c.Mode, c.Source, c.Subject = "binary", records.DefaultSource, "{aggregate_id}"
}

// SetDefaults gives the layout that Debezium's router has by default.
func (d *Debezium) SetDefaults() {
	*d = Debezium{Key: "string", Value: "string", Header: "string", Payload: "jsonb", Schema: "outbox.public.outboxevent.Value"}
}

// Description is the format as its package has it, nil for payloads as they are.
func (f Format) Description() records.Format {
	switch {
	case f.CloudEvents != nil:
		c := f.CloudEvents
		d := records.CloudEvents{Structured: c.Mode == "structured"}
		fields.Assign(&d, *c)
		return d
	case f.Debezium != nil:
		var d records.Debezium
		fields.Assign(&d, *f.Debezium)
		return d
	}
	return nil
}
