package debezium

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox/cmd/internal/config/load"
)

const server = `
# Debezium Server
debezium.source.connector.class=io.debezium.connector.postgresql.PostgresConnector
debezium.source.plugin.name=pgoutput
debezium.source.database.hostname=${DB_HOST:db.example.com}
debezium.source.database.user=dbz user
debezium.source.database.password=s3cret
debezium.source.database.dbname=shop
debezium.source.database.sslmode=require
debezium.source.topic.prefix=dbz
debezium.source.slot.name=theirs
debezium.source.publication.name=pub_all
debezium.source.table.include.list=public\\.events
debezium.source.offset.storage.file.filename=data/offsets.dat
debezium.source.slot.drop.on.stop=true
debezium.transforms=outbox,mask
debezium.transforms.outbox.type=io.debezium.transforms.outbox.EventRouter
debezium.transforms.outbox.route.topic.replacement=events.$${routedByValue}
debezium.transforms.outbox.route.by.field=tenant
debezium.transforms.outbox.table.field.event.key=customer
debezium.transforms.outbox.table.field.event.id=event_id
debezium.transforms.outbox.table.fields.additional.placement=type:header:eventType,version:envelope
debezium.transforms.outbox.table.expand.json.payload=true
debezium.transforms.outbox.route.tombstone.on.empty.payload=true
debezium.transforms.mask.type=com.example.Mask
debezium.transforms.mask.fields=a
debezium.format.key=simplestring
debezium.format.schemas.enable=false
debezium.format.value.schemas.enable=true
debezium.sink.type=kafka
debezium.sink.kafka.producer.bootstrap.servers=a:9092, b:9092
debezium.sink.kafka.producer.key.serializer=org.apache.kafka.common.serialization.StringSerializer
debezium.sink.kafka.producer.linger.ms=5
debezium.sink.kafka.producer.compression.type=zstd
quarkus.log.level=INFO
`

const converted = `database:
  url: postgres://dbz%20user@${DB_HOST:db.example.com}:5432/shop?sslmode=require
destinations:
  - name: debezium
    source:
      strategy: replication
      table: public.events
      columns:
        id: event_id
        topic: "{tenant}"
        aggregate_type: tenant
        aggregate_id: customer
        event_type: type
        payload: payload
        header_columns:
          - version=version
    replication:
      slot: theirs
      publication: pub_all
    route:
      default: events.{aggregate_type}
    format:
      debezium:
        key: string
        value: json-schema
        header: json
        expand: true
        tombstone: true
        place:
          - field: event_type
            alias: eventType
          - field: header.version
            envelope: true
        schema: dbz.public.events.Value
    broker:
      kafka:
        brokers:
          - a:9092
          - b:9092
        compression: zstd
`

const connector = `{"name": "Orders Outbox", "config": {
	"connector.class": "io.debezium.connector.postgresql.PostgresConnector", "plugin.name": "pgoutput", "tasks.max": 1,
	"database.hostname": "db", "database.port": "5433", "database.user": "dbz", "database.dbname": "shop",
	"table.include.list": "public.outboxevent", "transforms": "router",
	"transforms.router.type": "io.debezium.transforms.outbox.EventRouter",
	"value.converter": "io.debezium.converters.BinaryDataConverter", "key.converter": "org.apache.kafka.connect.storage.StringConverter"}}`

func TestAConfigurationBecomesOneOfTheRelay(t *testing.T) {
	got, err := Convert([]byte(server))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(string(got.YAML), "\n"+converted) {
		t.Errorf("converted to\n%s\nand not to\n%s", got.YAML, converted)
	}
	for _, want := range []string{"The password of dbz user", "slot.drop.on.stop", "The transform mask", "header.version",
		"dead letters", "Not taken over: debezium.sink.kafka.producer.linger.ms."} {
		if !strings.Contains(strings.Join(got.Notes, "\n"), want) {
			t.Errorf("no note has %q: %q", want, got.Notes)
		}
	}
	if strings.Contains(string(got.YAML), "s3cret") {
		t.Error("the password was copied")
	}
	valid(t, got)
}

func TestAConnectorOfKafkaConnectBecomesOneOfTheRelay(t *testing.T) {
	got, err := Convert([]byte(connector))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"name: orders-outbox", "url: postgres://dbz@db:5433/shop", "slot: debezium", "publication: dbz_publication",
		"key: string", "value: string", "header: string", "payload: bytea", "${KAFKA_BROKERS:-localhost:9092}"} {
		if !strings.Contains(string(got.YAML), want) {
			t.Errorf("no %q in\n%s", want, got.YAML)
		}
	}
	valid(t, got)
}

