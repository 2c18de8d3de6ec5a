package seeds

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/schema"
)

// through is run with a broker between: a relay is killed in the middle, and another one goes on. arrived reads
// everything that is in the broker.
func (s seed) through(t *testing.T, broker string, arrived func() []line) *bed {
	t.Helper()
	b := &bed{T: t, seed: s, url: servers.TestDatabase(t), program: outboxProgram(t), folder: t.TempDir(), broker: broker}
	conn := b.connect()
	if _, err := conn.Exec(t.Context(), s.ddl); err != nil {
		t.Fatal(err)
	}
	b.writeAll(0)
	killed := b.start("one", "1", perSecond)
	waiting := rows
	b.until("some rows are marked", func() bool {
		if err := conn.QueryRow(t.Context(), s.unmarked).Scan(&waiting); err != nil {
			t.Fatal(err)
		}
		return waiting <= rows*3/4
	})
	killed.kill()
	if waiting == 0 {
		t.Fatal("the relay had delivered everything before it was killed")
	}
	again := b.start("one", "2", 0)
	b.untilMarked(conn)
	again.stop()
	bound := inFlight
	if !s.unsettledOnly {
		bound = 4 * 200 // as in run
	}
	b.check(arrived(), 0, bound)
	return b
}

// The broker's partition is written back, and the time of its acknowledgement.
func TestSeed2ThroughKafka(t *testing.T) {
	t.Parallel()
	kafka := servers.TestKafka(t)
	client, err := kgo.NewClient(kgo.SeedBrokers(kafka.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	topic, s := "seed2-orders", seed2()
	if _, err := kadm.NewClient(client).CreateTopic(t.Context(), 6, 1, nil, topic); err != nil {
		t.Fatal(err)
	}

	partitions := make(map[int]int32) // by number
	s.topic = topic
	b := s.through(t, fmt.Sprintf("{kafka: {brokers: [%q], topic: %q}}", kafka.Addr(), "seed2-{topic}"), func() (all []line) {
		for _, r := range consume(t, kafka.Addr(), topic) {
			l := line{Topic: r.Topic, Key: string(r.Key), Headers: make(map[string]string)}
			for _, h := range r.Headers {
				l.Headers[h.Key] = string(h.Value)
			}
			l.ID = l.Headers["outbox-id"]
			if err := json.Unmarshal(r.Value, &l.Payload); err != nil {
				t.Fatal(err)
			}
			partitions[l.Payload.N] = r.Partition
			all = append(all, l)
		}
		return all
	})
	written, err := b.connect().Query(t.Context(), `SELECT substr(id, 7), partition_id, ack_time >= published_time, ack_time <= localtimestamp FROM outbox_event`)
	if err != nil {
		t.Fatal(err)
	}
	defer written.Close()
	used := make(map[string]bool)
	for written.Next() {
		var id string
		var partition *string
		var acked, past bool
		if err := written.Scan(&id, &partition, &acked, &past); err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(id)
		if err != nil {
			t.Fatal(err)
		}
		if partition == nil || *partition != fmt.Sprint(partitions[n]) {
			t.Errorf("row %d has partition %v, its message is in %d", n, partition, partitions[n])
			continue
		}
		used[*partition] = true
		if !acked || !past {
			t.Errorf("row %d has no sensible time of its acknowledgement", n)
		}
	}
	if err := written.Err(); err != nil {
		t.Fatal(err)
	}
	if len(used) < 3 {
		t.Errorf("everything is in partitions %v", used)
	}
}

// consume reads all records of a topic.
func consume(t *testing.T, address, topic string) (all []*kgo.Record) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(address), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ends, err := kadm.NewClient(client).ListEndOffsets(t.Context(), topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		t.Fatal(err)
	}
	left := int64(0)
	ends.Each(func(o kadm.ListedOffset) { left += o.Offset })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for int64(len(all)) < left {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("%d of %d records could be read: %v", len(all), left, ctx.Err())
		}
		all = append(all, fetches.Records()...)
	}
	return all
}

