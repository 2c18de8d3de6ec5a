package redis_test

import (
	"fmt"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/versus"
	"github.com/pgoutbox/outbox/broker/redis"
	"github.com/pgoutbox/outbox/internal/servers"
	goredis "github.com/redis/go-redis/v9"
)

func BenchmarkPublish(b *testing.B) {
	const size = 5000
	server := servers.OwnRedis(b, servers.RedisConfig{Settings: map[string]string{"appendfsync": "everysec"}})
	for _, keys := range []int{1, 1000, size} {
		for _, window := range []int{-1, 50_000} {
			b.Run(fmt.Sprintf("broker, %d keys, window %d", keys, window), func(b *testing.B) {
				c := client(b, server.Addr())
				stream := newStream(b, c)
				broker := newBroker(b, server.Addr(), redis.Config{DedupWindow: window, MaxLen: 100_000})
				versus.Measure(b, versus.Publishing(b, broker, versus.Batch(stream, size, keys)))
			})
		}
	}
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

// The loop is one pipeline of XADD with the same fields, which keeps no order under failure and
// recognises no repeat.
func BenchmarkAgainstLoop(b *testing.B) {
	const size, keys = 5000, 1000
	server := servers.OwnRedis(b, servers.RedisConfig{Settings: map[string]string{"appendfsync": "everysec"}})
	contest := func(cfg redis.Config) versus.Contest {
		return versus.Contest{
			Address: server.Addr(),
			Adapter: func(b *testing.B, address string) versus.Publish {
				cfg.MaxLen = 100_000
				broker := newBroker(b, address, cfg)
				return versus.Publishing(b, broker, versus.Batch(newStream(b, client(b, server.Addr())), size, keys))
			},
			Loop: func(b *testing.B, address string) versus.Publish {
				c := client(b, address)
				batch := versus.Batch(newStream(b, c), size, keys)
				return func() int { loop(b, c, batch); return size }
			},
		}
	}
	versus.Run(b, "redis", contest(redis.Config{}))
	versus.Run(b, "redis without DedupWindow", contest(redis.Config{DedupWindow: -1}))
}
