package format_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/route"
)

// row is the example of Debezium's documentation of the outbox event router, with a message id.
func row() *outbox.Message {
	return &outbox.Message{
		ID:            id("406c07f3-26f0-4eea-a50c-109940064b8f"),
		Topic:         "Order",
		AggregateType: "Order",
		AggregateID:   "1",
		EventType:     "OrderCreated",
		Payload:       []byte(`{"id": 1, "lineItems": [{"id": 1, "item": "Debezium in Action", "status": "ENTERED", "quantity": 2, "totalPrice": 39.98}, {"id": 2, "item": "Debezium for Dummies", "status": "ENTERED", "quantity": 1, "totalPrice": 29.99}], "orderDate": "2019-01-31T12:13:01", "customerId": 123}`),
		ContentType:   "application/json",
	}
}

// The files in testdata/debezium hold what EventRouterDelegate and JsonSchemaData of debezium-core, and
// JsonConverter, StringConverter and SimpleHeaderConverter of Kafka Connect make of that row; docs/formats.md
// names the code that each part follows.
func TestDebeziumsExampleIsAsTheEventRouterSendsIt(t *testing.T) {
	t.Parallel()
	placed := []format.Placement{{Field: "event_type", Alias: "eventType"}}
	for name, d := range map[string]format.Debezium{
		// StringConverter for key and value, SimpleHeaderConverter: Kafka Connect as the documentation has it.
		"text": {Place: placed},
		// debezium.format.key/value=simplestring with debezium.format.header.schemas.enable=false.
		"text-json-headers": {Header: format.ConnectJSON, Place: placed},
		// debezium.format.*.schemas.enable=false.
		"json": {Key: format.ConnectJSON, Value: format.ConnectJSON, Header: format.ConnectJSON, Place: placed},
		// The defaults of Debezium Server.
		"json-schema": {Key: format.ConnectJSONSchema, Value: format.ConnectJSONSchema, Header: format.ConnectJSONSchema, Place: placed},
		// table.expand.json.payload=true.
		"expanded":        {Value: format.ConnectJSON, Expand: true},
		"expanded-schema": {Value: format.ConnectJSONSchema, Expand: true},
		// table.fields.additional.placement=type:envelope:eventType,aggregateid:envelope
		"envelope": {Value: format.ConnectJSON, Place: []format.Placement{
			{Field: "event_type", Envelope: true, Alias: "eventType"}, {Field: "aggregate_id", Envelope: true}}},
		"envelope-schema": {Value: format.ConnectJSONSchema, Schema: "ob.public.outbox.Value", Place: []format.Placement{
			{Field: "event_type", Envelope: true, Alias: "eventType"}}},
		"envelope-expanded": {Value: format.ConnectJSON, Expand: true, Place: []format.Placement{{Field: "event_type", Envelope: true}}},
		"bytea":             {Key: format.ConnectJSON, Value: format.ConnectJSON, Payload: format.PayloadBytes},
		"bytea-schema":      {Value: format.ConnectJSONSchema, Payload: format.PayloadBytes},
	} {
		r := encode(t, d, format.Kafka, row())
		if d.Value != "" && d.Value != format.ConnectString && !json.Valid(r.Value) {
			t.Errorf("%s: the value is not JSON: %s", name, r.Value)
		}
		golden(t, "debezium/"+name, show(r))
	}
}

func TestDebeziumsTopicIsOfTheAggregateType(t *testing.T) {
	t.Parallel()
	topic, err := route.ParseTemplate(format.DebeziumTopic)
	if err != nil {
		t.Fatal(err)
	}
	if got := topic.Expand(row()); got != "outbox.event.Order" {
		t.Errorf("the topic is %q", got)
	}
}

