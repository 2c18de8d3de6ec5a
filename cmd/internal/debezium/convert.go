// Package debezium turns a configuration of Debezium into one of the relay: the properties of Debezium Server, or a
// connector of Kafka Connect as JSON.
package debezium

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/magiconair/properties"

	records "github.com/pgoutbox/outbox/format"
)

// Converted is a configuration of the relay.
type Converted struct {
	YAML  []byte   // the notes come first, as comments
	Notes []string // what a person has to look at, a sentence each
}

// The relay's configuration, as far as Debezium's has a counterpart. The package config checks it.
type (
	file struct {
		Database     database      `yaml:"database"`
		Destinations []destination `yaml:"destinations"`
	}
	database struct {
		URL string `yaml:"url"`
	}
	destination struct {
		Name        string         `yaml:"name"`
		Source      source         `yaml:"source"`
		Replication replication    `yaml:"replication"`
		Route       *route         `yaml:"route,omitempty"`
		Format      map[string]any `yaml:"format"`
		Broker      map[string]any `yaml:"broker"`
	}
	source struct {
		Preset   string  `yaml:"preset"`
		Strategy string  `yaml:"strategy"`
		Table    string  `yaml:"table,omitempty"`
		Columns  columns `yaml:"columns,omitempty"`
	}
	columns struct {
		ID            string   `yaml:"id,omitempty"`
		Topic         string   `yaml:"topic,omitempty"`
		Key           string   `yaml:"key,omitempty"`
		EventType     string   `yaml:"event_type,omitempty"`
		Payload       string   `yaml:"payload,omitempty"`
		HeaderColumns []string `yaml:"header_columns,omitempty"`
	}
	replication struct {
		Slot        string `yaml:"slot"`
		Publication string `yaml:"publication"`
	}
	route struct {
		Default string `yaml:"default"`
	}
	layout struct {
		Key       string      `yaml:"key"`
		Value     string      `yaml:"value"`
		Header    string      `yaml:"header"`
		Payload   string      `yaml:"payload,omitempty"`
		Expand    bool        `yaml:"expand,omitempty"`
		Tombstone bool        `yaml:"tombstone,omitempty"`
		Place     []placement `yaml:"place,omitempty"`
		Schema    string      `yaml:"schema,omitempty"`
		Compact   bool        `yaml:"compact,omitempty"`
	}
	placement struct {
		Field    string `yaml:"field"`
		Envelope bool   `yaml:"envelope,omitempty"`
		Alias    string `yaml:"alias,omitempty"`
	}
)

// Convert reads text, which is an application.properties or a connector's JSON. Passwords are not copied. An error
// means that it is no outbox in PostgreSQL, or that its converters or sink have no counterpart.
func Convert(text []byte) (Converted, error) {
	r, err := parse(text)
	if err != nil {
		return Converted{}, err
	}
	d, err := r.destination()
	if err != nil {
		return Converted{}, err
	}
	body, err := yaml.MarshalWithOptions(file{database{r.database()}, []destination{d}}, yaml.IndentSequence(true))
	if err != nil {
		return Converted{}, err
	}
	r.rest()
	var out bytes.Buffer
	for _, note := range r.notes {
		fmt.Fprintf(&out, "# %s\n", strings.ReplaceAll(note, "\n", " "))
	}
	out.Write(append(bytes.TrimRight(body, "\n"), '\n'))
	return Converted{out.Bytes(), r.notes}, nil
}

// reader hands out settings by the names that Kafka Connect has for them. Each is taken once; what is left has no
// counterpart.
type reader struct {
	left    map[string]string
	server  bool   // of Debezium Server, and not of Kafka Connect
	name    string // of the connector
	router  string // what the event router's settings begin with
	notes   []string
	aliases map[string]string // by the name that is asked for, the name in the file
}

// prefixes are those of Debezium Server, and what they are in Kafka Connect. A format without a part is that of all.
var prefixes = []struct{ theirs, ours string }{
	{"debezium.source.", ""}, {"debezium.transforms.", "transforms."}, {"debezium.transforms", "transforms"},
	{"debezium.predicates", "predicates"}, {"debezium.sink.", "sink."},
	{"debezium.format.key", "key.converter"}, {"debezium.format.value", "value.converter"}, {"debezium.format.header", "header.converter"},
	{"debezium.format.", "all.converter."},
}

