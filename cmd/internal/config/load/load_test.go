package load_test

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	api "github.com/pgoutbox/outbox/admin/rest"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/brokers"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/internal/configtest"
	"github.com/pgoutbox/outbox/cmd/internal/config/load"
	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
)

func TestEveryDefaultIsAsDocumented(t *testing.T) {
	t.Parallel()
	l := configtest.Load(t, minimal+`
  - name: kafka
    broker: {kafka: {brokers: [k:9092]}}
  - name: nats
    broker: {nats: }
`, load.Input{Hostname: "Relay-7.example.com"})
	rest := config.Destination{
		Weight:      1,
		ShardGroups: 1,
		Delivery: config.Delivery{
			MaxAttempts: 10, OnExhausted: "dead_letter",
			Backoff:   config.Backoff{Initial: 100 * time.Millisecond, Max: time.Minute},
			Outage:    config.Outage{Initial: 100 * time.Millisecond, Max: time.Second},
			HoldAfter: time.Second, MaxInFlight: 9000, MaxInFlightBytes: 5242880, Batch: 3000,
		},
		Lease:        3 * time.Second, // a default
		Poll:         config.Poll{Busy: time.Millisecond, Idle: 100 * time.Millisecond},
		DrainTimeout: 10 * time.Second, LagObjective: 30 * time.Second,
	}
	orders, kafka, nats := rest, rest, rest
	orders.Name, orders.Broker.Stdout = "orders", &brokers.Stdout{}
	kafka.Name, kafka.Broker.Kafka = "kafka", &brokers.Kafka{
		Brokers: []string{"k:9092"}, Topic: "{topic}", ClientID: "outbox", SASL: brokers.SASL{Mechanism: "scram-sha-512"},
		Compression: "none", Partitions: 1, ReplicationFactor: -1,
	}
	nats.Name, nats.Broker.NATS = "nats", &brokers.NATS{URL: scalar.NewURL("nats://127.0.0.1:4222"), Subject: "{topic}", Replicas: 1}
	want := config.Config{
		Name:     "relay-7-example-com",
		Database: config.Database{URL: scalar.NewURL("postgres://app@db/app")},
		Log:      config.Log{Level: "info", Format: "auto"},
		HTTP: config.HTTP{Listen: "127.0.0.1:9187", API: true, MaskHeaders: api.CredentialHeaders(),
			Metrics: config.Metrics{Databases: 100, Worst: 20}},
		Retention:    config.Retention{Enabled: true, Interval: 30 * time.Second},
		DormantPoll:  time.Minute,
		Limits:       config.Limits{InFlight: 500_000, InFlightBytes: 256 << 20, CatchUps: 16},
		Destinations: []config.Destination{orders, kafka, nats},
	}
	if !reflect.DeepEqual(l.Config, want) {
		t.Errorf("configuration\n got %+v\nwant %+v", l.Config, want)
	}
	if len(l.Warnings) > 0 {
		t.Errorf("warnings %q", l.Warnings)
	}
}

func TestAnInstanceNeedsNoFile(t *testing.T) {
	t.Parallel()
	l, err := load.Config(load.Input{
		Environ:   []string{"OUTBOX_DATABASE_URL=postgres://app@db/app"},
		Overrides: map[string]string{"destinations.0.name": "console", "destinations.0.broker.stdout": "{}"},
		Hostname:  "--",
	})
	if err != nil {
		t.Fatal(err)
	}
	if c := l.Config; c.Name != "relay" || len(c.Destinations) != 1 || c.Destinations[0].Broker.Stdout == nil ||
		c.Destinations[0].Delivery.Batch != 3000 {
		t.Errorf("configuration %+v", c)
	}
}

