// Package debezium turns a configuration of Debezium into one of the relay: the properties of Debezium Server, or a
// connector of Kafka Connect as JSON.
package debezium

import (
	"bytes"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

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
	// source has no preset: a preset reads columns that the event router doesn't, and the table needn't have them.
	source struct {
		Strategy string  `yaml:"strategy"`
		Table    string  `yaml:"table"`
		Columns  columns `yaml:"columns"`
	}
	columns struct {
		ID            string   `yaml:"id"`
		Topic         string   `yaml:"topic"`
		AggregateType string   `yaml:"aggregate_type"`
		AggregateID   string   `yaml:"aggregate_id"`
		EventType     string   `yaml:"event_type,omitempty"`
		Payload       string   `yaml:"payload"`
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

var notInNames = regexp.MustCompile(`[^a-z0-9_-]+`)

func (r *reader) destination() (d destination, err error) {
	class := r.take("connector.class", "io.debezium.connector.postgresql.PostgresConnector")
	if !strings.HasSuffix(class, "PostgresConnector") {
		return d, fmt.Errorf("the connector is %s; the relay reads PostgreSQL alone", class)
	}
	behind, err := r.transforms()
	if err != nil {
		return d, err
	}
	d.Name = strings.Trim(notInNames.ReplaceAllString(strings.ToLower(r.name), "-"), "-_")
	if d.Name == "" || len(d.Name) > 63 {
		d.Name = "debezium"
	}
	d.Replication = r.replication()
	place := r.source(&d, behind)
	format := layout{Place: place}
	if err := r.converters(&format); err != nil {
		return d, err
	}
	format.Expand = r.take(r.router+"table.expand.json.payload", "false") == "true"
	format.Tombstone = r.take(r.router+"route.tombstone.on.empty.payload", "false") == "true"
	prefix := r.take("topic.prefix", r.take("database.server.name", ""))
	enveloped := slices.ContainsFunc(place, func(p placement) bool { return p.Envelope })
	if enveloped && format.Value == string(records.ConnectJSONSchema) {
		format.Schema = prefix + "." + d.Source.Table + ".Value"
	}
	if d.Broker, err = r.broker(&format); err != nil {
		return d, err
	}
	d.Format = map[string]any{"debezium": format}
	return d, nil
}

func (r *reader) replication() replication {
	slot := r.take("slot.name", "debezium")
	if plugin := r.take("plugin.name", "decoderbufs"); plugin != "pgoutput" {
		slot = r.missing("OUTBOX_SLOT", "The slot %s is read by the plugin %s, and the relay reads pgoutput. Stop the writers, wait until "+
			"Debezium has sent everything, make a slot with pgoutput (SELECT pg_create_logical_replication_slot('outbox', 'pgoutput');), "+
			"and name that one.", slot, plugin)
	}
	if r.take("slot.drop.on.stop", "false") == "true" {
		r.note("slot.drop.on.stop is true: Debezium drops the slot when it stops, and what is committed afterwards is lost. " +
			"Set it to false and restart Debezium before you take over.")
	}
	if mode := r.take("snapshot.mode", "no_data"); mode != "no_data" && mode != "never" {
		r.note("snapshot.mode is %s: Debezium also sends the rows from before its slot. The relay sends what is committed "+
			"from the slot on, and reads no rows of the table.", mode)
	}
	return replication{slot, r.take("publication.name", "dbz_publication")}
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
	`sink\.kafka\.producer\.(key|value)\.serializer|transforms\..*\.(table\.fields?\.additional\.(error\.on\.)?missing|table\.op\.invalid\.behavior|tracing\..*))$`)

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
