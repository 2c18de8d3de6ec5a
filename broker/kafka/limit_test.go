package kafka_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/kafka"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

func realCluster(t testing.TB) *cluster {
	t.Helper()
	return connect(t, strings.Split(servers.TestKafka(t).Addr(), ",")...)
}

func TestTheLimitIsTheServersOwn(t *testing.T) {
	t.Parallel()
	c := realCluster(t)
	topic := c.topic(1, "max.message.bytes", "5000")
	b := c.broker(kafka.Config{})
	// One call for each size: the server answers for single records, then for two in a batch.
	largest := 0
	for bytes := 4860; bytes <= 4960; bytes++ {
		m := brokertest.Messages(topic, 1, 1)
		m[0].Payload = make([]byte, bytes)
		errs := b.Publish(patient(t), m)
		switch {
		case errs == nil && largest == bytes-1 || largest == 0:
			largest = bytes
		case errs != nil && outbox.IsPermanent(errs[0]):
			contains(t, errs[0], "the record has", "5000 at most", "max.message.bytes")
		default:
			t.Fatalf("%d bytes, when %d were accepted: %v", bytes, largest, errs)
		}
	}
	if largest == 4960 {
		t.Fatal("nothing was refused")
	}
	// What the library would have been able to send is hardly more.
	client, err := kgo.NewClient(kgo.SeedBrokers(c.seeds...),
		kgo.DisableClientMetrics(), kgo.ProducerBatchMaxBytes(10_000), kgo.ProducerBatchCompression(kgo.NoCompression()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	id := make([]byte, 36)
	try := func(bytes int) error {
		return client.ProduceSync(patient(t), &kgo.Record{Topic: topic, Key: []byte("k-0"), Value: make([]byte, bytes),
			Headers: []kgo.RecordHeader{{Key: "outbox-id", Value: id}}}).FirstErr()
	}
	if err := try(largest + 2); err != nil {
		t.Errorf("%d bytes, 2 more than the largest: %v", largest+2, err)
	}
	if err := try(largest + 3); err == nil {
		t.Errorf("the server takes %d bytes, and %d were the most that the adapter sent", largest+3, largest)
	}
	for first := 1; first < 400; first += 7 {
		batch := brokertest.Messages(topic, 2, 1)
		batch[0].Payload = make([]byte, first)
		batch[1].Payload = make([]byte, largest-first-60)
		accepted(t, b.Publish(patient(t), batch))
	}
}

func TestALimitThatWasLoweredIsNoticed(t *testing.T) {
	t.Parallel()
	c := realCluster(t)
	topic := c.topic(1, "max.message.bytes", "200000")
	b := c.broker(kafka.Config{})
	accepted(t, b.Publish(patient(t), brokertest.Messages(topic, 10, 2)))
	c.limit(topic, "20000")
	batch := brokertest.Messages(topic, 300, 30)
	for i := range batch {
		batch[i].Payload = bytes.Repeat([]byte{'x'}, 1000)
	}
	batch[200].Payload = make([]byte, 30_000) // key k-20
	errs := b.Publish(patient(t), batch)
	if !outbox.IsPermanent(errs[200]) {
		t.Errorf("the message that is too large now: %v", errs[200])
	}
	for i, err := range errs {
		if err != nil && batch[i].Key != "k-20" {
			t.Fatalf("message %d: %v", i, err)
		}
	}
	got, err := c.messages(patient(t), topic)
	if err != nil || len(got) != 10+300-4 {
		t.Errorf("%d messages, error %v", len(got), err)
	}
	accepted(t, b.Publish(patient(t), batch[201:]))
}

// limit changes max.message.bytes and waits until the server acts on it.
func (c *cluster) limit(topic, bytes string) {
	c.t.Helper()
	change := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: &bytes}}
	responses, err := c.admin.AlterTopicConfigs(patient(c.t), change, topic)
	if err != nil || responses[0].Err != nil {
		c.t.Fatalf("%v %v", err, responses)
	}
	c.await("the limit is "+bytes, func(ctx context.Context) error {
		configs, err := c.admin.DescribeTopicConfigs(ctx, topic)
		if err != nil {
			return err
		}
		for _, config := range configs[0].Configs {
			if config.Key == "max.message.bytes" && config.MaybeValue() != bytes {
				return fmt.Errorf("it is %s", config.MaybeValue())
			}
		}
		return nil
	})
}

func TestACompactedTopicTakesNoMessageWithoutAKey(t *testing.T) {
	t.Parallel()
	c := realCluster(t)
	topic := c.topic(1, "cleanup.policy", "compact")
	batch := brokertest.Messages(topic, 10, 2)
	batch[4].Key = ""
	batch[5].Payload = nil // a tombstone
	errs := c.broker(kafka.Config{}).Publish(patient(t), batch)
	for i, err := range errs {
		if i == 4 != outbox.IsPermanent(err) || i != 4 && err != nil {
			t.Errorf("message %d: %v", i, err)
		}
	}
	contains(t, errs[4], topic, "compacted", "key")
}