func TestALayerPrevailsOverThoseBelow(t *testing.T) {
	t.Parallel()
	text := minimal + "log: {level: debug, format: text}\nhttp: {listen: 127.0.0.1:1}\n"
	in := load.Input{
		Environ:   []string{"OUTBOX_LOG_LEVEL=warn", "OUTBOX_HTTP_LISTEN=", "OUTBOX_DESTINATIONS_0_DELIVERY_BATCH=7"},
		Overrides: map[string]string{"log.level": "error", "destinations[0].delivery.batch": "8"},
	}
	c := configtest.Load(t, text, in).Config
	if c.Log.Level != "error" || c.Log.Format != "text" || c.HTTP.Listen != "" || c.Destinations[0].Delivery.Batch != 8 {
		t.Errorf("configuration %+v", c)
	}
}

func TestTheEnvironmentSetsEveryKindOfValue(t *testing.T) {
	t.Parallel()
	l := configtest.Load(t, minimal, load.Input{Environ: []string{
		"OUTBOX_NAME=a", "OUTBOX_RETENTION_ENABLED=false", "OUTBOX_RETENTION_INTERVAL=1m",
		"OUTBOX_DESTINATIONS_0_TOPICS=orders.*, !orders.internal",
		"OUTBOX_DESTINATIONS_0_DELIVERY_MAX_IN_FLIGHT_BYTES=1MiB",
		"OUTBOX_DESTINATIONS_1_NAME=k",
		"OUTBOX_DESTINATIONS_1_BROKER_KAFKA_BROKERS=[\"a:1\", \"b:2\"]",
		"OUTBOX_DESTINATIONS_1_BROKER_KAFKA_SASL_USERNAME=u",
		"OUTBOX_DESTINATIONS_1_BROKER_KAFKA_SASL_PASSWORD=${not} a: reference",
		"OUTBOX_DESTINATIONS_2_NAME=s",
		"OUTBOX_DESTINATIONS_2_BROKER_STDOUT=",
	}})
	c := l.Config
	kafka := c.Destinations[1].Broker.Kafka
	for what, ok := range map[string]bool{
		"name":      c.Name == "a",
		"retention": c.Retention == config.Retention{Interval: time.Minute},
		"topics":    reflect.DeepEqual(c.Destinations[0].Topics, []string{"orders.*", "!orders.internal"}),
		"size":      c.Destinations[0].Delivery.MaxInFlightBytes == 1<<20,
		"kafka":     kafka != nil && reflect.DeepEqual(kafka.Brokers, []string{"a:1", "b:2"}) && kafka.Topic == "{topic}",
		"password":  kafka != nil && kafka.SASL.Password.Text() == "${not} a: reference",
		"stdout":    len(c.Destinations) == 3 && c.Destinations[2].Broker.Stdout != nil,
	} {
		if !ok {
			t.Errorf("%s: %+v", what, c)
		}
	}
}

func TestAVariableThatLooksLikeATypingErrorIsAWarning(t *testing.T) {
	t.Parallel()
	l := configtest.Load(t, minimal, load.Input{Environ: []string{
		"OUTBOX_LOG_LEVLE=debug", "OUTBOX_DESTINATIONS_0_DELIVERY_BATHC=1",
		// What Kubernetes sets for a service named outbox.
		"OUTBOX_PORT=tcp://10.0.0.1:80", "OUTBOX_SERVICE_HOST=10.0.0.1", "OUTBOX_PORT_9187_TCP_ADDR=10.0.0.1",
		"OTHER_LOG_LEVEL=x",
	}})
	want := []string{
		"the environment variable OUTBOX_DESTINATIONS_0_DELIVERY_BATHC is not used; did you mean OUTBOX_DESTINATIONS_0_DELIVERY_BATCH?",
		"the environment variable OUTBOX_LOG_LEVLE is not used; did you mean OUTBOX_LOG_LEVEL?",
	}
	if !reflect.DeepEqual(l.Warnings, want) {
		t.Errorf("warnings\n got %q\nwant %q", l.Warnings, want)
	}
}