// Polling to NATS: what comes again after a crash is dropped by the stream, and each key is in the order of its
// numbers.
func TestSeed3ThroughNATS(t *testing.T) {
	t.Parallel()
	server := servers.TestNATS(t)
	conn, err := nats.Connect(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	s := seed3()
	broker := fmt.Sprintf(`{nats: {url: %q, stream: SEED3, create_stream: true, stream_subjects: ["seed3.>"], subject: "seed3.{topic}.{key}"}}`, server.URL())
	all := []line(nil)
	s.through(t, broker, func() []line {
		all = inStream(t, js, "SEED3", func(m *jetstream.RawStreamMsg) line {
			topic, key, _ := strings.Cut(strings.TrimPrefix(m.Subject, "seed3."), ".key-")
			return line{Topic: topic, Key: "key-" + key}
		})
		return all
	})
	if len(all) != rows {
		t.Errorf("%d messages are in the stream, want each of %d once", len(all), rows)
	}
	inSequence(t, all)
}

// inStream reads a stream from the beginning; begin has what the subject says.
func inStream(t *testing.T, js jetstream.JetStream, name string, begin func(*jetstream.RawStreamMsg) line) (all []line) {
	t.Helper()
	stream, err := js.Stream(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	for at := uint64(1); ; at++ {
		m, err := stream.GetMsg(t.Context(), at)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		l := begin(m)
		l.ID, l.Headers = m.Header.Get(nats.MsgIdHdr), map[string]string{"sequence_number": m.Header.Get("sequence_number")}
		if err := json.Unmarshal(m.Data, &l.Payload); err != nil {
			t.Fatal(err)
		}
		all = append(all, l)
	}
}

// inSequence fails unless the messages of each key have the numbers of its writer, in order.
func inSequence(t *testing.T, all []line) {
	t.Helper()
	last := make(map[string]int)
	for _, l := range all {
		n, err := strconv.Atoi(l.Headers["sequence_number"])
		if err != nil {
			t.Fatal(err)
		}
		if n != last[l.Key]+1 {
			t.Errorf("key %s: number %d comes after %d", l.Key, n, last[l.Key])
		}
		last[l.Key] = n
	}
}

// The other way of the same article: the log is read, into the subjects that Debezium would use, no row is marked, and
// the author's clean-up deletes rows when it likes.
func TestSeed3FromTheLog(t *testing.T) {
	t.Parallel()
	server := servers.TestNATS(t)
	conn, err := nats.Connect(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	s := seed3()
	b := &bed{T: t, seed: s, url: servers.TestDatabase(t), program: outboxProgram(t), folder: t.TempDir(),
		broker: fmt.Sprintf(`{nats: {url: %q, stream: DebeziumStream, create_stream: true, stream_subjects: [outbox, "outbox.>"], subject: "{topic}"}}`, server.URL())}
	t.Cleanup(testdb.DB{T: t, URL: b.url}.DropSlots)
	db := b.connect()
	if _, err := db.Exec(t.Context(), s.ddl); err != nil {
		t.Fatal(err)
	}
	// The statements that the relay asks for.
	slot := fmt.Sprint("seed3_", time.Now().UnixNano())
	b.source = "{preset: outbox, strategy: replication}\n    replication: {slot: " + slot + ", publication: seed3}"
	for _, sql := range []string{schema.CreatePublicationSQL("seed3", schema.TableName{Schema: "public", Name: "outbox"}), schema.CreateSlotSQL(slot)} {
		if _, err := db.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	stored := func() uint64 {
		stream, err := js.Stream(t.Context(), "DebeziumStream")
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return 0
		}
		if err != nil {
			t.Fatal(err)
		}
		return stream.CachedInfo().State.Msgs
	}
	killed := b.start("one", "1", perSecond)
	b.writeAll(0)
	if _, err := db.Exec(t.Context(), `DELETE FROM outbox WHERE id % 2 = 0`); err != nil {
		t.Fatal(err)
	}
	b.until("some messages are delivered", func() bool { return stored() >= rows/4 })
	killed.kill()
	if before := stored(); before >= rows {
		t.Fatalf("the relay had delivered all %d messages before it was killed", before)
	}
	again, beside := b.start("one", "2", 0), b.start("two", "3", 0)
	b.until("every message is in the stream", func() bool { return stored() >= rows })
	again.stop()
	beside.stop()
	keys := make(map[int]string)
	for n := range rows {
		keys[n] = fmt.Sprint("key-", n%20)
	}
	all := inStream(t, js, "DebeziumStream", func(m *jetstream.RawStreamMsg) line { return line{Topic: m.Subject} })
	for i := range all {
		all[i].Key = keys[all[i].Payload.N] // it isn't in the subject
	}
	b.check(all, 0, 0)
	inSequence(t, all)
	var marked int
	if err := db.QueryRow(t.Context(), `SELECT count(*) FROM outbox WHERE processed_at IS NOT NULL`).Scan(&marked); err != nil || marked != 0 {
		t.Errorf("%d rows are marked, %v", marked, err)
	}
}
