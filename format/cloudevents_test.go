package format_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/format"
)

var bindings = map[string]format.Binding{
	"kafka": format.Kafka, "nats": format.NATS, "http": format.HTTP, "amqp": format.AMQP, "pubsub": format.PubSub,
	"sqs": format.SQS, "sns": format.SNS, "redis": format.Redis, "grpc": format.GRPC,
}

func TestCloudEventsOfEachBindingAreAsTheGoldenFilesSay(t *testing.T) {
	t.Parallel()
	ce := format.CloudEvents{
		Source:     "/shop/{aggregate_type}",
		DataSchema: "https://example.com/{event_type}.json",
		Extensions: []format.Extension{{Name: "tenant", Value: "{header.tenant-id}"}, {Name: "absent", Value: "{header.absent}"}},
	}
	for _, name := range []string{"kafka", "nats", "http", "amqp", "pubsub"} {
		golden(t, "cloudevents/binary-"+name, show(encode(t, ce, bindings[name], order())))
	}
	ce.Structured = true
	golden(t, "cloudevents/structured", show(encode(t, ce, format.Kafka, order())))
}

func TestStructuredDataIsJSONTextOrBase64(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, contentType string
		payload           []byte
		want              string // the member, "" for none
	}{
		{"JSON as it is", "application/json; charset=utf-8", []byte("{ \"a\" : 1.0 }"), `"data":{ "a" : 1.0 }`},
		{"JSON of another vocabulary", "application/vnd.shop+json", []byte(`[1]`), `"data_base64":"WzFd"`},
		{"no content type means JSON", "", []byte(`"x"`), `"data":"x"`},
		{"what is called JSON and is none", "application/json", []byte(`{"a":`), `"data_base64":"eyJhIjo="`},
		{"JSON with bytes that are no text", "application/json", []byte("\"\xff\""), `"data_base64":"Iv8i"`},
		{"text", "text/plain", []byte("a \"b\"\n\x01/é"), `"data":"a \"b\"\n\u0001/é"`},
		{"text that is none", "text/plain", []byte("\xff"), `"data_base64":"/w=="`},
		{"bytes", "application/avro", []byte{0, 1}, `"data_base64":"AAE="`},
		{"no bytes", "application/avro", []byte{}, `"data_base64":""`},
		{"null", "application/json", nil, ""},
	} {
		m := with(func(m *outbox.Message) { m.Payload, m.ContentType = test.payload, test.contentType })
		r := encode(t, format.CloudEvents{Structured: true}, format.HTTP, m)
		if !json.Valid(r.Value) {
			t.Fatalf("%s: not JSON: %s", test.name, r.Value)
		}
		text := string(r.Value)
		if test.want == "" {
			if strings.Contains(text, `"data`+`"`) || strings.Contains(text, "data_base64") {
				t.Errorf("%s: there is data in %s", test.name, text)
			}
			continue
		}
		if !strings.HasSuffix(text, ","+test.want+"}") {
			t.Errorf("%s: %s doesn't end with %s", test.name, text, test.want)
		}
	}
}

func TestABinaryValueIsThePayloadItself(t *testing.T) {
	t.Parallel()
	m := order()
	r := encode(t, format.CloudEvents{}, format.Kafka, m)
	if &r.Value[0] != &m.Payload[0] || len(r.Value) != len(m.Payload) {
		t.Error("the payload was copied")
	}
	m.Payload = nil
	if r := encode(t, format.CloudEvents{}, format.Kafka, m); r.Value != nil {
		t.Errorf("a null payload became %q, and is no tombstone any more", r.Value)
	}
}

func TestAnEventWithoutEventTypeHasItsTopicAsType(t *testing.T) {
	t.Parallel()
	m := with(func(m *outbox.Message) { m.EventType = "" })
	if got := header(encode(t, format.CloudEvents{}, format.Kafka, m), "ce_type"); got != "orders" {
		t.Errorf("the type is %q", got)
	}
	var r format.Record
	err := bind(t, format.CloudEvents{Type: "{event_type}"}, format.Kafka).Encode(&r, m)
	if !outbox.IsPermanent(err) {
		t.Errorf("an empty type of a template that was asked for: %v", err)
	}
	err = bind(t, format.CloudEvents{Source: "{header.absent}"}, format.Kafka).Encode(&r, m)
	if !outbox.IsPermanent(err) {
		t.Errorf("an empty source: %v", err)
	}
}

func TestWhatAMessageLacksIsNoAttribute(t *testing.T) {
	t.Parallel()
	m := &outbox.Message{ID: order().ID, Topic: "orders", Payload: []byte("1")}
	r := encode(t, format.CloudEvents{}, format.Kafka, m)
	var names []string
	for _, h := range r.Headers {
		names = append(names, h.Name)
	}
	if want := []string{"ce_specversion", "ce_id", "ce_source", "ce_type"}; !slices.Equal(names, want) {
		t.Errorf("headers are %q, want %q", names, want)
	}
	if r.Key != nil || r.ContentType != "" {
		t.Errorf("key %q, content type %q", r.Key, r.ContentType)
	}
	m = with(func(m *outbox.Message) { m.AggregateID = "7" })
	if got := header(encode(t, format.CloudEvents{Subject: "-"}, format.Kafka, m), "ce_subject"); got != "" {
		t.Errorf("the subject is %q though it is not wanted", got)
	}
}