func TestReferencesAreReplacedAfterParsing(t *testing.T) {
	t.Parallel()
	l := configtest.Load(t, `
name: ${NAME:-from-default}
database:
  url: postgres://${USER}:${PASSWORD}@${HOST:db}/app?x=$${y}
log: {level: "${LEVEL:-warn}"}
destinations:
  - name: a${EMPTY}${EMPTY:-b}
    topics: ["${TOPIC}", "plain$"]
    broker: {kafka: {brokers: [a:1, b:2], client_id: "${RAW}"}}
    delivery: {batch: "${BATCH}", max_in_flight_bytes: "${BYTES:64KiB}"}
    lease: ${LEASE:-2s}
`, load.Input{Environ: []string{"USER=u", "PASSWORD=p:,$'", "RAW=${USER}: [#", "EMPTY=", "TOPIC=a,b:c", "BATCH=12"}, Hostname: "x"})
	c := l.Config
	d := c.Destinations[0]
	for what, ok := range map[string]bool{
		"name":  c.Name == "from-default",
		"url":   c.Database.URL.Text() == "postgres://u:p:,$'@db/app?x=${y}",
		"level": c.Log.Level == "warn",
		"raw":   d.Broker.Kafka.ClientID == "${USER}: [#",
		"empty": d.Name == "ab",
		"list": reflect.DeepEqual(d.Broker.Kafka.Brokers, []string{"a:1", "b:2"}) &&
			reflect.DeepEqual(d.Topics, []string{"a,b:c", "plain$"}),
		"number":   d.Delivery.Batch == 12,
		"size":     d.Delivery.MaxInFlightBytes == 64<<10,
		"duration": d.Lease == 2*time.Second,
	} {
		if !ok {
			t.Errorf("%s: %#v", what, c)
		}
	}
}

func TestScalarsAreTakenAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	l := configtest.Load(t, configtest.Destination(`
broker:
  nats:
    user: true
    password: 0123
    stream: 1e3
    subject: |-
      a.{topic}
`), load.Input{})
	n := l.Config.Destinations[0].Broker.NATS
	if n.User != "true" || n.Password.Text() != "0123" || n.Stream != "1e3" || n.Subject != "a.{topic}" {
		t.Errorf("%#v", *n)
	}
}

func TestSizesAreReadWithAnyUnit(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]scalar.Size{
		"2048": 2048, "2048B": 2048, "\"2048 B\"": 2048, "2KiB": 2048, "2kB": 2000, "2KB": 2000, "3MB": 3e6,
		"3MiB": 3 << 20, "1GB": 1e9, "1GiB": 1 << 30,
	} {
		l := configtest.Load(t, configtest.Destination("broker: {stdout: }\ndelivery: {max_in_flight_bytes: "+text+"}"), load.Input{})
		if got := l.Config.Destinations[0].Delivery.MaxInFlightBytes; got != want {
			t.Errorf("%s is read as %d, want %d", text, int64(got), int64(want))
		}
	}
}

func TestAnchorsAndAliasesWork(t *testing.T) {
	t.Parallel()
	l := configtest.Load(t, `
database: {url: &url "postgres://app@db/app"}
destinations:
  - name: a
    broker: {stdout: {}}
    delivery: &patient {max_attempts: 99}
  - name: b
    broker: {stdout: {}}
    delivery: *patient
`, load.Input{})
	if got := l.Config.Destinations[1].Delivery; got.MaxAttempts != 99 || got.Batch != 3000 {
		t.Errorf("aliased section %+v", got)
	}
}

func TestNullAndEmptySectionsLeaveTheDefaults(t *testing.T) {
	t.Parallel()
	l := configtest.Load(t, minimal+"log:\nhttp: ~\nretention: {interval: }\n", load.Input{})
	if c := l.Config; c.Log.Level != "info" || c.HTTP.Listen != "127.0.0.1:9187" || c.Retention.Interval != 30*time.Second {
		t.Errorf("configuration %+v", c)
	}
}

