package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/cmd/internal/config/findings"
	"github.com/pgoutbox/outbox/cmd/internal/config/internal/configtest"
	"github.com/pgoutbox/outbox/cmd/internal/config/load"
	"github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/route"
)

const routed = `
database: {url: "postgres://app@db/app"}
destinations:
  - name: events
    topics: ["orders.*"]
    filter:
      - {event_type: "Order*", content_type: application/json}
      - {header: region, header_value: "eu-*"}
    route:
      rules:
        - {aggregate_type: Debug, drop: true}
        - {event_type: OrderCreated, to: "shop.{aggregate_type}"}
      default: "other.{topic}"
      headers:
        - {name: region, rename: x-region}
        - {name: "internal-*", drop: true}
        - {name: source, value: "shop-{event_type}"}
    format:
      cloudevents:
        mode: structured
        source: /shop
        extensions: [{name: tenant, value: "{header.tenant}"}]
    schema_registry:
      urls: ["http://registry:8081"]
      username: u
      password: p
      schemas: [{subject: orders-value, type: protobuf, file: SCHEMA}]
      register: true
      refresh: 1m
    rate: 500
    delivery: {outage: {initial: 1s, after: 20}}
    broker: {kafka: {brokers: ["k:9092"]}}
`

func TestRoutingIsReadAsThePackagesHaveIt(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "order.proto")
	if err := os.WriteFile(file, []byte(`syntax = "proto3";`), 0o600); err != nil {
		t.Fatal(err)
	}
	l := configtest.Load(t, strings.ReplaceAll(routed, "SCHEMA", file), load.Input{})
	d := l.Config.Destinations[0]
	wantFilter := route.Filter{Topics: []string{"orders.*"}, Any: []route.Match{
		{EventType: "Order*", ContentType: "application/json"}, {Header: "region", HeaderValue: "eu-*"}}}
	if got := d.Selection(); !reflect.DeepEqual(got, wantFilter) {
		t.Errorf("the filter is %+v", got)
	}
	wantTable := route.Table{
		Rules: []route.Rule{
			{Match: route.Match{AggregateType: "Debug"}, Drop: true},
			{Match: route.Match{EventType: "OrderCreated"}, To: "shop.{aggregate_type}"},
		},
		Default: "other.{topic}",
		Headers: []route.HeaderRule{{Name: "region", Rename: "x-region"}, {Name: "internal-*", Drop: true},
			{Name: "source", Value: "shop-{event_type}"}},
	}
	if got := d.Table(); !reflect.DeepEqual(got, wantTable) {
		t.Errorf("the table is %+v", got)
	}
	wantFormat := format.CloudEvents{Structured: true, Source: "/shop", Subject: "{aggregate_id}",
		Extensions: []format.Extension{{Name: "tenant", Value: "{header.tenant}"}}}
	if got := d.Format.Description(); !reflect.DeepEqual(got, wantFormat) {
		t.Errorf("the format is %+v", got)
	}
	r := d.SchemaRegistry
	if r == nil || r.Password.Text() != "p" || r.Refresh != time.Minute || r.Subject != "{topic}-value" || !r.Register {
		t.Fatalf("the registry is %+v", r)
	}
	if r.Schemas[0].File != file {
		t.Errorf("the schema is in %q", r.Schemas[0].File)
	}
	if o := d.Delivery.Outage; d.Rate != 500 || o.After != 20 || o.Initial != time.Second || o.Max != time.Second {
		t.Errorf("rate %d, outage %+v", d.Rate, o)
	}
	again := configtest.Load(t, strings.NewReplacer("***", "p").Replace(l.Show()), load.Input{})
	if !reflect.DeepEqual(again.Config.Destinations, l.Config.Destinations) {
		t.Errorf("shown, it is another one:\n%s", l.Show())
	}
}