func parse(text []byte) (*reader, error) {
	r := &reader{left: make(map[string]string), aliases: make(map[string]string)}
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		var connector struct {
			Name   string         `json:"name"`
			Config map[string]any `json:"config"`
		}
		err := json.Unmarshal(text, &connector)
		r.name = connector.Name
		if err == nil && connector.Config == nil { // as PUT /connectors/NAME/config takes it
			err = json.Unmarshal(text, &connector.Config)
		}
		if err != nil {
			return nil, fmt.Errorf("the connector is no JSON object of settings: %w", err)
		}
		for key, value := range connector.Config {
			r.left[key] = fmt.Sprint(value)
		}
		return r, nil
	}
	r.server = true
	loader := properties.Loader{Encoding: properties.UTF8, DisableExpansion: true}
	all, err := loader.LoadBytes(text)
	if err != nil {
		return nil, fmt.Errorf("the properties can't be read: %w", err)
	}
	for key, value := range all.Map() {
		if strings.HasPrefix(key, "quarkus.") {
			continue // of the process
		}
		name := key
		for _, p := range prefixes {
			if rest, found := strings.CutPrefix(key, p.theirs); found {
				name = p.ours + rest
				break
			}
		}
		r.left[name], r.aliases[name] = strings.TrimSpace(value), key
	}
	return r, nil
}

func (r *reader) note(format string, args ...any) {
	r.notes = append(r.notes, fmt.Sprintf(format, args...))
}

// take returns a setting, or other if it isn't there.
func (r *reader) take(name, other string) string {
	value, found := r.left[name]
	delete(r.left, name)
	if !found || value == "" {
		return other
	}
	return value
}

// theirs is a setting's name in the file.
func (r *reader) theirs(name string) string {
	if key, found := r.aliases[name]; found {
		return key
	}
	return name
}

func (r *reader) database() string {
	user := r.take("database.user", "postgres")
	if r.take("database.password", "") != "" {
		r.note("The password of %s isn't copied. Give it as PGPASSWORD, in a .pgpass, or with the whole URL in database.url_file.", user)
	}
	host := joined(r.take("database.hostname", "localhost"), r.take("database.port", "5432"))
	text := "postgres://" + escaped(user) + "@" + host + "/" + escaped(r.take("database.dbname", "postgres"))
	query := url.Values{}
	for _, name := range []string{"sslmode", "sslrootcert", "sslcert", "sslkey"} {
		if value := r.take("database."+name, ""); value != "" {
			query.Set(name, value)
		}
	}
	if len(query) > 0 {
		text += "?" + query.Encode()
	}
	return text
}

// joined is an address. A variable is no IPv6 address, though it may have a colon.
func joined(host, port string) string {
	if strings.Contains(host, "${") {
		return host + ":" + port
	}
	return net.JoinHostPort(host, port)
}

// escaped is text in a URL. A variable stays one: both files have the same form for it.
func escaped(text string) string {
	if strings.Contains(text, "${") {
		return text
	}
	return url.PathEscape(text)
}

// given is value, or nothing where it is what the preset has.
func given(value, preset string) string {
	if value == preset {
		return ""
	}
	return value
}

var notInNames = regexp.MustCompile(`[^a-z0-9_-]+`)

func (r *reader) destination() (d destination, err error) {
	class := r.take("connector.class", "io.debezium.connector.postgresql.PostgresConnector")
	if !strings.HasSuffix(class, "PostgresConnector") {
		return d, fmt.Errorf("the connector is %s; the relay reads PostgreSQL alone", class)
	}
	if err := r.transforms(); err != nil {
		return d, err
	}
	d.Name = strings.Trim(notInNames.ReplaceAllString(strings.ToLower(r.name), "-"), "-_")
	if d.Name == "" || len(d.Name) > 63 {
		d.Name = "debezium"
	}
	d.Replication = r.replication()
	place := r.source(&d)
	format := layout{Place: place}
	if err := r.converters(&format); err != nil {
		return d, err
	}
	format.Expand = r.take(r.router+"table.expand.json.payload", "false") == "true"
	format.Tombstone = r.take(r.router+"route.tombstone.on.empty.payload", "false") == "true"
	prefix := r.take("topic.prefix", r.take("database.server.name", ""))
	enveloped := slices.ContainsFunc(place, func(p placement) bool { return p.Envelope })
	if enveloped && format.Value == string(records.ConnectJSONSchema) {
		format.Schema = prefix + "." + cmp.Or(d.Source.Table, "public.outboxevent") + ".Value"
	}
	if d.Broker, err = r.broker(&format); err != nil {
		return d, err
	}
	d.Format = map[string]any{"debezium": format}
	return d, nil
}

