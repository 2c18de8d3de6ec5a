package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pgoutbox/outbox/internal/check"
	"github.com/pgoutbox/outbox/internal/servers"
)

// target is the broker that is drained into.
type target interface {
	address() string
	// yaml is the broker's part of a relay's configuration.
	yaml() string
	// fresh makes the topic, empty.
	fresh(ctx context.Context) error
	// count is how many messages stand in the topic.
	count(ctx context.Context) (int, error)
	// consume gives n payloads to visit, in order.
	consume(ctx context.Context, n int, visit func([]byte)) error
	close()
}

func openTarget(ctx context.Context, cfg DrainConfig) (target, error) {
	if cfg.Broker == "nats" {
		return openNATS(ctx, cfg.Address)
	}
	return openKafka(ctx, cfg.Address)
}

type kafkaTarget struct {
	server *servers.Kafka
	addr   string
	client *kgo.Client
	admin  *kadm.Client
}

func openKafka(ctx context.Context, addr string) (target, error) {
	t := &kafkaTarget{addr: addr}
	if addr == "" {
		server, err := servers.StartKafka(ctx, servers.KafkaConfig{Bench: true})
		if err != nil {
			return nil, err
		}
		t.server, t.addr = server, server.Addr()
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(t.addr))
	if err != nil {
		t.close()
		return nil, err
	}
	t.client, t.admin = client, kadm.NewClient(client)
	return t, nil
}

func (t *kafkaTarget) address() string { return t.addr }
func (t *kafkaTarget) yaml() string    { return fmt.Sprintf("{kafka: {brokers: [%q]}}", t.addr) }

func (t *kafkaTarget) fresh(ctx context.Context) error {
	if _, err := t.admin.DeleteTopic(ctx, topic); err != nil && !isUnknownTopic(err) {
		return err
	}
	for {
		_, err := t.admin.CreateTopic(ctx, 2, 1, nil, topic)
		if err == nil || !isTopicExists(err) {
			return err
		}
		select { // deletion takes a moment
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (t *kafkaTarget) count(ctx context.Context) (int, error) {
	ends, err := t.admin.ListEndOffsets(ctx, topic)
	if err != nil {
		return 0, err
	}
	n := int64(0)
	ends.Each(func(o kadm.ListedOffset) { n += max(o.Offset, 0) })
	return int(n), ends.Error()
}

func (t *kafkaTarget) consume(ctx context.Context, n int, visit func([]byte)) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(t.addr), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return err
	}
	defer client.Close()
	for n > 0 {
		fetches := client.PollFetches(ctx)
		if err := errors.Join(ctx.Err(), fetches.Err()); err != nil {
			return err
		}
		for r := range fetches.RecordsAll() {
			visit(r.Value)
			n--
		}
	}
	return nil
}

func (t *kafkaTarget) close() {
	if t.client != nil {
		t.client.Close()
	}
	if t.server != nil {
		_ = t.server.Close() // best effort: the parent's death ends it too
	}
}

type natsTarget struct {
	server *servers.NATS
	url    string
	conn   *nats.Conn
	js     jetstream.JetStream
}

func openNATS(ctx context.Context, url string) (target, error) {
	t := &natsTarget{url: url}
	if url == "" {
		server, err := servers.StartNATS(ctx)
		if err != nil {
			return nil, err
		}
		t.server, t.url = server, server.URL()
	}
	var err error
	if t.conn, err = nats.Connect(t.url); err == nil {
		t.js, err = jetstream.New(t.conn)
	}
	if err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

func (t *natsTarget) address() string { return t.url }
func (t *natsTarget) yaml() string    { return fmt.Sprintf("{nats: {url: %q}}", t.url) }

const stream = "BENCH"

func (t *natsTarget) fresh(ctx context.Context) error {
	if err := t.js.DeleteStream(ctx, stream); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return err
	}
	_, err := t.js.CreateStream(ctx, jetstream.StreamConfig{Name: stream, Subjects: []string{topic}})
	return err
}

func (t *natsTarget) count(ctx context.Context) (int, error) {
	s, err := t.js.Stream(ctx, stream)
	if err != nil {
		return 0, err
	}
	return int(s.CachedInfo().State.Msgs), nil
}

func (t *natsTarget) consume(ctx context.Context, n int, visit func([]byte)) error {
	consumer, err := t.js.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return err
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessages(5000))
	if err != nil {
		return err
	}
	defer messages.Stop()
	defer context.AfterFunc(ctx, messages.Stop)()
	for ; n > 0; n-- {
		m, err := messages.Next()
		if err != nil {
			return errors.Join(ctx.Err(), err)
		}
		visit(m.Data())
	}
	return nil
}

func (t *natsTarget) close() {
	if t.conn != nil {
		t.conn.Close()
	}
	if t.server != nil {
		_ = t.server.Close() // best effort: the parent's death ends it too
	}
}

// checked reads the whole topic back and lets a checker decide.
func checked(ctx context.Context, t target, n int, to *check.Destination) error {
	return t.consume(ctx, n, func(payload []byte) { _, _ = to.Payload(payload) }) // what doesn't decode is counted
}
