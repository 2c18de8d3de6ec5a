package redis_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/redis"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/relay/relaytest"
	goredis "github.com/redis/go-redis/v9"
)

func TestMain(m *testing.M) {
	redis.SilenceClient() // for it is loud about servers that are gone
	os.Exit(brokertest.Leaks(servers.Run(m)))
}

// What the tests of all brokers share.
var (
	patient  = brokertest.Patient
	accepted = brokertest.Accepted
	contains = brokertest.Contains
)

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
		ctx, cancel := context.WithTimeout(context.Background(), await.Expiry(5*time.Second))
		defer cancel()
		// the server may be gone on purpose
		c.Del(ctx, name, "{"+name+"}:outbox:recent", "{"+name+"}:outbox:older", "{"+name+"}:outbox:known")
	})
}

// formCluster makes a single node a cluster.
func formCluster(t testing.TB, node *goredis.Client) {
	t.Helper()
	if err := node.ClusterAddSlotsRange(patient(t), 0, 16383).Err(); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the cluster is up", func() bool {
		return strings.Contains(node.ClusterInfo(patient(t)).Val(), "cluster_state:ok")
	})
}

func newBroker(t testing.TB, addresses string, cfg redis.Config) *redis.Broker {
	t.Helper()
	b, err := redis.New(addresses, cfg)
	return brokertest.Opened(t, b, err)
}

// harness has two streams of its own.
func harness(t *testing.T, addr string, cfg redis.Config) relaytest.BrokerHarness {
	c := client(t, addr)
	topics := [2]string{newStream(t, c), newStream(t, c)}
	cfg.MaxMessageBytes = 1 << 20
	return relaytest.BrokerHarness{
		Open:   brokertest.Opener(func() (*redis.Broker, error) { return redis.New(addr, cfg) }),
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

// checkExactly verifies that the stream has every message once, and those of a key in the order of batch.
func checkExactly(t testing.TB, c *goredis.Client, stream string, batch []*outbox.Message) {
	t.Helper()
	stored, err := read(patient(t), c, stream)
	if err != nil {
		t.Fatal(err)
	}
	brokertest.CheckOrder(t, batch, stored)
	if len(stored) != len(batch) {
		t.Errorf("%d stored, %d published", len(stored), len(batch))
	}
}
