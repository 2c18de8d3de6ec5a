package config

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