func TestSequencesCompareAsPositionsDo(t *testing.T) {
	t.Parallel()
	before := ""
	for _, position := range []int64{1, 9, 10, 99, 4711, 999999999999999999, 1000000000000000000, 1<<63 - 1} {
		m := with(func(m *outbox.Message) { m.Position = position })
		got := header(encode(t, format.CloudEvents{}, format.Kafka, m), "ce_sequence")
		if len(got) != 19 || got <= before {
			t.Errorf("%d is %q, after %q", position, got, before)
		}
		before = got
	}
}

func TestAHeaderThatLooksLikeAnAttributeIsRefused(t *testing.T) {
	t.Parallel()
	for name, header := range map[string]string{"kafka": "CE_id",
		"nats": "ce-id", "http": "Ce-Foo", "amqp": "cloudEvents:id", "pubsub": "ce-x"} {
		m := with(func(m *outbox.Message) { m.Headers = []outbox.Header{{Name: header, Value: "x"}} })
		var r format.Record
		if err := bind(t, format.CloudEvents{}, bindings[name]).Encode(&r, m); !outbox.IsPermanent(err) {
			t.Errorf("%s takes the header %q: %v", name, header, err)
		}
	}
}

func TestAContentTypeAmongTheHeadersIsTheContentType(t *testing.T) {
	t.Parallel()
	m := with(func(m *outbox.Message) {
		m.ContentType = ""
		m.Headers = []outbox.Header{{Name: "Content-Type", Value: "text/csv"}}
	})
	r := encode(t, format.CloudEvents{}, format.HTTP, m)
	if r.ContentType != "text/csv" || header(r, "Content-Type") != "" {
		t.Errorf("content type %q, header %q", r.ContentType, header(r, "Content-Type"))
	}
}

func TestFaultsOfCloudEventsAreReportedTogether(t *testing.T) {
	t.Parallel()
	_, err := format.CloudEvents{Source: "{x}", Type: "}", Subject: "{", DataSchema: "{y}",
		Extensions: []format.Extension{{Name: "Big"}, {Name: "sequence"}, {Name: "a", Value: "{z}"}, {Name: "a"}}}.Bind(99)
	if err == nil {
		t.Fatal("nothing is wrong")
	}
	for _, part := range []string{"binding 99", "source", "type",
		"subject", "dataschema", `"Big"`, `"sequence"`, "extension a", `extension "a"`} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("nothing about %s in:\n%v", part, err)
		}
	}
}

func TestRecordsOfABatchStandBesideEachOther(t *testing.T) {
	t.Parallel()
	encoder := bind(t, format.CloudEvents{Structured: true}, format.Kafka)
	var r format.Record
	var shown []string
	var kept []format.Record
	for i := range 200 {
		m := with(func(m *outbox.Message) { m.Key, m.Headers[0].Value = strings.Repeat("k", i), strings.Repeat("v", i) })
		if err := encoder.Encode(&r, m); err != nil {
			t.Fatal(err)
		}
		kept = append(kept, format.Record{Key: r.Key, Value: r.Value, ContentType: r.ContentType, Headers: r.Headers})
		shown = append(shown, show(&r))
	}
	for i := range kept {
		if got := show(&kept[i]); got != shown[i] {
			t.Fatalf("record %d has changed:\n%s\nwas\n%s", i, got, shown[i])
		}
	}
	r.Reset()
	if r.Value != nil || r.Key != nil || r.Headers != nil || r.ContentType != "" {
		t.Error("there is a record after Reset")
	}
}

func TestEncodingABatchAllocatesNothing(t *testing.T) {
	encoders := map[string]format.Encoder{
		"binary":     bind(t, format.CloudEvents{Source: "/{aggregate_type}"}, format.Kafka),
		"percent":    bind(t, format.CloudEvents{}, format.NATS),
		"structured": bind(t, format.CloudEvents{Structured: true}, format.Kafka),
	}
	m := order()
	for name, encoder := range encoders {
		var r format.Record
		batch := func() {
			r.Reset()
			for range 100 {
				if err := encoder.Encode(&r, m); err != nil {
					t.Fatal(err)
				}
			}
		}
		batch()
		limit := 0.0
		if name == "structured" {
			limit = 99 // json.Valid has a pool, from which the race detector takes things away
		}
		if n := testing.AllocsPerRun(10, batch); n > limit {
			t.Errorf("%s: a batch of 100 has %v allocations", name, n)
		}
	}
}

func header(r *format.Record, name string) string {
	for _, h := range r.Headers {
		if h.Name == name {
			return string(h.Value)
		}
	}
	return ""
}

func BenchmarkCloudEvents(b *testing.B) {
	for name, f := range map[string]format.Format{"binary": format.CloudEvents{}, "structured": format.CloudEvents{Structured: true}} {
		b.Run(name, func(b *testing.B) {
			encoder := bind(b, f, format.Kafka)
			var r format.Record
			m := order()
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if i%1000 == 0 {
					r.Reset()
				}
				if err := encoder.Encode(&r, m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
