package pubsub_test

import (
	"fmt"
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

func BenchmarkPublish(b *testing.B) {
	const size = 2500
	for _, keys := range []int{50, 1000} {
		b.Run(fmt.Sprintf("broker, %d keys", keys), func(b *testing.B) {
			f := newFake(b)
			publish := versus.Publishing(b, f.broker(pubsub.Config{}), versus.Batch(f.topic(), size, keys))
			versus.Measure(b, func() int {
				f.ClearMessages()
				return publish()
			})
		})
	}
}

// The loop is the client library's publisher with ordering keys, which retries by itself.
func BenchmarkAgainstLoop(b *testing.B) {
	const size, keys = 1000, 1000
	f := newFake(b)
	versus.Run(b, "pubsub", versus.Contest{
		Address: f.Addr,
		Adapter: func(b *testing.B, address string) versus.Publish {
			broker := brokertest.Opened(b, open(b, address, pubsub.Config{}), nil)
			publish := versus.Publishing(b, broker, versus.Batch(f.topic(), size, keys))
			return func() int {
				defer f.ClearMessages()
				return publish()
			}
		},
		Loop: func(b *testing.B, address string) versus.Publish {
			topic := f.topic()
			publisher := barePublisher(b, address, topic)
			return func() int {
				loop(b, publisher, versus.Batch(topic, size, keys))
				f.ClearMessages()
				return size
			}
		},
	})
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
