package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pgoutbox/outbox/internal/await"
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
	ctx := await.Context(t)
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

// A service writes 200 events a second, each deleted in its own transaction. Debezium Server, the relay and Debezium
// Server again deliver them by one slot. The relay's configuration is made from Debezium's.
func TestTheRelayTakesOverFromDebeziumServerAndGivesBack(t *testing.T) {
	if *besideDebezium == "" {
		t.Skip("Debezium Server is run by make test-debezium")
	}
	for _, how := range []string{"stopped", "killed"} {
		t.Run(how, func(t *testing.T) { handOver(t, how == "killed") })
	}
}

func handOver(t *testing.T, killed bool) {
	d := emptyDatabase(t)
	kafka := servers.TestKafka(t)
	cfg := d.Config()
	topic, slot := cfg.Database+".order", "handed_"+cfg.Database
	d.exec(`CREATE TABLE events (id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL,
		type varchar(255) NOT NULL, payload jsonb)`)
	d.exec("CREATE PUBLICATION handed FOR TABLE events")
	d.exec("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", slot)
	theirs := fmt.Sprintf(`debezium.source.connector.class=io.debezium.connector.postgresql.PostgresConnector
debezium.source.plugin.name=pgoutput
debezium.source.database.hostname=%s
debezium.source.database.port=%d
debezium.source.database.user=%s
debezium.source.database.password=%s
debezium.source.database.dbname=%[5]s
debezium.source.topic.prefix=dbz
debezium.source.slot.name=%[6]s
debezium.source.publication.name=handed
debezium.source.publication.autocreate.mode=disabled
debezium.source.table.include.list=public.events
debezium.source.snapshot.mode=no_data
debezium.source.extended.headers.enabled=false
debezium.source.offset.flush.interval.ms=1000
debezium.transforms=outbox
debezium.transforms.outbox.type=io.debezium.transforms.outbox.EventRouter
debezium.transforms.outbox.route.topic.replacement=%[5]s.$${routedByValue}
debezium.format.key=simplestring
debezium.format.value=simplestring
debezium.format.header=json
debezium.format.header.schemas.enable=false
debezium.sink.type=kafka
debezium.sink.kafka.producer.bootstrap.servers=%[7]s
debezium.sink.kafka.producer.key.serializer=org.apache.kafka.common.serialization.StringSerializer
debezium.sink.kafka.producer.value.serializer=org.apache.kafka.common.serialization.StringSerializer
`, cfg.Host, cfg.Port, cfg.User, cfg.Password, cfg.Database, slot, kafka.Addr())
	properties := filepath.Join(d.folder, "application.properties")
	if err := os.WriteFile(properties, []byte(theirs), 0o600); err != nil {
		t.Fatal(err)
	}
	ours := d.outbox("config", "from-debezium", properties).want(exitOK, "dead letters").stdout

	client, err := kgo.NewClient(kgo.SeedBrokers(kafka.Addr()), kgo.ConsumeTopics(topic),
		kgo.MetadataMinAge(100*time.Millisecond), kgo.MetadataMaxAge(200*time.Millisecond), kgo.UnknownTopicRetries(-1))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var got []handed
	arrived := make(map[int]bool)
	poll := func() {
		ctx, cancel := context.WithTimeout(t.Context(), await.Expiry(100*time.Millisecond))
		defer cancel()
		client.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			got = append(got, asHanded(t, r, cfg.Database+"."))
			arrived[got[len(got)-1].n] = true
		})
	}
	written := make(map[int]int64) // by number, the end of the log after the commit
	var newest atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	defer writing.Wait()
	defer stop()
	writing.Go(func() { writeEvents(ctx, t, d.url, written, &newest) })

	// turn waits for 400 that are written from now on, stops what delivers them, and returns the slot's position then.
	turn := func(end func() error) (confirmed int64) {
		t.Helper()
		n := int(newest.Load()) + 400
		until(t, "400 more have come", func() bool { poll(); return arrived[n] })
		if err := end(); err != nil {
			t.Error(err)
		}
		const query = "SELECT pg_wal_lsn_diff(confirmed_flush_lsn, '0/0')::bigint FROM pg_replication_slots WHERE " +
			"slot_name = $1 AND NOT active"
		until(t, "the slot is free", func() bool { return d.QueryRow(t.Context(), query, slot).Scan(&confirmed) == nil })
		return confirmed
	}
	debezium := func() (end func() error) {
		server := servers.OwnDebezium(t, theirs)
		if killed {
			return server.Kill9
		}
		return server.Stop
	}
	var confirmed []int64
	confirmed = append(confirmed, turn(debezium()))
	relay := d.relay(ours, "--set", "http.listen=")
	confirmed = append(confirmed, turn(func() error {
		if killed {
			err := relay.cmd.Process.Kill()
			<-relay.ended
			return err
		}
		if code := relay.stop(); code != exitOK {
			return fmt.Errorf("the relay's exit code is %d", code)
		}
		return nil
	}))
	end := debezium()
	stop()
	writing.Wait()
	until(t, "all have come", func() bool { poll(); return len(arrived) >= len(written) })
	if err := end(); err != nil {
		t.Error(err)
	}
	poll()

	last, doubled, old := make(map[string]int), make([]int, len(confirmed)), 0
	for _, r := range got {
		if r.text != got[0].text {
			t.Fatalf("one sends\n%s\nand the other\n%s", got[0].text, r.text)
		}
		if written[r.n] == 0 {
			t.Errorf("number %d was never committed", r.n)
		}
		if r.n > last[r.key] {
			if r.n != last[r.key]+eventKeys && last[r.key] > 0 {
				t.Errorf("number %d of key %s comes after %d", r.n, r.key, last[r.key])
			}
			last[r.key] = r.n
			continue
		}
		before := len(confirmed) - 1 // the last switch before which it had not been confirmed
		for before >= 0 && written[r.n] <= confirmed[before] {
			before--
		}
		if before < 0 {
			old++
			continue
		}
		doubled[before]++
	}
	t.Logf("%d committed, %d delivered, twice %d after the first switch and %d after the second",
		len(written), len(arrived), doubled[0], doubled[1])
	if old > 0 || len(arrived) != len(written) {
		t.Errorf("%d committed, %d delivered, %d twice though the slot had passed them", len(written), len(arrived), old)
	}
}