func TestSecretsAreReadFromFiles(t *testing.T) {
	t.Parallel()
	password := configtest.Write(t, "password", "p w\r\n")
	url := configtest.Write(t, "url", "postgres://file@db/app\n")
	l := configtest.Load(t, `
database: {url_file: "${FILE}"}
destinations:
  - name: a
    broker: {kafka: {brokers: [a:1], sasl: {username: u, password: , password_file: `+password+`}}}
`, load.Input{Environ: []string{"FILE=" + url}})
	if got := l.Config.Database.URL.Text(); got != "postgres://file@db/app" {
		t.Errorf("url %q", got)
	}
	if got := l.Config.Destinations[0].Broker.Kafka.SASL.Password.Text(); got != "p w" {
		t.Errorf("password %q", got)
	}
}

func TestASecretOfAHigherLayerReplacesEitherForm(t *testing.T) {
	t.Parallel()
	file := configtest.Write(t, "url", "postgres://file@db/app")
	own, twin := "database: {url: postgres://text@db/app}", "database: {url_file: "+file+"}"
	rest := strings.SplitAfterN(minimal, "\n", 3)[2]
	for _, test := range []struct {
		text string
		env  string
		want string
	}{
		{own, "OUTBOX_DATABASE_URL_FILE=" + file, "postgres://file@db/app"},
		{own, "OUTBOX_DATABASE_URL=postgres://env@db/app", "postgres://env@db/app"},
		{twin, "OUTBOX_DATABASE_URL=postgres://env@db/app", "postgres://env@db/app"},
		{twin, "OTHER=", "postgres://file@db/app"},
	} {
		c := configtest.Load(t, test.text+"\n"+rest, load.Input{Environ: []string{test.env}}).Config
		if c.Database.URL.Text() != test.want {
			t.Errorf("%s with %s: %#v, want %s", test.text, test.env, c.Database, test.want)
		}
		if strings.HasPrefix(test.want, "postgres://env") && c.Database.URLFile != "" {
			t.Errorf("%s with %s: the file remains", test.text, test.env)
		}
	}
}

func TestMoreInFlightFollowsALargerBatch(t *testing.T) {
	t.Parallel()
	l := configtest.Load(t, configtest.Destination("broker: {stdout: {}}\ndelivery: {batch: 30000}"), load.Input{})
	if got := l.Config.Destinations[0].Delivery.MaxInFlight; got != 60_000 {
		t.Errorf("max_in_flight %d, want 60000", got)
	}
}

func TestOverridesAddElementsInTheOrderOfTheirNumbers(t *testing.T) {
	t.Parallel()
	overrides := make(map[string]string)
	for i, name := range strings.Split("abcdefghijkl", "") {
		path := "destinations." + []string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11"}[i]
		overrides[path+".name"], overrides[path+".broker"] = name, "{stdout: {}}"
	}
	l, err := load.Config(load.Input{Overrides: overrides, Environ: []string{"OUTBOX_DATABASE_URL=postgres://app@db/app"}})
	if err != nil {
		t.Fatal(err)
	}
	var names strings.Builder
	for _, d := range l.Config.Destinations {
		names.WriteString(d.Name)
	}
	if names.String() != "abcdefghijkl" {
		t.Errorf("destinations in the order %s", &names)
	}
}

func TestWhatHasNoEffectIsAWarning(t *testing.T) {
	t.Parallel()
	in := load.Input{}
	l := configtest.Load(t, configtest.Destination(`
broker:
  kafka:
    brokers: [a:1]
    partitions: 3
    replication_factor: 2
    sasl: {mechanism: plain, username: u, password: p}
    tls: {ca_file: /none}`)+`
  - name: b
    broker:
      nats:
        replicas: 3
        stream_subjects: [a.>]
        tls: {enabled: true, insecure_skip_verify: true}
`, in)
	var got []string
	for _, w := range l.Warnings {
		_, after, _ := strings.Cut(w, "outbox.yaml:")
		got = append(got, "outbox.yaml:"+after)
	}
	golden(t, "testdata/warnings.txt", strings.Join(got, "\n")+"\n")
}

