package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	goredis "github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/cmd/internal/config/brokers"
	"github.com/pgoutbox/outbox/cmd/internal/config/load"
	"github.com/pgoutbox/outbox/cmd/internal/daemon"
	records "github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/relay"
)

// Debezium Server and the relay are given the same rows, testdata/debezium/rows.sql. What the server sent stands in
// testdata/debezium/*.golden; "make test-debezium" runs it and writes them again.
var besideDebezium = flag.String("debezium", "", "run Debezium Server with the settings whose names match this "+
	"`pattern`, and write what it sends into testdata/debezium")

// routerSetting is a configuration of Debezium's event router, and ours for the same records.
type routerSetting struct {
	name, table        string
	key, value, header converter
	theirs             string // of the router, a property a line
	ours               string // of format.debezium
	source             string // of source
	topic              string // of route.default
	sink               sink
	differs            []difference
}

// converter is one in Debezium Server and in the format.
type converter struct{ theirs, ours string }

var (
	connectText   = converter{"simplestring", "string"}
	connectBinary = converter{"binary", "string"}
	connectJSON   = converter{"json", "json"}
	connectSchema = converter{"json", "json-schema"}
)

// difference is a known one: where the server writes one text, the relay writes another. Without a text of the server's
// it is a record that the relay alone sends.
type difference struct{ reason, theirs, ours string }

func routerSettings() []routerSetting {
	placed := []struct{ name, as string }{{"note", "text"}, {"small", "smallint"}, {"version", "integer"},
		{"large", "bigint"}, {"flag", "boolean"},
		{"single", "real"}, {"ratio", "double precision"}, {"price", "numeric(10,2)"}, {"created_at", "timestamptz"},
		{"local_at", "timestamp"},
		{"day", "date"}, {"token", "uuid"}, {"doc", "jsonb"}, {"mood", "text"}}
	var theirHeaders, theirEnvelope, ourHeaders, ourEnvelope, columns []string
	for _, p := range placed {
		theirHeaders = append(theirHeaders, p.name+":header")
		theirEnvelope = append(theirEnvelope, p.name+":envelope")
		ourHeaders = append(ourHeaders, fmt.Sprintf("{field: header.%s, type: '%s'}", p.name, p.as))
		ourEnvelope = append(ourEnvelope, fmt.Sprintf("{field: header.%s, type: '%s', envelope: true}", p.name, p.as))
		columns = append(columns, p.name+"="+p.name)
	}
	headerColumns := "columns: {topic: '{tenant}', header_columns: [" + strings.Join(columns, ", ") + "]}"
	enum := difference{"the relay doesn't know the values of an enum", `,\"name\":\"io.debezium.data.Enum\",\"version\":1,\"parameters\":{\"allowed\":\"calm,wild\"}`, ""}

	routed := difference{"the schema's name has the aggregate type, whatever the topic is made of", "ob_text.acme.Value",
		"ob_text.order.Value"}
	dropped := difference{"the server's sink leaves a null out, and the relay leaves nothing out", "",
		"header Content-Type: [\"application/json\"]\nheader X-Debezium-Eventtype: [\"IkRlbGV0ZWQi\"]\n" +
			"header X-Debezium-Id: [\"IjAwMDAwMDAwLTAwMDAtNDAwMC04MDAwLTAwMDAwMDAwMDAwMiI=\"]\nbody: \"\"\n\n"}
	null := difference{"a field that is missing can't be taken for a payload", "\"value\": \"default\"\n", ""}

	orders := routerSetting{table: "ob_json", key: connectText, value: connectText, header: connectJSON,
		theirs: "table.fields.additional.placement=type:header:eventType", ours: "place: [{field: event_type, alias: eventType}]"}
	texts := routerSetting{table: "ob_text", key: connectText, value: connectText, header: connectJSON,
		source: headerColumns, topic: "{topic}",
		theirs: "route.by.field=tenant\ntable.fields.additional.placement=" + strings.Join(theirHeaders, ","),
		ours:   "payload: text, place: [" + strings.Join(ourHeaders, ", ") + "]"}
	envelopes := texts
	envelopes.theirs = "route.by.field=tenant\ntable.fields.additional.placement=type:envelope," + strings.Join(theirEnvelope, ",")
	envelopes.ours = "payload: text, schema: dbz.public.ob_text.Value, place: [{field: event_type, envelope: true}, " +
		strings.Join(ourEnvelope, ", ") + "]"

	named := func(s routerSetting, name string, change func(*routerSetting)) routerSetting {
		s.name = name
		change(&s)
		return s
	}
	return []routerSetting{
		named(orders, "strings", func(s *routerSetting) {}),
		named(orders, "schemas", func(s *routerSetting) { s.key, s.value, s.header = connectSchema, connectSchema, connectSchema }),
		named(orders, "expanded", func(s *routerSetting) {
			s.key, s.value, s.theirs, s.ours = connectJSON, connectJSON, "table.expand.json.payload=true", "expand: true"
		}),
		named(texts, "text", func(s *routerSetting) {
			s.theirs, s.ours = s.theirs+"\nroute.tombstone.on.empty.payload=true", s.ours+", tombstone: true"
		}),
		named(texts, "text-schemas", func(s *routerSetting) { s.header, s.differs = connectSchema, []difference{enum} }),
		named(envelopes, "envelope", func(s *routerSetting) {
			s.value = connectJSON
			s.theirs += "\nroute.tombstone.on.empty.payload=true\ntable.expand.json.payload=true"
			s.ours += ", tombstone: true, expand: true"
		}),
		named(envelopes, "envelope-schemas", func(s *routerSetting) { s.value, s.differs = connectSchema, []difference{enum, routed} }),
		{name: "bytes", table: "ob_bytes", key: connectText, value: connectBinary, header: connectJSON, ours: "payload: bytea"},
		{name: "bytes-json", table: "ob_bytes", key: connectText, value: connectJSON, header: connectJSON, ours: "payload: bytea"},
		named(orders, "http", func(s *routerSetting) { s.sink, s.differs = &httpSink{}, []difference{dropped} }),
		named(orders, "redis", func(s *routerSetting) { s.sink, s.ours = &redisSink{}, s.ours+", compact: true" }),
		named(orders, "redis-extended", func(s *routerSetting) { s.sink, s.differs = &redisSink{extended: true}, []difference{null} }),
	}
}

