package redis_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/redis"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	redis.SilenceClient() // for it is loud about servers that are gone
	code := servers.Run(m)
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// patience bounds what a test waits for. Nothing asserts that things are faster.
const patience = 60 * time.Second

func patient(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// client connects to the server by itself, without the broker.
func client(t testing.TB, addr string) *goredis.Client {
	t.Helper()
	c := goredis.NewClient(&goredis.Options{Addr: addr, Protocol: 2, DisableIdentity: true})
	t.Cleanup(func() { c.Close() })
	return c
}

var streams atomic.Int64

// newStream creates a stream with a name of its own.
func newStream(t testing.TB, c *goredis.Client) string {
	t.Helper()
	name := fmt.Sprintf("s%d-%d", os.Getpid(), streams.Add(1))
	create(t, c, name)
	return name
}

func create(t testing.TB, c *goredis.Client, name string) {
	t.Helper()
	if err := c.XGroupCreateMkStream(patient(t), name, "readers", "$").Err(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		c.Del(ctx, name, "{"+name+"}:outbox:recent", "{"+name+"}:outbox:older", "{"+name+"}:outbox:known") // the server may be gone on purpose
	})
}

// formCluster makes a single node a cluster.
func formCluster(t testing.TB, node *goredis.Client) {
	t.Helper()
	if err := node.ClusterAddSlotsRange(patient(t), 0, 16383).Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the cluster is up", func() bool {
		return strings.Contains(node.ClusterInfo(patient(t)).Val(), "cluster_state:ok")
	})
}