func TestExpansionFollowsTheEventRouter(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, payload, want string }{
		{"members that are null are left out", `{"a": null, "b": 1}`, `{"b":1}`},
		{"arrays without elements are left out", `{"a": [], "b": {}}`, `{"b":{}}`},
		{"nothing is left of this", `{"a": null}`, `{}`},
		{"the order is that of the document", `{"z": 1, "a": {"y": true, "b": false}}`, `{"z":1,"a":{"y":true,"b":false}}`},
		{"the last of two members prevails, where the first stands", `{"a": 1, "b": 2, "a": "x"}`, `{"a":"x","b":2}`},
		{"integers keep their size", `{"a": 2147483647, "b": 2147483648, "c": -0}`, `{"a":2147483647,"b":2147483648,"c":0}`},
		{"all else is a double, as Java writes it",
			`[1.0, 0.1, 100.50, 1e2, 1e7, 9999999.5, 12345678.9, 0.001, 0.00099, 1E-5, -0.0, 1.5e300, 5e-324, 1e400]`,
			`[1.0,0.1,100.5,100.0,1.0E7,9999999.5,1.23456789E7,0.001,9.9E-4,1.0E-5,-0.0,1.5E300,4.9E-324,"Infinity"]`},
		{"text is escaped as Jackson does it", "{\"a\": \"\\u001f\\u00e9 \\/ \\\" \\\\ \\n\\t\\b\\f\\r \\u007f\"}",
			"{\"a\":\"\\u001Fé / \\\" \\\\ \\n\\t\\b\\f\\r \x7f\"}"},
		{"what only some objects of an array have is null in the others",
			`{"a": [{"x": 1}, {"y": "b", "x": 2}, null]}`, `{"a":[{"x":1,"y":null},{"x":2,"y":"b"},null]}`},
		{"arrays may lack elements", `{"a": ["x", null]}`, `{"a":["x",null]}`},
		{"arrays of arrays", `{"a": [[1, 2], [3], null]}`, `{"a":[[1,2],[3],null]}`},
		{"what stands behind the document is ignored", `{"a": 1} x`, `{"a":1}`},

		{"an array of nothing but null is not expanded", `{"a": [null]}`, ""},
		{"nor one whose elements differ", `{"a": [1, "x"]}`, ""},
		{"nor one whose numbers differ", `{"a": [1, 1.5]}`, ""},
		{"nor one that begins with an empty array", `{"a": [[], [1]]}`, ""},
		{"nor one whose objects disagree about a member", `{"a": [{"x": 1}, {"x": "b"}]}`, ""},
		{"nor an integer too large for a long", `{"a": 9223372036854775808}`, ""},
		{"nor a member without a name", `{"": 1}`, ""},
		{"nor an empty array", `[]`, ""},
		{"nor text", `hello`, ""},
		{"nor a JSON string", `"x"`, ""},
		{"nor what begins with a space", ` {"a": 1}`, ""},
		{"nor half a document", `{"a": `, ""},
		{"nor what is nested too deeply", strings.Repeat("[", 2000) + strings.Repeat("]", 2000), ""},
	} {
		m := row()
		m.Payload = []byte(test.payload)
		got := string(encode(t, format.Debezium{Value: format.ConnectJSON, Expand: true}, format.Kafka, m).Value)
		want := test.want
		if want == "" {
			want = quoted(test.payload)
		}
		if got != want {
			t.Errorf("%s: %s became %s, want %s", test.name, test.payload, got, want)
		}
	}
}

func quoted(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}

func TestAnEmptyPayloadIsATombstoneIfAskedFor(t *testing.T) {
	t.Parallel()
	for _, payload := range [][]byte{nil, {}, []byte(" \n\t\x00")} {
		m := row()
		m.Payload = payload
		if r := encode(t, format.Debezium{Value: format.ConnectJSON, Tombstone: true}, format.Kafka, m); r.Value != nil {
			t.Errorf("%q became %q", payload, r.Value)
		}
	}
	m := row()
	m.Payload = nil
	for converter, want := range map[format.Converter]string{
		format.ConnectString:     "",
		format.ConnectJSON:       "null",
		format.ConnectJSONSchema: `{"schema":{"type":"string","optional":true,"name":"io.debezium.data.Json","version":1},"payload":null}`,
	} {
		r := encode(t, format.Debezium{Value: converter}, format.Kafka, m)
		if string(r.Value) != want || (r.Value == nil) != (want == "") {
			t.Errorf("null by %s is %q, want %q", converter, r.Value, want)
		}
	}
}

