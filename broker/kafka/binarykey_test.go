package kafka_test

import (
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/kafka"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Keys that are no text arrive byte for byte, in the partitions that any other producer with Java's rule chooses for
// them.
func TestBinaryKeysArriveAsTheyAreInThePartitionsOfOtherProducers(t *testing.T) {
	t.Parallel()
	c := connect(t, servers.TestKafka(t).Addr())
	topic := c.topic(7)
	b := c.broker(kafka.Config{})
	var batch []*outbox.Message
	for i := range 100 {
		key := string([]byte{0, 0, 0, 0, 1, byte(0x80 + i), 0xff, byte(i)}) // as Confluent frames Avro
		batch = append(batch, &outbox.Message{ID: outbox.NewID(), Topic: topic, Key: key, Payload: []byte("ours")})
	}
	accepted(t, b.Publish(patient(t), batch))
	author, err := kgo.NewClient(kgo.SeedBrokers(c.seeds...), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer author.Close()
	for _, m := range batch {
		if err := author.ProduceSync(patient(t),
			&kgo.Record{Topic: topic, Key: []byte(m.Key), Value: []byte("the author's")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	records, err := c.records(patient(t), topic)
	if err != nil {
		t.Fatal(err)
	}
	where := make(map[string][]int32)
	for _, r := range records {
		where[string(r.Key)] = append(where[string(r.Key)], r.Partition)
	}
	for _, m := range batch {
		if p := where[m.Key]; len(p) != 2 || p[0] != p[1] {
			t.Errorf("key %x is in the partitions %v, want the same twice", m.Key, p)
		}
	}
	if len(where) != len(batch) {
		t.Errorf("%d keys, want %d", len(where), len(batch))
	}
}