// transforms finds the event router.
func (r *reader) transforms() error {
	for transform := range strings.SplitSeq(r.take("transforms", ""), ",") {
		transform = strings.TrimSpace(transform)
		kind := r.take("transforms."+transform+".type", "")
		switch {
		case strings.HasSuffix(kind, ".outbox.EventRouter"):
			r.router = "transforms." + transform + "."
		case transform != "":
			r.note("The transform %s (%s) has no counterpart; docs/routing.md has what routes and headers can be.", transform, kind)
			maps.DeleteFunc(r.left, func(name, _ string) bool { return strings.HasPrefix(name, "transforms."+transform+".") })
		}
	}
	if r.router == "" {
		return errors.New("none of the transforms is io.debezium.transforms.outbox.EventRouter: this connector streams tables, " +
			"and the relay delivers the messages of an outbox")
	}
	return nil
}

func (r *reader) replication() replication {
	slot := r.take("slot.name", "debezium")
	if plugin := r.take("plugin.name", "decoderbufs"); plugin != "pgoutput" {
		r.note("The slot %s is read by the plugin %s, and the relay reads pgoutput. Stop the writers, wait until Debezium has sent "+
			"everything, make a slot with pgoutput, and name that one.", slot, plugin)
	}
	if r.take("slot.drop.on.stop", "false") == "true" {
		r.note("slot.drop.on.stop is true: Debezium drops the slot when it stops, and what is committed afterwards is lost. " +
			"Set it to false and restart Debezium before you take over.")
	}
	return replication{slot, r.take("publication.name", "dbz_publication")}
}

var oneTable = regexp.MustCompile(`^[\pL\pN_$]+\.[\pL\pN_$]+$`)

// source sets the source and the route. It returns what the router places beside the payload.
func (r *reader) source(d *destination) (place []placement) {
	d.Source = source{Preset: "debezium", Strategy: "replication"}
	table := strings.ReplaceAll(r.take("table.include.list", ""), `\.`, ".")
	if oneTable.MatchString(table) {
		d.Source.Table = table
	} else {
		r.note("table.include.list is %q, which doesn't name one table; write it as source.table.", table)
	}
	r.note("There is no table for dead letters: a message that the broker refuses blocks its key, and the slot retains the log. " +
		"Make one and name it as source.failure.dead_table (docs/mapping.md).")
	c := &d.Source.Columns
	router := func(name, preset string) string { return r.take(r.router+name, preset) }
	c.ID = given(router("table.field.event.id", "id"), "id")
	c.Payload = given(router("table.field.event.payload", "payload"), "payload")
	kind := router("table.field.event.type", "type")
	c.EventType = given(kind, "type")
	if key := router("table.field.event.key", "aggregateid"); key != "aggregateid" {
		c.Key = "{" + key + "}"
	}
	topic := "{aggregate_type}"
	if by := router("route.by.field", "aggregatetype"); by != "aggregatetype" {
		c.Topic, topic = "{"+by+"}", "{topic}"
	}
	if template := r.topic(topic); template != records.DebeziumTopic {
		d.Route = &route{template}
	}

	fields := map[string]string{kind: "event_type", "aggregatetype": "aggregate_type", "aggregateid": "aggregate_id"}
	for entry := range strings.SplitSeq(router("table.fields.additional.placement", ""), ",") {
		name, rest, _ := strings.Cut(strings.TrimSpace(entry), ":")
		where, alias, _ := strings.Cut(rest, ":")
		if where != "header" && where != "envelope" {
			if name != "" {
				r.note("table.fields.additional.placement has %q, which has no counterpart.", entry)
			}
			continue
		}
		field, known := fields[name]
		if !known {
			field = "header." + name
			c.HeaderColumns = append(c.HeaderColumns, name+"="+name)
			r.note("The column %s is placed as text. If it has another type, add it in format.debezium.place, "+
				"as in {field: %s, type: integer}.", name, field)
		}
		place = append(place, placement{field, where == "envelope", alias})
	}
	return place
}