func TestTheRelaySendsWhatDebeziumServerSends(t *testing.T) {
	t.Parallel()
	d := emptyDatabase(t)
	tables, rows, _ := strings.Cut(read("testdata/debezium/rows.sql"), "-- rows\n")
	d.exec(tables)
	settings := routerSettings()
	for _, s := range settings {
		d.exec("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", s.slot(d, "ours"))
		if s.live() {
			d.exec("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", s.slot(d, "theirs"))
		}
	}
	d.exec(rows)
	for _, s := range settings {
		t.Run(s.name, func(t *testing.T) {
			golden := filepath.Join("testdata", "debezium", s.name+".golden")
			if s.live() {
				if err := os.WriteFile(golden, []byte(s.debezium(t, d)), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want := read(golden)
			atLeast := strings.Count(want, "\n\n") + 1
			for _, known := range s.differs {
				if known.theirs == "" {
					atLeast++ // ours alone has this one
				}
			}
			got := s.relayed(t, d, atLeast)
			for _, known := range s.differs {
				if !strings.Contains(want, known.theirs) || !strings.Contains(got, known.ours) {
					t.Errorf("no longer different, although %s", known.reason)
				}
				if known.theirs == "" {
					got = strings.Replace(got, known.ours, "", 1)
				} else {
					want = strings.ReplaceAll(want, known.theirs, known.ours)
				}
			}
			if got != want {
				t.Errorf("the relay sends\n%s\nand Debezium Server\n%s", unlike(got, want), unlike(want, got))
			}
		})
	}
}

// unlike is what stands in one list of records and not in the other.
func unlike(one, other string) string {
	others := strings.Split(other, "\n\n")
	return strings.Join(slices.DeleteFunc(strings.Split(one, "\n\n"), func(r string) bool { return slices.Contains(others, r) }), "\n\n")
}

// live reports whether Debezium Server is run.
func (s *routerSetting) live() bool {
	return *besideDebezium != "" && regexp.MustCompile(*besideDebezium).MatchString(s.name)
}

func (s *routerSetting) slot(d *database, whose string) string {
	return strings.ReplaceAll(whose+"_"+s.name+"_"+d.Config().Database, "-", "_")
}

// prefix is that of the topics.
func (s *routerSetting) prefix(d *database) string { return d.Config().Database + "." + s.name + "." }

// relayed returns what the relay sends, when as many records as given have come.
func (s *routerSetting) relayed(t *testing.T, d *database, atLeast int) string {
	t.Helper()
	to := s.sink
	if to == nil {
		to = &captured{prefix: s.prefix(d)}
	}
	topic := s.topic
	if topic == "" {
		topic = "{aggregate_type}"
	}
	file := filepath.Join(t.TempDir(), "outbox.yaml")
	err := os.WriteFile(file, []byte(fmt.Sprintf(`database: {url: "%[11]s"}
destinations:
  - name: ours
    source: {preset: debezium, table: %[1]s, strategy: replication, %[2]s}
    replication: {slot: %[3]s, publication: pub_%[1]s}
    route: {default: "%[4]s%[5]s"}
    format: {debezium: {key: %[6]s, value: %[7]s, header: %[8]s, %[9]s}}
    broker: %[10]s
`, s.table, s.source, s.slot(d, "ours"), s.prefix(d)+"ours.", topic, s.key.ours, s.value.ours, s.header.ours, s.ours, to.open(t), d.url)), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := load.Config(load.Input{File: file})
	if err != nil {
		t.Fatal(err)
	}
	c := loaded.Config.Destinations[0]
	logger := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	var broker relay.Broker
	if into, ok := to.(*captured); ok {
		if into.encoder, err = c.Format.Description().Bind(records.Kafka); err == nil {
			broker, err = c.Surround(into)
		}
	} else {
		broker, err = c.Open(brokers.Opening{Logger: logger})
	}
	if err != nil {
		t.Fatal(err)
	}
	defer broker.Close()
	source, err := daemon.OpenSource(d.Config(), loaded.Config.Name, nil, c, 0, logger)
	if err != nil {
		t.Fatal(err)
	}
	r, err := relay.New(source, broker, relay.Config{Name: "ours", Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	got := to.records(t, s.prefix(d)+"ours.", atLeast)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	return got
}

// lastRow is the end of the id of the last row of each table.
const lastRow = "000000000099"

// sink is where records go.
type sink interface {
	// open returns the broker of our configuration.
	open(t *testing.T) string
	// theirs returns the properties of Debezium Server's sink.
	theirs(t *testing.T) string
	// records waits until the last row and as many records as atLeast have come (keys are not delivered in the order of
	// the rows), and prints what came, by id. Names of topics have the prefix.
	records(t *testing.T, prefix string, atLeast int) string
}

// captured is a broker that keeps what the adapter for Kafka would send.
type captured struct {
	prefix  string
	encoder records.Encoder
	mu      sync.Mutex
	got     []string
}

func (b *captured) open(*testing.T) string   { return "{kafka: {brokers: ['127.0.0.1:9']}}" }
func (b *captured) theirs(*testing.T) string { panic("the server sends to Kafka itself") }

func (b *captured) Publish(_ context.Context, batch []*outbox.Message) []error {
	b.mu.Lock()
	defer b.mu.Unlock()
	errs := make([]error, len(batch))
	for i, m := range batch {
		var r records.Record
		if errs[i] = b.encoder.Encode(&r, m); errs[i] == nil {
			sent := kgo.Record{Topic: m.Topic, Key: r.Key, Value: r.Value}
			for _, h := range r.Headers {
				sent.Headers = append(sent.Headers, kgo.RecordHeader{Key: h.Name, Value: h.Value})
			}
			b.got = append(b.got, show(&sent, b.prefix+"ours."))
		}
	}
	return errs
}

func (b *captured) Ping(context.Context) error { return nil }
func (b *captured) Close() error               { return nil }

func (b *captured) records(t *testing.T, _ string, atLeast int) string {
	return whole(t, atLeast, func() []string {
		b.mu.Lock()
		defer b.mu.Unlock()
		return slices.Clone(b.got)
	})
}

// whole waits until the last row is there, and enough others.
func whole(t *testing.T, atLeast int, got func() []string) string {
	t.Helper()
	var all []string
	until(t, "the last row has come", func() bool {
		all = got()
		return len(all) >= atLeast && slices.ContainsFunc(all,
			func(r string) bool { return strings.Contains(r, lastRow) || strings.Contains(r, "end") })
	})
	return inOrder(all)
}

func inOrder(all []string) string {
	slices.SortStableFunc(all, func(a, b string) int { return strings.Compare(rowOf(a), rowOf(b)) })
	return strings.Join(all, "\n")
}

// rowOf is the number of the row in a printed record, or all of it if there is none.
func rowOf(record string) string {
	_, id, found := strings.Cut(record, "00000000-0000-4000-8000-")
	if !found {
		return record
	}
	return id[:len(lastRow)]
}

// show prints a record of Kafka.
func show(r *kgo.Record, prefix string) string {
	var b strings.Builder
	line := func(what string, value []byte) {
		if value == nil {
			fmt.Fprintf(&b, "%s: null\n", what)
		} else {
			fmt.Fprintf(&b, "%s: %q\n", what, value)
		}
	}
	fmt.Fprintf(&b, "topic: %s\n", strings.TrimPrefix(r.Topic, prefix))
	line("key", r.Key)
	line("value", r.Value)
	for _, h := range r.Headers {
		line("header "+h.Key, h.Value)
	}
	return b.String()
}

// httpSink is a receiver.
type httpSink struct {
	mu  sync.Mutex
	got []string
	url string
}

func (h *httpSink) listen(t *testing.T) {
	h.got = nil
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead {
			return // the relay asks whether the server answers
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		var lines []string
		for name, values := range r.Header {
			if name == "Content-Type" || strings.HasPrefix(name, "X-Debezium-") {
				lines = append(lines, fmt.Sprintf("header %s: %q\n", name, values))
			}
		}
		slices.Sort(lines)
		h.mu.Lock()
		defer h.mu.Unlock()
		h.got = append(h.got, strings.Join(lines, "")+fmt.Sprintf("body: %q\n", body))
	}))
	t.Cleanup(server.Close)
	h.url = server.URL
}

func (h *httpSink) open(t *testing.T) string {
	h.listen(t)
	return "{http: {url: " + h.url + ", allow_networks: [127.0.0.0/8]}}"
}

func (h *httpSink) theirs(t *testing.T) string {
	h.listen(t)
	return "debezium.sink.type=http\ndebezium.sink.http.url=" + h.url + "\n"
}

func (h *httpSink) records(t *testing.T, _ string, atLeast int) string {
	return whole(t, atLeast, func() []string {
		h.mu.Lock()
		defer h.mu.Unlock()
		return slices.Clone(h.got)
	})
}

// redisSink is a server with streams.
type redisSink struct {
	extended bool
	address  string
}

func (r *redisSink) open(t *testing.T) string {
	r.address = servers.TestRedis(t).Addr()
	return "{redis: {addresses: ['" + r.address + "'], create_streams: true}}"
}

func (r *redisSink) theirs(t *testing.T) string {
	r.address = servers.TestRedis(t).Addr()
	text := "debezium.sink.type=redis\ndebezium.sink.redis.address=" + r.address + "\n"
	if r.extended {
		text += "debezium.sink.redis.message.format=extended\n"
	}
	return text
}

func (r *redisSink) records(t *testing.T, prefix string, atLeast int) string {
	client := goredis.NewClient(&goredis.Options{Addr: r.address})
	defer client.Close()
	return whole(t, atLeast, func() (got []string) {
		for _, topic := range []string{"order", "order.Line"} {
			entries, err := client.Do(t.Context(), "XRANGE", prefix+topic, "-", "+").Slice()
			if err != nil {
				t.Fatal(err)
			}
			for _, entry := range entries {
				fields := entry.([]any)[1].([]any)
				text := "stream: " + topic + "\n"
				for i := 0; i < len(fields); i += 2 {
					text += fmt.Sprintf("%q: %q\n", fields[i], fields[i+1])
				}
				got = append(got, text)
			}
		}
		return got
	})
}