func TestHeadersOfTheMessageFollowThoseOfTheLayout(t *testing.T) {
	t.Parallel()
	m := row()
	m.Headers = []outbox.Header{{Name: "traceparent", Value: "00-1"}}
	d := format.Debezium{Header: format.ConnectJSON,
		Place: []format.Placement{{Field: "content_type", Alias: "ct"}, {Field: "header.absent"}}}
	r := encode(t, d, format.Kafka, m)
	want := []string{"id", `"406c07f3-26f0-4eea-a50c-109940064b8f"`, "ct", `"application/json"`, "absent", "null", "traceparent", `"00-1"`}
	var got []string
	for _, h := range r.Headers {
		got = append(got, h.Name, string(h.Value))
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("headers are %q, want %q", got, want)
	}
	for _, name := range []string{"id", "ct"} {
		m.Headers[0].Name = name
		if err := bind(t, d, format.Kafka).Encode(new(format.Record), m); !outbox.IsPermanent(err) {
			t.Errorf("a header %q stands beside the layout's: %v", name, err)
		}
	}
}

func TestAPlacedHeaderIsNotSentUnderItsOwnNameBesides(t *testing.T) {
	t.Parallel()
	m := row()
	m.Headers = []outbox.Header{{Name: "version", Value: "3"}, {Name: "tenant", Value: "acme"}, {Name: "price", Value: "19.90"}}
	d := format.Debezium{Value: format.ConnectJSON, Header: format.ConnectJSON, Payload: format.PayloadText, Place: []format.Placement{
		{Field: "header.version", Type: "integer"}, {Field: "header.price",
			Type: "numeric(10,2)", Alias: "cost"}, {Field: "header.tenant", Envelope: true}}}
	m.Payload = []byte("x")
	r := encode(t, d, format.Kafka, m)
	var got []string
	for _, h := range r.Headers[1:] {
		got = append(got, h.Name, string(h.Value))
	}
	if want := []string{"version", "3", "cost", `"B8Y="`}; !slices.Equal(got, want) ||
		string(r.Value) != `{"payload":"x","tenant":"acme"}` {
		t.Errorf("headers %q, want %q; value %s", got, want, r.Value)
	}
	m.Headers = append(m.Headers, outbox.Header{Name: "cost", Value: "x"})
	if err := bind(t, d, format.Kafka).Encode(new(format.Record), m); !outbox.IsPermanent(err) {
		t.Errorf("a header stands beside a placed one of its name: %v", err)
	}
}

func TestAColumnOfATypeIsWrittenAsDebeziumWritesIt(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ as, text, json, plain string }{ // json "": refused
		{"smallint", "32768", "", ""},
		{"integer", "-1", "-1", "-1"},
		{"integer", "1.5", "", ""},
		{"bigint", "9223372036854775807", "9223372036854775807", "9223372036854775807"},
		{"boolean", "true", "true", "true"},
		{"boolean", "yes", "", ""},
		{"real", "1e20", "1.0E20", "1.0E20"},
		{"double precision", "NaN", `"NaN"`, "NaN"},
		{"double precision", "-Infinity", `"-Infinity"`, "-Infinity"},
		{"numeric(10,2)", "-1.28", `"gA=="`, "-1.28"},
		{"numeric(10,2)", "1.28", `"AIA="`, "1.28"},
		{"numeric(5)", "0", `"AA=="`, "0"},
		{"numeric(10,2)", "1.5", "", ""},
		{"numeric(10,2)", "NaN", "", ""},
		{"timestamptz", "2026-01-02 03:04:05+05:30", `"2026-01-01T21:34:05.000000Z"`, "2026-01-01T21:34:05.000000Z"},
		{"timestamptz", "infinity", "", ""},
		{"timestamp", "2026-01-02 03:04:05.5", "1767323045500000", "1767323045500000"},
		{"date", "1969-12-30", "-2", "-2"},
		{"date", "0044-03-15 BC", "", ""},
		{"jsonb", `{"a": "b"}`, `"{\"a\": \"b\"}"`, `{"a": "b"}`},
		{"text", "", `""`, ""},
	} {
		for _, c := range []struct {
			converter format.Converter
			want      string
		}{{format.ConnectJSON, test.json}, {format.ConnectString, test.plain}} {
			m := row()
			m.Headers = []outbox.Header{{Name: "c", Value: test.text}}
			var r format.Record
			err := bind(t, format.Debezium{Header: c.converter, Place: []format.Placement{{Field: "header.c", Type: test.as}}},
				format.Kafka).Encode(&r, m)
			switch {
			case test.json == "":
				if !outbox.IsPermanent(err) || !strings.Contains(err.Error(), "header.c") {
					t.Errorf("%s %q: %v", test.as, test.text, err)
				}
			case err != nil || string(r.Headers[1].Value) != c.want:
				t.Errorf("%s %q by %s is %q, want %q (%v)", test.as, test.text, c.converter, r.Headers[1:], c.want, err)
			}
		}
	}
}

