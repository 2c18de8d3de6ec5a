package pubsub_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	library "cloud.google.com/go/pubsub/v2"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/pubsub"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// The figure to compare with is the client library's publisher with ordering keys, which retries by itself.
func BenchmarkPublish(b *testing.B) {
	const size = 2500
	for _, keys := range []int{50, 1000} {
		fresh := func(topic string) []*outbox.Message {
			batch := numbered(topic, size, keys)
			for _, m := range batch {
				m.Payload = []byte(strings.Repeat("x", 256))
			}
			return batch
		}
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
			client, err := library.NewClient(context.Background(), project, option.WithEndpoint(f.Addr), option.WithoutAuthentication(),
				option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())))
			if err != nil {
				b.Fatal(err)
			}
			defer client.Close()
			publisher := client.Publisher(topic)
			publisher.EnableMessageOrdering = true
			defer publisher.Stop()
			for b.Loop() {
				results := make([]*library.PublishResult, 0, size)
				for _, m := range fresh(topic) {
					results = append(results, publisher.Publish(context.Background(), &library.Message{
						Data: m.Payload, OrderingKey: m.Key, Attributes: map[string]string{"outbox-id": m.ID.String()},
					}))
				}
				publisher.Flush()
				for _, r := range results {
					if _, err := r.Get(context.Background()); err != nil {
						b.Fatal(err)
					}
				}
				f.ClearMessages()
			}
			b.ReportMetric(float64(b.N)*size/b.Elapsed().Seconds(), "msg/s")
		})
	}
}
