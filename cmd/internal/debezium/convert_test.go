package debezium

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox/cmd/internal/config"
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
      preset: debezium
      strategy: replication
      table: public.events
      columns:
        id: event_id
        topic: "{tenant}"
        key: "{customer}"
        header_columns:
          - version=version
    replication:
      slot: theirs
      publication: pub_all
    route:
      default: events.{topic}
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

func TestEachSinkBecomesABroker(t *testing.T) {
	for _, sink := range []struct{ properties, want string }{
		{"type=http\ndebezium.sink.http.url=http://localhost:8080/events", "http:\n        url: http://localhost:8080/events"},
		{"type=redis\ndebezium.sink.redis.address=cache:6379", "redis:\n        addresses:\n          - cache:6379"},
		{"type=nats-jetstream\ndebezium.sink.nats-jetstream.url=nats://n:4222", "nats:\n        url: nats://n:4222"},
		{"type=rabbitmq\ndebezium.sink.rabbitmq.connection.host=mq\ndebezium.sink.rabbitmq.exchange=events", "url: amqp://mq:5672/"},
		{"type=pubsub\ndebezium.sink.pubsub.project.id=shop", "project: shop"},
		{"type=sqs\ndebezium.sink.sqs.region=eu-west-1", "region: eu-west-1"},
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
	for _, text := range []string{"", "{", `{"config": 1}`, "key=\\u12"} {
		if _, err := Convert([]byte(text)); err == nil {
			t.Errorf("%q is converted", text)
		}
	}
}

// valid loads what was converted as the relay would.
func valid(t *testing.T, c Converted) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "outbox.yaml")
	if err := os.WriteFile(path, c.YAML, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := config.Load(config.Input{File: path}); err != nil {
		t.Errorf("%v in\n%s", err, c.YAML)
	}
}
