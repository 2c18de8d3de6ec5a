package main

import (
	"context"
	"log/slog"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/internal/servers"
)

func TestOnlyTheFirstDestinationCountsWhatNoneSelects(t *testing.T) {
	t.Parallel()
	destinations := []config.Destination{
		{Name: "a", Topics: []string{"a.*"}, Route: config.Route{Rules: []config.RouteRule{{EventType: "Debug", Drop: true}}}},
		{Name: "b", Filter: []config.Match{{EventType: "B"}}},
	}
	var log strings.Builder
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "x"})
	s := newSelection(config.Config{Destinations: destinations}, counter, firsts(), slog.New(slog.NewTextHandler(&log, nil)))
	var selects []func(*outbox.Message) bool
	for i, d := range destinations {
		rules, err := d.Table().Parse()
		if err != nil {
			t.Fatal(err)
		}
		selects = append(selects, s.of(i, rules))
	}
	for _, test := range []struct {
		message outbox.Message
		a, b    bool
	}{
		{outbox.Message{Topic: "a.x"}, true, false},
		{outbox.Message{Topic: "a.x", EventType: "Debug"}, false, false}, // dropped in so many words
		{outbox.Message{Topic: "x", EventType: "B"}, false, true},
		{outbox.Message{Topic: "lost"}, false, false},
		{outbox.Message{Topic: "lost"}, false, false},
	} {
		if a, b := selects[0](&test.message), selects[1](&test.message); a != test.a || b != test.b {
			t.Errorf("%+v is selected by a: %v, b: %v", test.message, a, b)
		}
	}
	if n := value(t, counter); n != 2 {
		t.Errorf("%v messages are counted as unselected", n)
	}
	if n := strings.Count(log.String(), "topic=lost"); n != 1 || strings.Contains(log.String(), "a.x") {
		t.Errorf("the log is\n%s", &log)
	}
}

// firsts reports whether a message is the first of its topic.
func firsts() func(*outbox.Message) bool {
	seen := map[string]bool{}
	return func(m *outbox.Message) bool {
		first := !seen[m.Topic]
		seen[m.Topic] = true
		return first
	}
}

func value(t *testing.T, c prometheus.Counter) float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return families[0].GetMetric()[0].GetCounter().GetValue()
}

func TestADestinationForEverythingCostsNoFilter(t *testing.T) {
	t.Parallel()
	destinations := []config.Destination{{Topics: []string{"a"}}, {}}
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "x"})
	s := newSelection(config.Config{Destinations: destinations}, counter, firsts(), slog.New(slog.DiscardHandler))
	rules, err := destinations[1].Table().Parse()
	if err != nil {
		t.Fatal(err)
	}
	if s.of(1, rules) != nil {
		t.Error("a destination that wants everything has a filter")
	}
	if s.of(0, rules)(&outbox.Message{Topic: "b"}) || value(t, counter) != 0 {
		t.Error("what another destination selects is counted as unselected")
	}
}

func TestADestinationWithATableOfItsOwnCountsForItself(t *testing.T) {
	t.Parallel()
	destinations := []config.Destination{{Name: "own", Topics: []string{"a"}, Source: &config.Source{}}, {Name: "b", Topics: []string{"b"}}, {Name: "all", Source: &config.Source{}}}
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "x"})
	s := newSelection(config.Config{Destinations: destinations}, counter, firsts(), slog.New(slog.DiscardHandler))
	rules, err := destinations[0].Table().Parse()
	if err != nil {
		t.Fatal(err)
	}
	if s.of(0, rules)(&outbox.Message{Topic: "x"}) || value(t, counter) != 0 {
		t.Error("a row of another table is counted")
	}
	if s.of(1, rules)(&outbox.Message{Topic: "x"}) || value(t, counter) != 1 {
		t.Error("a message of the outbox that destinations of other tables would want is not counted")
	}
}

func TestADestinationWithARateReadsNoMoreThanItSendsBeforeTheEnd(t *testing.T) {
	t.Parallel()
	d := config.Standard[config.Destination]()
	if c := paced(d); !reflect.DeepEqual(c, d.Engine()) {
		t.Errorf("without a rate: %+v", c)
	}
	all := d.Delivery
	for rate, want := range map[int][2]int{1: {1, 5}, 100: {10, 500}, 5000: {500, all.MaxInFlight}, 1000000: {all.Batch, all.MaxInFlight}} {
		d.Rate = rate
		if c := paced(d); c.Batch != want[0] || c.MaxInFlight != want[1] {
			t.Errorf("rate %d: batch %d, in flight %d, want %v", rate, c.Batch, c.MaxInFlight, want)
		}
	}
	d.DrainTimeout, d.Rate = time.Second, 100
	if c := paced(d); c.MaxInFlight != 50 {
		t.Errorf("with a second to drain: %d in flight", c.MaxInFlight)
	}
}

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
	yaml = strings.Replace(yaml, "lease: 1s", "lease: 1s\n    topics: [orders]\n    rate: 1000\n    delivery: {outage: {after: 100}}", 1)
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
		return strings.Contains(body, "outbox_messages_unselected_total 1\n")
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
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()

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
