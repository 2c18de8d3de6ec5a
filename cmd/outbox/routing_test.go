package main

import (
	"os"
	"strings"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
)

// read returns what is in a file, nothing if there is none yet.
func read(path string) string {
	text, _ := os.ReadFile(path)
	return string(text)
}

func TestDestinationsGetTheirShareUnderTheirTopics(t *testing.T) {
	t.Parallel()
	d := setup(t)
	address := freeAddress(t)
	other := d.folder + "/eu.jsonl"
	d.exec(`SELECT outbox.publish('orders', '1'::text, key => 'k', event_type => 'Created', headers => '{"region": "eu-west", "internal-user": "x"}'),
		outbox.publish('orders', '2'::text, key => 'k', event_type => 'Debug', headers => '{"region": "eu-west"}'),
		outbox.publish('orders', '3'::text, key => 'k', event_type => 'Changed', headers => '{"region": "us"}'),
		outbox.publish('lost', '4'::text, key => 'k')`)
	yaml := strings.Replace(d.fileYAML(""), "''", address, 1)
	yaml = strings.Replace(yaml, "lease: 30s", "lease: 30s\n    topics: [orders]\n    rate: 1000\n    delivery: {outage: {after: 100}}", 1)
	relay := d.relay(yaml + `
  - name: eu
    filter: [{header: region, header_value: "eu-*"}]
    route:
      rules: [{event_type: Debug, drop: true}, {topic: "orders", to: "eu.{event_type}"}]
      headers: [{name: "internal-*", drop: true}, {name: region, rename: where}, {name: source, value: shop}]
    broker: {file: {path: ` + other + `}}
`)
	until(t, "both have theirs", func() bool { return d.count() == 3 && strings.Count(read(other), "\n") == 1 })
	line := read(other)
	for _, part := range []string{`"topic":"eu.Created"`, `"where":"eu-west"`, `"source":"shop"`} {
		if !strings.Contains(line, part) {
			t.Errorf("no %s in %s", part, line)
		}
	}
	if strings.Contains(line, "internal-user") {
		t.Errorf("a dropped header is in %s", line)
	}
	until(t, "what nobody selects is counted", func() bool {
		_, body := get(t, "http://"+address+"/metrics")
		return strings.Contains(body, `outbox_messages_unselected_total{database="default"} 1`+"\n")
	})
	until(t, "and status says it", func() bool {
		return d.int(`SELECT coalesce(sum(messages), 0) FROM outbox.unselected WHERE topic = 'lost'`) == 1
	})
	d.outbox("status").want(exitOK, "SELECTED BY NO DESTINATION", "lost", "drop them by a rule")
	d.exec(`UPDATE outbox.unselected SET last_at = clock_timestamp() - interval '2 days'`)
	d.outbox("status").never("SELECTED BY NO DESTINATION")
	until(t, "and said", func() bool { return strings.Contains(relay.stderr.String(), "lost") })
}

func TestEachDestinationHasItsFormat(t *testing.T) {
	t.Parallel()
	d := setup(t)
	kafka, nats := servers.TestKafka(t), servers.TestNATS(t)
	// Debezium's topic is outbox.event.<aggregate type>.
	aggregate := "Order_" + d.Config().Database
	d.exec(`SELECT outbox.publish('orders', '{"id": 1}'::jsonb, aggregate_type => $1, aggregate_id => '7', event_type => 'Created')`, aggregate)
	d.relay(`
http: {listen: ''}
destinations:
  - name: cdc
    format: {debezium: {value: json, header: json, expand: true, place: [{field: event_type, alias: eventType}]}}
    broker: {kafka: {brokers: ['` + kafka.Addr() + `'], create_topics: true}}
  - name: events
    route: {default: "` + aggregate + `.{event_type}"}
    format: {cloudevents: {mode: structured, source: /shop}}
    broker: {nats: {url: '` + nats.URL() + `', stream: "` + aggregate + `", create_stream: true, stream_subjects: ["` + aggregate + `.>"]}}
`)
	ctx := await.Context(t)

	consumer, err := kgo.NewClient(kgo.SeedBrokers(kafka.Addr()), kgo.ConsumeTopics("outbox.event."+aggregate),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.MetadataMinAge(100*time.Millisecond), kgo.MetadataMaxAge(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer consumer.Close()
	var records []*kgo.Record
	for len(records) == 0 && ctx.Err() == nil {
		records = consumer.PollFetches(ctx).Records()
	}
	if len(records) != 1 {
		t.Fatalf("%d records in Kafka", len(records))
	}
	r := records[0]
	if string(r.Key) != "7" || string(r.Value) != `{"id":1}` || len(r.Headers) != 2 || string(r.Headers[1].Value) != `"Created"` {
		t.Errorf("the record is %s: %s with %v", r.Key, r.Value, r.Headers)
	}

	conn, err := natsgo.Connect(nats.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	until(t, "the event is in the stream", func() bool {
		s, err := stream.Stream(ctx, aggregate)
		if err != nil {
			return false
		}
		m, err := s.GetMsg(ctx, 1)
		if err != nil {
			return false
		}
		text := string(m.Data)
		if m.Subject != aggregate+".Created" || !strings.Contains(text, `"source":"/shop","type":"Created","subject":"7"`) || !strings.HasSuffix(text, `"data":{"id": 1}}`) {
			t.Errorf("%s: %s", m.Subject, text)
		}
		return true
	})
}
