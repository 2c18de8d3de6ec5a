package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pgoutbox/outbox/internal/servers"
)

// debezium runs Debezium Server and returns what it sends.
func (s *routerSetting) debezium(t *testing.T, d *database) string {
	t.Helper()
	cfg, prefix := d.Config(), s.prefix(d)+"theirs."
	var p strings.Builder
	set := func(name, value string) { fmt.Fprintf(&p, "debezium.%s=%s\n", name, value) }
	set("source.connector.class", "io.debezium.connector.postgresql.PostgresConnector")
	set("source.plugin.name", "pgoutput")
	set("source.database.hostname", cfg.Host)
	set("source.database.port", fmt.Sprint(cfg.Port))
	set("source.database.user", cfg.User)
	set("source.database.password", cfg.Password)
	set("source.database.dbname", cfg.Database)
	set("source.topic.prefix", "dbz")
	set("source.slot.name", s.slot(d, "theirs"))
	set("source.publication.name", "pub_all")
	set("source.publication.autocreate.mode", "disabled")
	set("source.table.include.list", "public."+s.table)
	set("source.snapshot.mode", "no_data")
	set("source.extended.headers.enabled", "false")
	set("source.poll.interval.ms", "10")
	set("transforms", "outbox")
	set("transforms.outbox.type", "io.debezium.transforms.outbox.EventRouter")
	set("transforms.outbox.route.topic.replacement", prefix+"$${routedByValue}")
	for line := range strings.Lines(s.theirs) {
		set("transforms.outbox."+strings.TrimSuffix(line, "\n"), "")
	}
	for what, c := range map[string]converter{"key": s.key, "value": s.value, "header": s.header} {
		set("format."+what, c.theirs)
		set("format."+what+".schemas.enable", fmt.Sprint(c == connectSchema))
	}
	var kafka *servers.Kafka
	if s.sink != nil {
		p.WriteString(s.sink.theirs(t))
	} else {
		kafka = servers.TestKafka(t)
		set("sink.type", "kafka")
		set("sink.kafka.producer.bootstrap.servers", kafka.Addr())
		set("sink.kafka.producer.key.serializer", "org.apache.kafka.common.serialization.StringSerializer")
		set("sink.kafka.producer.value.serializer", "org.apache.kafka.common.serialization."+
			map[bool]string{false: "StringSerializer", true: "ByteArraySerializer"}[s.value == connectBinary])
	}
	server := servers.OwnDebezium(t, strings.ReplaceAll(p.String(), "=\n", "\n"))
	defer server.Close()
	if s.sink != nil {
		return s.sink.records(t, prefix, 1)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(kafka.Addr()), kgo.ConsumeRegex(), kgo.ConsumeTopics("^"+strings.ReplaceAll(prefix, ".", `\.`)),
		kgo.MetadataMinAge(100*time.Millisecond), kgo.MetadataMaxAge(200*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var all []string
	for {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("the last row has not come: %v\n%s", err, server.Log())
		}
		for r := range fetches.RecordsAll() {
			all = append(all, show(r, prefix))
			if rowOf(all[len(all)-1]) == lastRow {
				return inOrder(all)
			}
		}
	}
}