func newBroker(t testing.TB, addresses string, cfg redis.Config) *redis.Broker {
	t.Helper()
	b, err := redis.New(addresses, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// harness has two streams of its own.
func harness(t *testing.T, addr string, cfg redis.Config) relaytest.BrokerHarness {
	c := client(t, addr)
	topics := [2]string{newStream(t, c), newStream(t, c)}
	cfg.MaxMessageBytes = 1 << 20
	return relaytest.BrokerHarness{
		Open: func(t *testing.T) relay.Broker {
			b, err := redis.New(addr, cfg)
			if err != nil {
				t.Fatal(err)
			}
			return b
		},
		Topics: topics,
		Read: func(ctx context.Context) (all []outbox.Message, err error) {
			for _, topic := range topics {
				part, err := read(ctx, c, topic)
				if err != nil {
					return nil, err
				}
				all = append(all, part...)
			}
			return all, nil
		},
		TooLarge:     1 << 20,
		UnknownTopic: "unknown-" + topics[0],
		Deduplicates: cfg.DedupWindow >= 0,
	}
}

// read returns what a consumer makes of the stream by following the documented wire format.
func read(ctx context.Context, c *goredis.Client, stream string) ([]outbox.Message, error) {
	var all []outbox.Message
	start := "-"
	for {
		// The library makes a map of an entry, and headers have an order.
		reply, err := c.Do(ctx, "XRANGE", stream, start, "+", "COUNT", 1000).Slice()
		if err != nil {
			return nil, err
		}
		for _, entry := range reply {
			id, fields := entry.([]any)[0].(string), entry.([]any)[1].([]any)
			m, err := decode(stream, fields)
			if err != nil {
				return nil, fmt.Errorf("entry %s: %w", id, err)
			}
			all = append(all, m)
			start = "(" + id
		}
		if len(reply) < 1000 {
			return all, nil
		}
	}
}

func decode(stream string, fields []any) (m outbox.Message, err error) {
	m.Topic = stream
	for i := 0; i+1 < len(fields); i += 2 {
		name, value := fields[i].(string), fields[i+1].(string)
		switch name {
		case "id":
			m.ID, err = outbox.ParseID(value)
		case "topic":
			m.Topic = value
		case "key":
			m.Key = value
		case "event_type":
			m.EventType = value
		case "aggregate_type":
			m.AggregateType = value
		case "aggregate_id":
			m.AggregateID = value
		case "content_type":
			m.ContentType = value
		case "position":
			m.Position, err = strconv.ParseInt(value, 10, 64)
		case "created_at":
			m.CreatedAt, err = time.Parse(time.RFC3339Nano, value)
		case "deliver_at":
			m.DeliverAt, err = time.Parse(time.RFC3339Nano, value)
		case "payload":
			m.Payload = []byte(value)
		default:
			header, isHeader := strings.CutPrefix(name, "header:")
			if !isHeader {
				return m, fmt.Errorf("field %q", name)
			}
			m.Headers = append(m.Headers, outbox.Header{Name: header, Value: value})
		}
		if err != nil {
			return m, err
		}
	}
	return m, nil
}

// message returns a message with n as payload.
func message(stream, key string, n int) *outbox.Message {
	return &outbox.Message{ID: outbox.NewID(), Topic: stream, Key: key, Payload: fmt.Appendf(nil, "%d", n)}
}

// messages returns n messages that go round over keys.
func messages(stream string, n, keys int) []*outbox.Message {
	batch := make([]*outbox.Message, n)
	for i := range batch {
		batch[i] = message(stream, fmt.Sprintf("k%d", i%keys), i/keys)
	}
	return batch
}

// accepted fails the test unless all were accepted.
func accepted(t testing.TB, errs []error) {
	t.Helper()
	for i, err := range errs {
		if err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
	}
}

// checkOutcomes verifies what every call promises: after the first failure of a key nothing but ErrSkipped.
func checkOutcomes(t testing.TB, batch []*outbox.Message, errs []error) {
	t.Helper()
	if errs == nil {
		return
	}
	if len(errs) != len(batch) {
		t.Fatalf("%d outcomes for %d messages", len(errs), len(batch))
	}
	failed := map[string]bool{}
	for i, m := range batch {
		key, err := m.OrderingKey(), errs[i]
		if key == "" {
			continue
		}
		if failed[key] != errors.Is(err, outbox.ErrSkipped) {
			t.Fatalf("message %d of key %q: an earlier one failed: %v; outcome: %v", i, key, failed[key], err)
		}
		if err != nil {
			failed[key] = true
		}
	}
}

// deliver does what the engine does: it publishes batch until all is accepted.
func deliver(ctx context.Context, t testing.TB, b *redis.Broker, batch []*outbox.Message) {
	t.Helper()
	for len(batch) > 0 {
		errs := b.Publish(ctx, batch)
		checkOutcomes(t, batch, errs)
		if errs == nil {
			return
		}
		var rest []*outbox.Message
		var last error
		for i, err := range errs {
			if err == nil {
				continue
			}
			if outbox.IsPermanent(err) {
				t.Fatalf("message %d: %v", i, err)
			}
			if !errors.Is(err, outbox.ErrSkipped) {
				last = err
			}
			rest = append(rest, batch[i])
		}
		batch = rest
		select {
		case <-ctx.Done():
			t.Fatalf("%d messages left: %v", len(batch), last)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// checkExactly verifies that the stream has every message once, and those of a key in the order of batch.
func checkExactly(t testing.TB, c *goredis.Client, stream string, batch []*outbox.Message) {
	t.Helper()
	stored, err := read(patient(t), c, stream)
	if err != nil {
		t.Fatal(err)
	}
	want, got := map[string][]outbox.ID{}, map[string][]outbox.ID{}
	for _, m := range batch {
		want[m.OrderingKey()] = append(want[m.OrderingKey()], m.ID)
	}
	for i := range stored {
		got[stored[i].OrderingKey()] = append(got[stored[i].OrderingKey()], stored[i].ID)
	}
	for key, ids := range want {
		if !slices.Equal(got[key], ids) {
			t.Errorf("key %q: %d stored for %d published, or out of order", key, len(got[key]), len(ids))
		}
	}
	if len(stored) != len(batch) {
		t.Errorf("%d stored, %d published", len(stored), len(batch))
	}
}

func contains(t testing.TB, err error, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error %v doesn't have %q", err, part)
		}
	}
}

func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("gave up waiting until %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}
