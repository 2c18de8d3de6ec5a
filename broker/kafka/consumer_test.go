package kafka_test

import (
	"testing"
	"time"

	"github.com/pgoutbox/outbox/broker/consume"
	"github.com/pgoutbox/outbox/broker/internal/lanes/lanestest"
	"github.com/pgoutbox/outbox/broker/kafka"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/twmb/franz-go/pkg/kgo"
)

func TestAKafkaConsumerDoesWhatAConsumerMust(t *testing.T) {
	t.Parallel()
	c := connect(t, servers.TestKafka(t).Addr())
	lanestest.Run(t, lanestest.Harness{Ordered: true, Source: func(t *testing.T) lanestest.Source {
		topic := c.topic(6)
		b := connectionless(t, c.seeds, kafka.Config{})
		t.Cleanup(func() { b.Close() })
		return lanestest.Source{
			Topic:   topic,
			Publish: b.Publish,
			Foreign: func(t *testing.T, key string) {
				client, err := kgo.NewClient(kgo.SeedBrokers(c.seeds...), kgo.DisableClientMetrics())
				if err != nil {
					t.Fatal(err)
				}
				defer client.Close()
				if err := client.ProduceSync(patient(t), &kgo.Record{Topic: topic, Key: []byte(key), Value: []byte("1")}).FirstErr(); err != nil {
					t.Fatal(err)
				}
			},
			Open: func(t *testing.T, cfg consume.Config, handler consume.Handler) lanestest.Consumer {
				consumer, err := kafka.NewConsumer(kafka.Config{Brokers: c.seeds}, kafka.ConsumerConfig{
					Group: topic, Topics: []string{topic}, SessionTimeout: 6 * time.Second, CommitInterval: 50 * time.Millisecond, Handling: cfg,
				}, handler)
				if err != nil {
					t.Fatal(err)
				}
				return consumer
			},
		}
	}})
}
