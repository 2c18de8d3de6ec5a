package redis_test

import (
	"fmt"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/internal/versus"
	"github.com/pgoutbox/outbox/broker/redis"
	"github.com/pgoutbox/outbox/internal/servers"
	goredis "github.com/redis/go-redis/v9"
)

// The figure to compare with is one pipeline of XADD with the same fields, which keeps no order under failure and
// recognises no repeat.
func BenchmarkPublish(b *testing.B) {
	const size = 5000
	server := servers.OwnRedis(b, servers.RedisConfig{Settings: map[string]string{"appendfsync": "everysec"}})
	for _, keys := range []int{1, 1000, size} {
		for _, window := range []int{-1, 50_000} {
			b.Run(fmt.Sprintf("broker, %d keys, window %d", keys, window), func(b *testing.B) {
				c := client(b, server.Addr())
				stream := newStream(b, c)
				broker := newBroker(b, server.Addr(), redis.Config{DedupWindow: window, MaxLen: 100_000})
				batch := benchBatch(stream, size, keys)
				b.ReportAllocs()
				for b.Loop() {
					for _, m := range batch {
						m.ID = outbox.NewID()
					}
					accepted(b, broker.Publish(b.Context(), batch))
				}
				b.ReportMetric(float64(b.N)*size/b.Elapsed().Seconds(), "msg/s")
			})
		}
	}
	b.Run("library", func(b *testing.B) {
		c := client(b, server.Addr())
		stream := newStream(b, c)
		batch := benchBatch(stream, size, 1000)
		b.ReportAllocs()
		for b.Loop() {
			loop(b, c, batch)
		}
		b.ReportMetric(float64(b.N)*size/b.Elapsed().Seconds(), "msg/s")
	})
}

// loop is one pipeline of XADD.
func loop(b *testing.B, c *goredis.Client, batch []*outbox.Message) {
	pipe := c.Pipeline()
	for _, m := range batch {
		m.ID = outbox.NewID()
		pipe.XAdd(b.Context(), &goredis.XAddArgs{Stream: m.Topic, MaxLen: 100_000, Approx: true, Values: []any{
			"id", m.ID.String(), "key", m.Key, "event_type", m.EventType, "content_type", m.ContentType, "payload", m.Payload,
		}})
	}
	if _, err := pipe.Exec(b.Context()); err != nil {
		b.Fatal(err)
	}
}

func BenchmarkAgainstLoop(b *testing.B) {
	const size, keys = 5000, 1000
	server := servers.OwnRedis(b, servers.RedisConfig{Settings: map[string]string{"appendfsync": "everysec"}})
	contest := func(cfg redis.Config) versus.Contest {
		return versus.Contest{
			Address: server.Addr(),
			Adapter: func(b *testing.B, address string) versus.Publish {
				cfg.MaxLen = 100_000
				broker := newBroker(b, address, cfg)
				batch := benchBatch(newStream(b, client(b, server.Addr())), size, keys)
				return func() int {
					for _, m := range batch {
						m.ID = outbox.NewID()
					}
					accepted(b, broker.Publish(b.Context(), batch))
					return size
				}
			},
			Loop: func(b *testing.B, address string) versus.Publish {
				c := client(b, address)
				batch := benchBatch(newStream(b, c), size, keys)
				return func() int { loop(b, c, batch); return size }
			},
		}
	}
	b.Run("redis", func(b *testing.B) { versus.Run(b, contest(redis.Config{})) })
	b.Run("redis without DedupWindow", func(b *testing.B) { versus.Run(b, contest(redis.Config{DedupWindow: -1})) })
}

func benchBatch(stream string, size, keys int) []*outbox.Message {
	batch := brokertest.Messages(stream, size, keys)
	for _, m := range batch {
		m.Payload = make([]byte, 256)
		m.EventType, m.ContentType = "OrderCreated", "application/json"
	}
	return batch
}