// converts replaces settings of the server's file, or adds them.
func converts(t *testing.T, settings ...string) Converted {
	t.Helper()
	text := server
	for _, s := range settings {
		name, _, _ := strings.Cut(s, "=")
		text = regexp.MustCompile("(?m)^"+regexp.QuoteMeta(name)+"=.*\n").ReplaceAllString(text, "") + s + "\n"
	}
	got, err := Convert([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestOnlyColumnsAreReadThatTheRouterReads(t *testing.T) {
	text := strings.ReplaceAll(connector, `"transforms": "router"`,
		`"transforms": "router", "transforms.router.table.field.event.key": "aggregate_id", "transforms.router.route.by.field": "aggregate_type"`)
	got, err := Convert([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	valid(t, got)
	for _, want := range []string{"aggregate_type: aggregate_type", "aggregate_id: aggregate_id", "id: id", "payload: payload"} {
		if !strings.Contains(string(got.YAML), want) {
			t.Errorf("no %q in\n%s", want, got.YAML)
		}
	}
	for _, absent := range []string{"preset:", "\n        event_type:", "aggregatetype", "aggregateid"} {
		if strings.Contains(string(got.YAML), absent) {
			t.Errorf("there is %q in\n%s", absent, got.YAML)
		}
	}
}

// TestTheTableIsFoundOrAskedFor lists what the connector may read beside the outbox.
func TestTheTableIsFoundOrAskedFor(t *testing.T) {
	const list, predicate = "debezium.source.table.include.list=", "debezium.transforms.outbox.predicate=isOutbox"
	for _, c := range []struct {
		want     string
		settings []string
	}{
		{"public.outbox", []string{list + "^public[.]outbox$"}},
		{"public.outbox", []string{list + "public.outbox, public.signals", "debezium.source.signal.data.collection=public.signals"}},
		{"public.outbox", []string{list + "public.outbox,public.beat",
			"debezium.source.heartbeat.action.query=INSERT INTO public.beat (id) VALUES (1)"}},
		{"public.outbox", []string{list + "public.orders,public.outbox", predicate,
			"debezium.predicates.isOutbox.type=org.apache.kafka.connect.transforms.predicates.TopicNameMatches",
			`debezium.predicates.isOutbox.pattern=dbz\\.public\\.outbox.*`}},
		{"public.outbox", []string{list, predicate, `debezium.predicates.isOutbox.pattern=dbz\\.public\\.outbox`}},
		{"", []string{list}},
		{"", []string{list + "public.a,public.b"}},
		{"", []string{list + "public.outbox.*"}},
		{"", []string{list + "outbox"}},
	} {
		got := converts(t, c.settings...)
		if c.want == "" {
			unfinished(t, got, "OUTBOX_TABLE")
			continue
		}
		if !strings.Contains(string(got.YAML), "    table: "+c.want+"\n") {
			t.Errorf("%q: no table %s in\n%s", c.settings, c.want, got.YAML)
		}
		valid(t, got)
	}
}

func TestTopicsAreRenamedAsTheTransformsDo(t *testing.T) {
	const regex, replacement = "debezium.transforms.outbox.route.topic.regex=", "debezium.transforms.outbox.route.topic.replacement="
	behind := []string{"debezium.transforms=outbox,last", "debezium.transforms.last.type=org.apache.kafka.connect.transforms.RegexRouter"}
	for _, c := range []struct {
		want     string
		settings []string
	}{
		{"{aggregate_type}", []string{replacement + "$${routedByValue}"}},
		{"a.{aggregate_type}.b", []string{regex + "(.*)", replacement + "a.$1.b"}},
		{"a.{aggregate_type}", []string{regex + "^(?<kind>.+)$", replacement + "a.$${kind}"}},
		{"all", []string{replacement + "all"}},
		{"prod.{aggregate_type}", append(behind, replacement+"outbox.event.$${routedByValue}",
			`debezium.transforms.last.regex=outbox\\.event\\.(.*)`, "debezium.transforms.last.replacement=prod.$1")},
		{"", []string{regex + "(.*)-(.*)", replacement + "$2"}},
		{"", append(behind, "debezium.transforms.last.regex=other\\\\.(.*)", "debezium.transforms.last.replacement=$1")},
		{"", []string{regex + "([a-z]+).*", replacement + "$1"}},
		{"", []string{replacement + "$2"}},
	} {
		got := converts(t, c.settings...)
		if c.want == "" {
			unfinished(t, got, "OUTBOX_TOPIC")
			continue
		}
		if !regexp.MustCompile("default: [\"']?" + regexp.QuoteMeta(c.want) + "[\"']?\n").Match(got.YAML) {
			t.Errorf("%q: no topic %s in\n%s", c.settings, c.want, got.YAML)
		}
		valid(t, got)
	}
}

func TestASlotOfAnotherPluginIsNotRead(t *testing.T) {
	unfinished(t, converts(t, "debezium.source.plugin.name=decoderbufs"), "OUTBOX_SLOT")
}

func TestWhatAProviderLooksUpBecomesAVariable(t *testing.T) {
	got, err := Convert([]byte(strings.NewReplacer(`"db"`, `"${file:/etc/db.properties:host}"`, `"dbz"`, `"${env:DB_USER}"`,
		`"5433"`, "5433").Replace(connector)))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(got.YAML), "postgres://${DB_USER}@${DATABASE_HOSTNAME}:5433/shop") {
		t.Errorf("%s", got.YAML)
	}
	unfinished(t, got, "DATABASE_HOSTNAME")
}

func TestAConnectorOfStrimziBecomesOneOfTheRelay(t *testing.T) {
	got, err := Convert([]byte("apiVersion: kafka.strimzi.io/v1beta2\nkind: KafkaConnector\nmetadata:\n  name: orders\nspec:\n" +
		"  class: io.debezium.connector.postgresql.PostgresConnector\n  tasksMax: 1\n  config:\n    plugin.name: pgoutput\n" +
		"    table.include.list: public.outbox\n    database.port: 5433\n    transforms: outbox\n" +
		"    transforms.outbox.type: io.debezium.transforms.outbox.EventRouter\n"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(got.YAML), "name: orders\n") || !strings.Contains(string(got.YAML), "@localhost:5433/") {
		t.Errorf("%s", got.YAML)
	}
	valid(t, got)
}

func TestEachSinkBecomesABroker(t *testing.T) {
	for _, sink := range []struct{ properties, want string }{
		{"type=http\ndebezium.sink.http.url=http://localhost:8080/events", "http:\n        url: http://localhost:8080/events"},
		{"type=redis\ndebezium.sink.redis.address=cache:6379", "redis:\n        addresses:\n          - cache:6379"},
		{"type=nats-jetstream\ndebezium.sink.nats-jetstream.url=nats://n:4222", "url: nats://n:4222"},
		{"type=rabbitmq\ndebezium.sink.rabbitmq.connection.host=mq\ndebezium.sink.rabbitmq.exchange=events", "url: amqp://mq:5672/"},
		{"type=pubsub\ndebezium.sink.pubsub.project.id=shop", "project: shop"},
		{"type=sqs\ndebezium.sink.sqs.region=eu-west-1", "region: eu-west-1"},
		{"type=sqs\ndebezium.sink.sqs.queue.url=https://sqs.eu-west-1.amazonaws.com/1234/events",
			"queue: events\n        region: eu-west-1\n        unordered: true"},
		{"type=nats-jetstream\ndebezium.sink.nats-jetstream.create-stream=true\ndebezium.sink.nats-jetstream.subjects=outbox,outbox.>",
			"stream: DebeziumStream"},
	} {
		text := server[:strings.Index(server, "debezium.sink.type")] + "debezium.sink." + sink.properties
		got, err := Convert([]byte(text))
		if err != nil {
			t.Error(err)
			continue
		}
		if !strings.Contains(string(got.YAML), sink.want) {
			t.Errorf("no %q in\n%s", sink.want, got.YAML)
		}
		valid(t, got)
	}
}

func TestWhatHasNoCounterpartIsAnError(t *testing.T) {
	for _, c := range []struct{ old, new, want string }{
		{"postgresql.PostgresConnector", "mysql.MySqlConnector", "the relay reads PostgreSQL alone"},
		{"outbox.EventRouter", "ByLogicalTableRouter", "none of the transforms is"},
		{"sink.type=kafka", "sink.type=kinesis", "the sink is kinesis"},
		{"format.key=simplestring", "format.key=avro", "debezium.format.key is avro"},
	} {
		if _, err := Convert([]byte(strings.ReplaceAll(server, c.old, c.new))); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("with %s: %v; want %q", c.new, err, c.want)
		}
	}
	two := strings.Replace(server, "transforms=outbox,mask", "transforms=outbox,mask,two", 1) +
		"debezium.transforms.two.type=io.debezium.transforms.outbox.EventRouter\n"
	for _, text := range []string{"", "{", `{"config": 1}`, "key=\\u12", "DEBEZIUM_SINK_TYPE=kafka",
		"quarkus.debezium-outbox.table-name=OutboxEvent", two} {
		if _, err := Convert([]byte(text)); err == nil {
			t.Errorf("%q is converted", text)
		}
	}
}

// valid loads what was converted as the relay would.
func valid(t *testing.T, c Converted) {
	t.Helper()
	if err := accepted(t, c); err != nil {
		t.Errorf("%v in\n%s", err, c.YAML)
	}
}

// unfinished means that the relay would not start before the variable is given.
func unfinished(t *testing.T, c Converted, variable string) {
	t.Helper()
	if err := accepted(t, c); err == nil || !strings.Contains(err.Error(), "the variable "+variable+" is not set") {
		t.Errorf("%s isn't asked for: %v in\n%s", variable, err, c.YAML)
	}
	if !strings.Contains(strings.Join(c.Notes, "\n"), variable) {
		t.Errorf("no note names %s: %q", variable, c.Notes)
	}
}

func accepted(t *testing.T, c Converted) error {
	t.Helper()
	path := filepath.Join(t.TempDir(), "outbox.yaml")
	if err := os.WriteFile(path, c.YAML, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := load.Config(load.Input{File: path})
	return err
}
