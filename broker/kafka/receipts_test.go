package kafka_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/kafka"
	"github.com/pgoutbox/outbox/internal/servers"
)

// The answer names the place of every accepted message, also where another one of its call was refused by the server.
func TestReceiptsNameThePlaceOfEachMessage(t *testing.T) {
	t.Parallel()
	c := connect(t, servers.TestKafka(t).Addr())
	topic := c.topic(5, "max.message.bytes", "2000")
	b := c.broker(kafka.Config{})
	var batch []*outbox.Message
	for i := range 200 {
		m := &outbox.Message{ID: outbox.NewID(), Topic: topic, Key: fmt.Sprint("key-", i%40), Payload: fmt.Append(nil, i)}
		if i == 100 {
			m.Payload = []byte(strings.Repeat("x", 3000))
		}
		batch = append(batch, m)
	}
	var mu sync.Mutex
	receipts := map[string]outbox.Receipt{}
	ctx := outbox.WithReceipts(patient(t), func(id outbox.ID, r outbox.Receipt) {
		mu.Lock()
		defer mu.Unlock()
		receipts[id.String()] = r
	})
	errs := b.Publish(ctx, batch)
	accepted := 0
	for i := range batch {
		r, told := receipts[batch[i].ID.String()]
		if ok := errs == nil || errs[i] == nil; ok != told {
			t.Errorf("message %d: accepted %v, and a receipt %v: %v", i, ok, told, r)
		} else if ok {
			accepted++
		}
	}
	records, err := c.records(patient(t), topic)
	if err != nil {
		t.Fatal(err)
	}
	if len(records) != accepted || accepted < 150 {
		t.Errorf("%d records of %d accepted messages", len(records), accepted)
	}
	partitions := map[int32]bool{}
	for _, record := range records {
		var n int
		if _, err := fmt.Sscan(string(record.Value), &n); err != nil {
			t.Fatal(err)
		}
		partitions[record.Partition] = true
		if r := receipts[batch[n].ID.String()]; r.Partition != record.Partition || r.Offset != record.Offset {
			t.Errorf("message %d is at %d:%d, its receipt says %d:%d", n, record.Partition, record.Offset, r.Partition, r.Offset)
		}
	}
	if len(partitions) < 3 {
		t.Errorf("everything is in %d partitions", len(partitions))
	}
}