// topic turns the router's replacement into a template.
func (r *reader) topic(field string) string {
	expression := r.take(r.router+"route.topic.regex", "(?<routedByValue>.*)")
	replacement := r.take(r.router+"route.topic.replacement", "outbox.event.${routedByValue}")
	template := strings.ReplaceAll(strings.ReplaceAll(replacement, "$${", "${"), "${routedByValue}", field)
	if expression != "(?<routedByValue>.*)" || strings.Contains(template, "$") {
		r.note("Topics are made by the expression %s and the replacement %s. Write route.rules that do the same (docs/routing.md); "+
			"here they are outbox.event.%s.", expression, replacement, field)
		return "outbox.event." + field
	}
	return template
}

// converters sets the three of f, and the payload's type.
func (r *reader) converters(f *layout) (err error) {
	binary := false
	for _, part := range []struct {
		name string
		to   *string
	}{{"key", &f.Key}, {"value", &f.Value}, {"header", &f.Header}} {
		if *part.to, binary, err = r.converter(part.name); err != nil {
			return err
		}
		if binary && part.name == "value" {
			f.Payload = "bytea"
		}
	}
	delete(r.left, "all.converter.schemas.enable")
	if f.Payload == "" {
		r.note("The payload is taken for jsonb. If the column has the type text or bytea, name it in format.debezium.payload.")
	}
	return nil
}

// converter returns the format's name of a converter.
func (r *reader) converter(part string) (name string, binary bool, err error) {
	setting := part + ".converter"
	all := r.left["all.converter.schemas.enable"]
	if all == "" {
		all = "true"
	}
	class := r.take(setting, "")
	schemas := r.take(setting+".schemas.enable", all) == "true"
	kind := class[strings.LastIndex(class, ".")+1:]
	switch {
	case class == "" && r.server:
		kind = "json" // the server's default
	case class == "" && part == "header":
		kind = "SimpleHeaderConverter"
	case class == "":
		r.note("The connector has no %s, so it is the worker's. StringConverter is assumed; look at the worker's "+
			"properties, and at a record.", setting)
		kind = "StringConverter"
	}
	switch kind {
	case "json", "jsonbytearray", "JsonConverter":
		if schemas {
			return string(records.ConnectJSONSchema), false, nil
		}
		return string(records.ConnectJSON), false, nil
	case "simplestring", "string", "StringConverter", "SimpleHeaderConverter":
		return string(records.ConnectString), false, nil
	case "binary", "BinaryDataConverter", "ByteArrayConverter", "ByteBufferConverter":
		return string(records.ConnectString), true, nil
	}
	return "", false, fmt.Errorf("%s is %s, which the relay doesn't have: it has those of strings, of JSON and of bytes; "+
		"docs/formats.md has CloudEvents and schema registries", r.theirs(setting), class)
}

// needless are settings whose work the relay does by itself, or that have no meaning for it.
var needless = regexp.MustCompile(`^(name|tasks\.max|offset\..*|heartbeat\..*|schema\.history\..*|snapshot\..*|poll\.interval\.ms|max\.batch\.size|` +
	`max\.queue\.size.*|tombstones\.on\.delete|publication\.autocreate\.mode|schema\.include\.list|slot\.(max\.retries|retry\.delay\.ms|stream\.params)|` +
	`status\.update\.interval\.ms|provide\.transaction\.metadata|include\.schema\.changes|extended\.headers\.enabled|errors\..*|skipped\.operations|` +
	`offset\.mismatch\.strategy|database\.(tcpKeepAlive|initial\.statements|query\.timeout\.ms)|binary\.handling\.mode|` +
	`sink\.kafka\.producer\.(key|value)\.serializer|transforms\..*\.(table\.fields\.additional\.error\.on\.missing|table\.op\.invalid\.behavior|tracing\..*))$`)

// rest notes what was not taken over.
func (r *reader) rest() {
	var left []string
	for name := range r.left {
		if !needless.MatchString(name) {
			left = append(left, r.theirs(name))
		}
	}
	if slices.Sort(left); len(left) > 0 {
		r.note("Not taken over: %s.", strings.Join(left, ", "))
	}
}