func TestTheExampleIsValid(t *testing.T) {
	t.Parallel()
	l, err := load.Config(load.Input{File: examplePath})
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Warnings) > 0 {
		t.Errorf("warnings %q", l.Warnings)
	}
	// What it calls a default is one.
	d := l.Config.Destinations[0]
	if standard := fields.Default[config.Destination](); !reflect.DeepEqual(d.Delivery, standard.Delivery) ||
		d.Poll != standard.Poll || d.Lease != standard.Lease || d.LagObjective != standard.LagObjective ||
		d.DrainTimeout != standard.DrainTimeout {
		t.Errorf("the example's destination %+v has other values than %+v", d, standard)
	}
	kafka := *d.Broker.Kafka
	kafka.Brokers = nil
	if !reflect.DeepEqual(kafka, fields.Default[brokers.Kafka]()) {
		t.Errorf("the example's broker %+v has other values than %+v", kafka, fields.Default[brokers.Kafka]())
	}
}

var examplePath = filepath.Join("..", "..", "..", "..", "docs", "outbox.example.yaml")

func FuzzLoad(f *testing.F) {
	example, err := os.ReadFile(examplePath)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(example))
	f.Add(minimal)
	f.Add("a: &a [*a]\n")
	f.Add("${")
	f.Add("name: ${X")
	f.Add("? [a]\n: b")
	f.Add("!!binary x: y")
	f.Add("{<<: *x}")
	path := filepath.Join(f.TempDir(), "f.yaml")
	f.Fuzz(func(t *testing.T, text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := load.Config(load.Input{File: path, Hostname: "h"})
		if err != nil {
			return
		}
		// What is shown is read back as the same, where there is no secret.
		if strings.Contains(l.Show(), "***") {
			return
		}
		if err := os.WriteFile(path, []byte(l.Show()), 0o600); err != nil {
			t.Fatal(err)
		}
		again, err := load.Config(load.Input{File: path, Hostname: "h"})
		if err != nil {
			t.Fatalf("%v\n%s", err, l.Show())
		}
		a, b := l.Config, again.Config
		for _, c := range []*config.Config{&a, &b} {
			for i := range c.Destinations {
				if len(c.Destinations[i].Topics) == 0 {
					c.Destinations[i].Topics = nil
				}
				if n := c.Destinations[i].Broker.NATS; n != nil && len(n.StreamSubjects) == 0 {
					n.StreamSubjects = nil
				}
			}
		}
		if !reflect.DeepEqual(a, b) {
			t.Fatalf("read back differently:\n%#v\n%#v\n%s", a, b, l.Show())
		}
	})
}

// A service of the user's own answers every message with an error while its database is down: that must not make dead
// letters within a minute.
func TestServicesOfUsersHaveMorePatience(t *testing.T) {
	t.Parallel()
	read := func(broker, delivery string) config.Delivery {
		t.Helper()
		l, faults := configtest.Try(t, "database: {url: postgres://a@b/c}\ndestinations:\n- name: d\n  broker: "+broker+"\n"+delivery, load.Input{})
		if faults != "" {
			t.Fatal(faults)
		}
		return l.Config.Destinations[0].Delivery
	}
	for _, broker := range []string{"{http: {url: 'https://example.com/'}}", "{grpc: {target: 'example.com:443'}}"} {
		d := read(broker, "")
		if d.Outage.After != 5 || d.MaxAttempts != 40 || d.Backoff.Max != 5*time.Minute {
			t.Errorf("%s: %+v", broker, d)
		}
		d = read(broker, "  delivery: {max_attempts: 3, backoff: {max: 2s}, outage: {after: 0}}")
		if d.Outage.After != 0 || d.MaxAttempts != 3 || d.Backoff.Max != 2*time.Second {
			t.Errorf("%s, as it was given: %+v", broker, d)
		}
	}
	if d := read("{kafka: {brokers: ['k:9092']}}", ""); d.Outage.After != 0 || d.MaxAttempts != 10 {
		t.Errorf("kafka: %+v", d)
	}
}