const eventKeys = 20

// writeEvents writes 200 numbered events a second until ctx ends, a transaction each, and every seventh besides is
// rolled back. It notes in committed where the log ended after each commit.
func writeEvents(ctx context.Context, t *testing.T, url string, committed map[int]int64, newest *atomic.Int64) {
	whole := context.WithoutCancel(ctx)
	conn, err := pgx.Connect(whole, url)
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close(whole)
	pace := time.NewTicker(5 * time.Millisecond)
	defer pace.Stop()
	insert := func(n int, kind, end string) (at int64, err error) {
		_, err = conn.Exec(whole, fmt.Sprintf(`BEGIN;
			INSERT INTO events VALUES (gen_random_uuid(), 'order', 'k%d', '%s', '{"number": %d}'); DELETE FROM events; %s`, n%eventKeys, kind, n, end))
		if err == nil {
			err = conn.QueryRow(whole, "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint").Scan(&at)
		}
		return at, err
	}
	for n := 1; ctx.Err() == nil; n++ {
		if n%7 == 0 {
			if _, err := insert(n, "Never", "ROLLBACK"); err != nil {
				t.Error(err)
			}
		}
		at, err := insert(n, "Paid", "COMMIT")
		if err != nil {
			t.Error(err)
			return
		}
		committed[n] = at
		newest.Store(int64(n))
		select {
		case <-ctx.Done():
		case <-pace.C:
		}
	}
}

// handed is a record, with what differs from one to the next apart.
type handed struct {
	n    int
	key  string
	text string
}

var (
	eventNumber = regexp.MustCompile(`number\W+(\d+)`)
	eventID     = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}`)
)

func asHanded(t *testing.T, r *kgo.Record, prefix string) handed {
	text := show(r, prefix)
	number := eventNumber.FindStringSubmatchIndex(text)
	if number == nil {
		t.Fatalf("no event: %s", text)
	}
	n, err := strconv.Atoi(text[number[2]:number[3]])
	if err != nil {
		t.Fatal(err)
	}
	text = text[:number[2]] + "N" + text[number[3]:]
	return handed{n, string(r.Key), eventID.ReplaceAllString(strings.Replace(text, strconv.Quote(string(r.Key)), "KEY", 1), "ID")}
}