func TestAnAggregateWithoutAnIDHasAnEmptyKey(t *testing.T) {
	t.Parallel()
	m := row()
	m.AggregateID = ""
	for converter, want := range map[format.Converter]string{format.ConnectString: "", format.ConnectJSON: `""`} {
		if r := encode(t, format.Debezium{Key: converter}, format.Kafka, m); r.Key == nil || string(r.Key) != want {
			t.Errorf("%s: the key is %#v, want %q", converter, r.Key, want)
		}
	}
	m.AggregateType = ""
	if r := encode(t, format.Debezium{}, format.Kafka, m); r.Key != nil {
		t.Errorf("without an aggregate the key is %q", r.Key)
	}
}

func TestBytesThatAreNoTextNeedTheirColumn(t *testing.T) {
	t.Parallel()
	m := row()
	m.Payload = []byte{0xff, 0}
	err := bind(t, format.Debezium{Value: format.ConnectJSON}, format.Kafka).Encode(new(format.Record), m)
	if !outbox.IsPermanent(err) || !strings.Contains(err.Error(), "bytea") {
		t.Errorf("bytes in a column of JSON: %v", err)
	}
	if r := encode(t, format.Debezium{Value: format.ConnectString}, format.Kafka, m); string(r.Value) != "\xff\x00" {
		t.Errorf("the value is %q", r.Value)
	}
}

func TestFaultsOfTheDebeziumLayoutAreReportedTogether(t *testing.T) {
	t.Parallel()
	_, err := format.Debezium{Key: "x", Value: "string", Payload: "bytea", Expand: true, Place: []format.Placement{
		{Field: "price"}, {Field: "event_type", Alias: "id"}, {Field: "event_type",
			Alias: "payload", Envelope: true}, {Field: "topic", Envelope: true}, {Field: "header.a", Type: "money"}}}.Bind(format.Kafka)
	if err == nil {
		t.Fatal("nothing is wrong")
	}
	for _, part := range []string{`"x"`, "expand: it takes",
		"bytea is not expanded", `"price"`, `"id" is taken`, `"payload" is taken`, "an envelope takes", `"money" is no type`} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("nothing about %s in:\n%v", part, err)
		}
	}
}

func FuzzExpansion(f *testing.F) {
	f.Add([]byte(`{"a": [1.5, {"b": null}], "c": "é\n"}`))
	f.Add([]byte(`[[[]]]`))
	f.Add([]byte("{\"\xff\": 1}"))
	encoder, err := format.Debezium{Value: format.ConnectJSONSchema, Expand: true}.Bind(format.Kafka)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		m := row()
		m.Payload = payload
		var r format.Record
		if err := encoder.Encode(&r, m); err != nil {
			return // not text
		}
		var envelope struct {
			Schema  json.RawMessage
			Payload json.RawMessage
		}
		if err := json.Unmarshal(r.Value, &envelope); err != nil {
			t.Fatalf("%q became %s, which is not JSON: %v", payload, r.Value, err)
		}
		var text string
		if json.Unmarshal(envelope.Payload, &text) == nil && text != string(payload) && string(envelope.Payload) != "null" {
			t.Fatalf("%q became the text %q", payload, text)
		}
	})
}
