package pubsub_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	library "cloud.google.com/go/pubsub/v2"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/internal/versus"
	"github.com/pgoutbox/outbox/broker/pubsub"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// The figure to compare with is the client library's publisher with ordering keys, which retries by itself.
func BenchmarkPublish(b *testing.B) {
	const size = 2500
	for _, keys := range []int{50, 1000} {
		fresh := func(topic string) []*outbox.Message { return benchBatch(topic, size, keys) }
		b.Run(fmt.Sprintf("broker, %d keys", keys), func(b *testing.B) {
			f := newFake(b)
			topic := f.topic()
			broker := f.broker(pubsub.Config{})
			for b.Loop() {
				accepted(b, broker.Publish(context.Background(), fresh(topic)))
				f.ClearMessages()
			}
			b.ReportMetric(float64(b.N)*size/b.Elapsed().Seconds(), "msg/s")
		})
		b.Run(fmt.Sprintf("library, %d keys", keys), func(b *testing.B) {
			f := newFake(b)
			topic := f.topic()
			publisher := barePublisher(b, f.Addr, topic)
			for b.Loop() {
				loop(b, publisher, fresh(topic))
				f.ClearMessages()
			}
			b.ReportMetric(float64(b.N)*size/b.Elapsed().Seconds(), "msg/s")
		})
	}
}

func BenchmarkAgainstLoop(b *testing.B) {
	const size, keys = 1000, 1000
	b.Run("pubsub", func(b *testing.B) {
		f := newFake(b)
		versus.Run(b, versus.Contest{
			Address: f.Addr,
			Adapter: func(b *testing.B, address string) versus.Publish {
				topic, broker := f.topic(), open(b, address, pubsub.Config{})
				b.Cleanup(func() {
					if err := broker.Close(); err != nil {
						b.Error(err)
					}
				})
				return func() int {
					accepted(b, broker.Publish(b.Context(), benchBatch(topic, size, keys)))
					f.ClearMessages()
					return size
				}
			},
			Loop: func(b *testing.B, address string) versus.Publish {
				topic := f.topic()
				publisher := barePublisher(b, address, topic)
				return func() int {
					loop(b, publisher, benchBatch(topic, size, keys))
					f.ClearMessages()
					return size
				}
			},
		})
	})
}

func benchBatch(topic string, size, keys int) []*outbox.Message {
	batch := brokertest.Messages(topic, size, keys)
	for _, m := range batch {
		m.Payload = []byte(strings.Repeat("x", 256))
	}
	return batch
}

func barePublisher(b *testing.B, address, topic string) *library.Publisher {
	b.Helper()
	client, err := library.NewClient(b.Context(), project, option.WithEndpoint(address), option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())))
	if err != nil {
		b.Fatal(err)
	}
	publisher := client.Publisher(topic)
	publisher.EnableMessageOrdering = true
	b.Cleanup(func() {
		publisher.Stop()
		client.Close()
	})
	return publisher
}

func loop(b *testing.B, publisher *library.Publisher, batch []*outbox.Message) {
	results := make([]*library.PublishResult, 0, len(batch))
	for _, m := range batch {
		results = append(results, publisher.Publish(b.Context(), &library.Message{
			Data: m.Payload, OrderingKey: m.Key, Attributes: map[string]string{"outbox-id": m.ID.String()},
		}))
	}
	publisher.Flush()
	for _, r := range results {
		if _, err := r.Get(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