func TestAHeaderThatWouldStandBesideOursIsRefused(t *testing.T) {
	t.Parallel()
	c := realCluster(t)
	topic := c.topic(1)
	batch := brokertest.Messages(topic, 2, 2)
	batch[0].Headers = []outbox.Header{{Name: "Outbox-Id", Value: "x"}}
	errs := c.broker(kafka.Config{}).Publish(patient(t), batch)
	if len(errs) != 2 || !outbox.IsPermanent(errs[0]) || errs[1] != nil {
		t.Fatalf("outcomes %v", errs)
	}
	contains(t, errs[0], "Outbox-Id", "reserved")
}

func TestTopicsAreCreatedWhenAskedFor(t *testing.T) {
	t.Parallel()
	c := realCluster(t)
	name := "t-" + outbox.NewID().String()
	b := c.broker(kafka.Config{CreateTopics: true, Partitions: 5, ReplicationFactor: 1, Topic: "{topic}.v1"})
	batch := brokertest.Messages(name, 100, 20)
	accepted(t, b.Publish(patient(t), batch))
	c.inOrder(t, batch, name+".v1")
	details, err := c.admin.ListTopics(patient(t), name+".v1")
	if err != nil || len(details[name+".v1"].Partitions) != 5 {
		t.Errorf("%v, error %v", details, err)
	}

	b = c.broker(kafka.Config{CreateTopics: true, ReplicationFactor: 9})
	errs := b.Publish(patient(t), append(brokertest.Messages(name+".v1", 1, 1), brokertest.Messages(name+".v2", 2, 2)[1]))
	if len(errs) != 2 || errs[0] != nil || outbox.IsPermanent(errs[1]) || outbox.IsUnavailable(errs[1]) {
		t.Fatalf("result %v", errs)
	}
	contains(t, errs[1], name+".v2", "can't be created", "INVALID_REPLICATION_FACTOR")
}

func TestATopicThatCanHaveNoSuchNameIsRefusedForGood(t *testing.T) {
	t.Parallel()
	c := realCluster(t)
	good := c.topic(1)
	batch := brokertest.Messages(good, 4, 4)
	batch[1].Topic, batch[2].Topic, batch[3].Topic = "a/b", "..", strings.Repeat("x", 250)
	errs := c.broker(kafka.Config{}).Publish(patient(t), batch)
	if errs[0] != nil {
		t.Errorf("the good one: %v", errs[0])
	}
	for i, err := range errs[1:] {
		if !outbox.IsPermanent(err) {
			t.Errorf("message %d: %v", i+1, err)
		}
		contains(t, err, "a topic ")
	}
}

func TestTheWireFormatIsAsDocumented(t *testing.T) {
	t.Parallel()
	c := realCluster(t)
	topic := c.topic(1)
	before := time.Now().Truncate(time.Millisecond)
	message := &outbox.Message{
		ID:            outbox.NewID(),
		Topic:         "orders",
		AggregateType: "order",
		AggregateID:   "4711",
		EventType:     "OrderCreated",
		Payload:       []byte("{}"),
		ContentType:   "application/json",
		Headers:       []outbox.Header{{Name: "traceparent", Value: "00-1"}, {Name: "content-type", Value: "mine"}},
		CreatedAt:     time.Date(2026, 2, 3, 4, 5, 6, 7000, time.FixedZone("", 3600)),
	}
	bare := &outbox.Message{ID: outbox.NewID(), Topic: "orders"}
	accepted(t, c.broker(kafka.Config{Topic: topic}).Publish(patient(t), []*outbox.Message{message, bare}))
	records, err := c.records(patient(t), topic)
	if err != nil {
		t.Fatal(err)
	}
	type header struct{ name, value string }
	want := [][]header{
		{{"traceparent", "00-1"}, {"content-type", "mine"}, {"outbox-id", message.ID.String()}, {"outbox-topic", "orders"},
			{"outbox-event-type", "OrderCreated"}, {"outbox-aggregate-type", "order"}, {"outbox-aggregate-id", "4711"},
			{"outbox-created-at", "2026-02-03T03:05:06.000007Z"}, {"content-type", "application/json"}},
		{{"outbox-id", bare.ID.String()}, {"outbox-topic", "orders"}},
	}
	for i, r := range records {
		var got []header
		for _, h := range r.Headers {
			got = append(got, header{h.Key, string(h.Value)})
		}
		if !slices.Equal(got, want[i]) {
			t.Errorf("record %d has headers %v, want %v", i, got, want[i])
		}
		if r.Timestamp.Before(before) || r.Timestamp.After(time.Now()) {
			t.Errorf("record %d has the timestamp %v", i, r.Timestamp)
		}
	}
	if string(records[0].Key) != "4711" || records[1].Key != nil {
		t.Errorf("keys %q and %q", records[0].Key, records[1].Key)
	}
	if string(records[0].Value) != "{}" || records[1].Value != nil {
		t.Errorf("values %q and %q", records[0].Value, records[1].Value)
	}
}

func TestEveryCompressionArrives(t *testing.T) {
	t.Parallel()
	c := realCluster(t)
	for _, compression := range []string{"none", "gzip", "snappy", "lz4", "zstd"} {
		topic := c.topic(2)
		batch := brokertest.Messages(topic, 1000, 10)
		accepted(t, c.broker(kafka.Config{Compression: compression}).Publish(patient(t), batch))
		c.inOrder(t, batch, topic)
	}
}