func TestTheDebeziumFormatRoutesByAggregateTypeUnlessToldOtherwise(t *testing.T) {
	t.Parallel()
	l := configtest.Load(t, configtest.Minimal+`
  - name: cdc
    format: {debezium: {value: json, expand: true, place: [{field: event_type, alias: eventType}]}}
    broker: {nats: }
`, load.Input{})
	d := l.Config.Destinations[1]
	rules, err := d.Table().Parse()
	if err != nil {
		t.Fatal(err)
	}
	m := &outbox.Message{Topic: "t", AggregateType: "Order"}
	if err := rules.Apply(m); err != nil || m.Topic != "outbox.event.Order" {
		t.Errorf("the topic is %q, %v", m.Topic, err)
	}
	want := format.Debezium{Key: "string", Value: "json", Header: "string", Payload: "jsonb", Expand: true,
		Schema: "outbox.public.outboxevent.Value",
		Place:  []format.Placement{{Field: "event_type", Alias: "eventType"}}}
	if got := d.Format.Description(); !reflect.DeepEqual(got, want) {
		t.Errorf("the format is %+v", got)
	}
}

func TestWhatTheDebeziumLayoutCannotPlaceIsFoundBeforeAnythingRuns(t *testing.T) {
	t.Parallel()
	const source = "source: {preset: debezium, table: ob, strategy: replication, columns: {header_columns: " +
		"[version=version, id=other]}}\n    format: {debezium: {place: "
	for name, test := range map[string]struct{ destination, fault string }{
		"placed and consumed": {source + "[{field: header.version, alias: version, type: integer}, {field: " +
			"header.id, alias: other}]}}", ""},
		"the same, renamed":     {source + "[{field: header.version}]}}\n    route: {headers: [{name: id, rename: other}]}", ""},
		"nothing is placed":     {source + "[{field: header.version}]}}", `the layout writes a header "id" itself`},
		"no column becomes it":  {source + "[{field: header.absent}, {field: header.id, alias: x}]}}", `no message has a header "absent"`},
		"a rule takes it away":  {source + "[{field: header.version}, {field: header.id, alias: x}]}}\n    route: {headers: [{name: 'ver*', drop: true}]}", `no message has a header "version"`},
		"another alias":         {source + "[{field: event_type, alias: version}, {field: header.id, alias: x}]}}", `the layout writes a header "version" itself`},
		"a type that isn't one": {"format: {debezium: {place: [{field: header.a, type: money}]}}", `"money" is no type`},
		"compact elsewhere":     {"format: {debezium: {compact: true}}", "the broker is not Redis"},
	} {
		_, err := load.Config(load.Input{File: configtest.Write(t, "outbox.yaml",
			configtest.Minimal+"\n  - name: cdc\n    "+test.destination+"\n    broker: {nats: }\n")})
		if (err == nil) != (test.fault == "") || err != nil && !strings.Contains(err.Error(), test.fault) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFaultsOfRoutingHaveTheirPlaces(t *testing.T) {
	t.Parallel()
	_, err := load.Config(load.Input{File: configtest.Write(t, "outbox.yaml", configtest.Minimal+`
  - name: wrong
    filter: [{}, {header_value: x}]
    route: {rules: [{topic: a}], default: "{x}", headers: [{name: a}]}
    format: {cloudevents: {mode: binray, source: "{y}"}, debezium: }
    schema_registry: {password: p, register: true, schemas: [{file: /no/such/file}]}
    rate: -1
    delivery: {outage: {initial: 2s, max: 1s}}
    broker: {file: {path: x}}
`)})
	var faults findings.Faults
	if !errors.As(err, &faults) {
		t.Fatalf("%v", err)
	}
	for path, part := range map[string]string{
		"destinations[1].filter":                             "condition 1",
		"destinations[1].route":                              "rule 1",
		"destinations[1].format":                             "keep one",
		"destinations[1].format.cloudevents.mode":            `did you mean "binary"`,
		"destinations[1].schema_registry.urls":               "none is given",
		"destinations[1].schema_registry.username":           "not given",
		"destinations[1].schema_registry.schemas[0].subject": "needs a subject",
		"destinations[1].schema_registry.schemas[0].file":    "can't read",
		"destinations[1].rate":                               "too small",
		"destinations[1].delivery.outage.max":                "at least 2s",
	} {
		if !hasFault(faults, path, part) {
			t.Errorf("nothing about %q at %s in:\n%v", part, path, err)
		}
	}
	for _, part := range []string{"condition 2", "default:", "header rule 1"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("nothing about %s in:\n%v", part, err)
		}
	}
}

func hasFault(faults findings.Faults, path, part string) bool {
	for _, f := range faults {
		if f.Path == path && strings.Contains(f.Message, part) {
			return true
		}
	}
	return false
}
