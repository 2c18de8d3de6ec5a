package rig

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// RedisStream is a stream of a Redis server.
type RedisStream struct {
	Addr  string // of the server itself
	Topic string
}

var _ Target = RedisStream{}

func (s RedisStream) YAML(addr string) string {
	return fmt.Sprintf("{redis: {addresses: [%q]}}", addr)
}

func (s RedisStream) with(do func(*redis.Client) error) error {
	client := s.client()
	return errors.Join(do(client), client.Close())
}

func (s RedisStream) client() *redis.Client {
	return redis.NewClient(&redis.Options{Addr: s.Addr, MaxRetries: -1, ContextTimeoutEnabled: true})
}

// group is there so that the stream is.
const group = "rig"

func (s RedisStream) Create(ctx context.Context) error {
	return s.with(func(client *redis.Client) error { return client.XGroupCreateMkStream(ctx, s.Topic, group, "0").Err() })
}

func (s RedisStream) Delete(ctx context.Context) error {
	return s.with(func(client *redis.Client) error { return client.Del(ctx, s.Topic).Err() })
}

// Forbid takes the command away from everybody.
func (s RedisStream) Forbid(ctx context.Context) error { return s.allow(ctx, "-xadd") }

func (s RedisStream) Permit(ctx context.Context) error { return s.allow(ctx, "+xadd") }

func (s RedisStream) allow(ctx context.Context, rule string) error {
	return s.with(func(client *redis.Client) error { return client.Do(ctx, "ACL", "SETUSER", "default", rule).Err() })
}

func (s RedisStream) Answers(ctx context.Context) error {
	return askUntil(ctx, func(ctx context.Context) error {
		return s.with(func(client *redis.Client) error { return client.XInfoStream(ctx, s.Topic).Err() })
	})
}

func (s RedisStream) Grown(ctx context.Context) (n int, err error) {
	err = s.with(func(client *redis.Client) error {
		length, err := client.XLen(ctx, s.Topic).Result()
		n = int(length)
		return err
	})
	return n, err
}

func (s RedisStream) Read(context.Context) (Reader, error) {
	return &redisReader{stream: s, client: s.client(), last: "0-0"}, nil
}

type redisReader struct {
	stream RedisStream
	client *redis.Client
	last   string // id of the entry that was returned last
}

func (r *redisReader) Next(ctx context.Context) ([][]byte, error) {
	found, err := r.client.XRead(ctx, &redis.XReadArgs{Streams: []string{r.stream.Topic, r.last}, Count: 2000, Block: pollTime}).Result()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read stream %s: %w", r.stream.Topic, err)
	}
	var payloads [][]byte
	for _, entry := range found[0].Messages {
		payload, ok := entry.Values["payload"].(string)
		if !ok {
			return nil, fmt.Errorf("entry %s of stream %s has no payload", entry.ID, r.stream.Topic)
		}
		payloads = append(payloads, []byte(payload))
		r.last = entry.ID
	}
	return payloads, nil
}

func (r *redisReader) AtEnd(ctx context.Context) (bool, error) {
	info, err := r.client.XInfoStream(ctx, r.stream.Topic).Result()
	if err != nil {
		return false, fmt.Errorf("end of stream %s: %w", r.stream.Topic, err)
	}
	return info.LastGeneratedID == r.last, nil
}

func (r *redisReader) Close() { _ = r.client.Close() } // what it would say was said before
