package kafka_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/internal/versus"
	"github.com/pgoutbox/outbox/broker/kafka"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/twmb/franz-go/pkg/kgo"
)

// The figure to compare with is the client library alone, which keeps no order when something fails:
// one client, to which four goroutines hand over records with the same bytes, prepared beforehand.
func BenchmarkPublish(b *testing.B) {
	const size, callers = 5000, 4
	server := servers.TestKafka(b)
	for _, full := range []bool{false, true} {
		batch := func(topic string, caller int) []*outbox.Message {
			batch := brokertest.Messages(topic, size, 1000)
			for _, m := range batch {
				m.Key = fmt.Sprintf("%d-%s", caller, m.Key)
				m.Payload = make([]byte, 256)
				if full {
					m.EventType, m.AggregateType, m.AggregateID = "OrderCreated", "order", m.Key
					m.ContentType, m.CreatedAt = "application/json", time.Now()
				}
			}
			return batch
		}
		name := map[bool]string{false: "id only", true: "all fields"}[full]
		b.Run(name+"/broker", func(b *testing.B) {
			c := connect(b, server.Addr())
			topic := c.topic(2)
			broker := c.broker(kafka.Config{})
			parallel(b, callers, size, func(caller int) func() {
				mine := batch(topic, caller)
				return func() {
					if errs := broker.Publish(context.Background(), mine); errs != nil {
						b.Errorf("first outcome: %v", errs[0])
					}
				}
			})
		})
		b.Run(name+"/library", func(b *testing.B) {
			c := connect(b, server.Addr())
			topic := c.topic(2)
			client, err := kgo.NewClient(kgo.SeedBrokers(c.seeds...), kgo.DisableClientMetrics(), kgo.MaxBufferedRecords(20_000),
				kgo.ProducerLinger(time.Millisecond), kgo.ProducerBatchMaxBytes(1_000_000),
				kgo.ProducerBatchCompression(kgo.NoCompression()))
			if err != nil {
				b.Fatal(err)
			}
			defer client.Close()
			parallel(b, callers, size, func(caller int) func() {
				mine := batch(topic, caller)
				records := make([]kgo.Record, size)
				for i, m := range mine {
					records[i] = kgo.Record{Topic: topic, Key: []byte(m.Key), Value: m.Payload, Headers: headers(m)}
				}
				return func() {
					var wg sync.WaitGroup
					wg.Add(size)
					done := func(_ *kgo.Record, err error) {
						if err != nil {
							b.Error(err)
						}
						wg.Done()
					}
					now := time.Now()
					for i := range records {
						records[i].Timestamp = now
						client.Produce(context.Background(), &records[i], done)
					}
					wg.Wait()
				}
			})
		})
	}
}

func headers(m *outbox.Message) []kgo.RecordHeader {
	headers := []kgo.RecordHeader{{Key: "outbox-id", Value: []byte(m.ID.String())}}
	if m.EventType != "" {
		headers = append(headers,
			kgo.RecordHeader{Key: "outbox-event-type", Value: []byte(m.EventType)},
			kgo.RecordHeader{Key: "outbox-aggregate-type", Value: []byte(m.AggregateType)},
			kgo.RecordHeader{Key: "outbox-aggregate-id", Value: []byte(m.AggregateID)},
			kgo.RecordHeader{Key: "outbox-created-at", Value: m.CreatedAt.UTC().AppendFormat(nil, "2006-01-02T15:04:05.000000Z07:00")},
			kgo.RecordHeader{Key: "content-type", Value: []byte(m.ContentType)})
	}
	return headers
}

// parallel runs what prepare returns b.N times in all, dealt to callers.
func parallel(b *testing.B, callers, size int, prepare func(caller int) func()) {
	work := make([]func(), callers)
	for i := range work {
		work[i] = prepare(i)
		work[i]() // connections and metadata
	}
	jobs := make(chan struct{}, b.N)
	for range b.N {
		jobs <- struct{}{}
	}
	close(jobs)
	b.ReportAllocs()
	before := versus.ProcessorTime()
	b.ResetTimer()
	var wg sync.WaitGroup
	for _, do := range work {
		wg.Go(func() {
			for range jobs {
				do()
			}
		})
	}
	wg.Wait()
	messages := float64(b.N) * float64(size)
	b.ReportMetric(messages/b.Elapsed().Seconds(), "msg/s")
	b.ReportMetric(float64(versus.ProcessorTime()-before)/messages, "cpu-ns/msg") // tells more than the rate on a busy machine
}
