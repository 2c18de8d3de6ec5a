package kafka_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/kafka"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

func TestMain(m *testing.M) { os.Exit(brokertest.Leaks(servers.Run(m))) }

// What the tests of all brokers share.
var (
	patient  = brokertest.Patient
	accepted = brokertest.Accepted
	contains = brokertest.Contains
)

// cluster is a Kafka with an administrator's connection.
type cluster struct {
	t     testing.TB
	seeds []string
	admin *kadm.Client
}

func connect(t testing.TB, seeds ...string) *cluster {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.MetadataMinAge(10*time.Millisecond), kgo.DisableClientMetrics())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return &cluster{t, seeds, kadm.NewClient(client)}
}

// topic creates a topic of the test's own; config has pairs of names and values.
func (c *cluster) topic(partitions int, config ...string) string {
	c.t.Helper()
	name := "t-" + outbox.NewID().String()
	c.create(name, partitions, config...)
	return name
}

// create creates a topic and waits until it can be used.
func (c *cluster) create(name string, partitions int, config ...string) {
	c.t.Helper()
	configs := map[string]*string{}
	for i := 0; i < len(config); i += 2 {
		configs[config[i]] = &config[i+1]
	}
	if _, err := c.admin.CreateTopic(patient(c.t), int32(partitions), 1, configs, name); err != nil {
		c.t.Fatalf("create topic: %v", err)
	}
	c.await("the topic has leaders", func(ctx context.Context) error {
		ends, err := c.admin.ListEndOffsets(ctx, name)
		if err == nil {
			err = ends.Error()
		}
		return err
	})
}

// await waits until a condition holds.
func (c *cluster) await(what string, holds func(context.Context) error) {
	c.t.Helper()
	ctx := patient(c.t)
	for {
		err := holds(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			c.t.Fatalf("%s: %v", what, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (c *cluster) broker(cfg kafka.Config) *kafka.Broker {
	c.t.Helper()
	if cfg.Brokers == nil {
		cfg.Brokers = c.seeds
	}
	b, err := kafka.New(cfg)
	return brokertest.Opened(c.t, b, err)
}

// records returns all records of topics, in order within each partition.
func (c *cluster) records(ctx context.Context, topics ...string) ([]*kgo.Record, error) {
	ends, err := c.admin.ListEndOffsets(ctx, topics...)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, err
	}
	from := map[string]map[int32]kgo.Offset{}
	left := int64(0)
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset == 0 {
			return
		}
		if from[o.Topic] == nil {
			from[o.Topic] = map[int32]kgo.Offset{}
		}
		from[o.Topic][o.Partition] = kgo.NewOffset().AtStart()
		left += o.Offset
	})
	if left == 0 {
		return nil, nil
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(c.seeds...), kgo.ConsumePartitions(from), kgo.DisableClientMetrics())
	if err != nil {
		return nil, err
	}
	defer client.Close()
	var records []*kgo.Record
	for left > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			return nil, err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if end, _ := ends.Lookup(r.Topic, r.Partition); r.Offset < end.Offset {
				records = append(records, r)
				left--
			}
		})
	}
	return records, nil
}

// message undoes the wire format.
func message(r *kgo.Record) (outbox.Message, error) {
	m := outbox.Message{Topic: r.Topic, Key: string(r.Key), Payload: r.Value}
	for _, h := range r.Headers {
		if err := brokertest.Attribute(&m, h.Key, string(h.Value)); err != nil {
			return m, err
		}
	}
	return m, nil
}

func (c *cluster) messages(ctx context.Context, topics ...string) ([]outbox.Message, error) {
	records, err := c.records(ctx, topics...)
	if err != nil {
		return nil, err
	}
	messages := make([]outbox.Message, len(records))
	for i, r := range records {
		if messages[i], err = message(r); err != nil {
			return nil, err
		}
	}
	return messages, nil
}

// harness binds the suite to two new topics of several partitions.
func (c *cluster) harness(cfg kafka.Config) relaytest.BrokerHarness {
	topics := [2]string{c.topic(3), c.topic(2)}
	return relaytest.BrokerHarness{
		Open:         func(t *testing.T) relay.Broker { return connectionless(t, c.seeds, cfg) },
		Topics:       topics,
		Read:         func(ctx context.Context) ([]outbox.Message, error) { return c.messages(ctx, topics[:]...) },
		TooLarge:     1_048_588, // the topics' limit, with which no room is left for anything else
		UnknownTopic: "t-unknown-" + outbox.NewID().String(),
	}
}

func connectionless(t *testing.T, seeds []string, cfg kafka.Config) *kafka.Broker {
	t.Helper()
	cfg.Brokers = seeds
	b, err := kafka.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
