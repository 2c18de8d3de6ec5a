package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pgoutbox/outbox/internal/servers"
)

// target is the broker that is delivered to, and the one topic there.
type target interface {
	// address is where contenders find it.
	address() string
	// yaml is the broker's part of a relay's configuration.
	yaml() string
	version(ctx context.Context) (string, error)
	// fresh makes the topic, empty.
	fresh(ctx context.Context) error
	// count is how many messages stand in the topic.
	count(ctx context.Context) (int, error)
	// consume shows the payloads in the topic to visit, from its beginning and as they come, until visit
	// returns false or ctx ends, whose error it then returns.
	consume(ctx context.Context, visit func(payload []byte) bool) error
	// close removes the topic and hangs up.
	close()
}

// hangUp bounds what is done in farewell.
const hangUp = 10 * time.Second

// partitions of the topic, where it has such.
const partitions = 2

func openTarget(ctx context.Context, common *Common, topic string, proxy *delay) (target, error) {
	if common.Broker == "nats" {
		return openNATS(ctx, common.Address, topic, proxy)
	}
	return openKafka(ctx, common.Address, topic, proxy)
}

type kafkaTarget struct {
	server *servers.Kafka
	addr   string
	topic  string
	client *kgo.Client
	admin  *kadm.Client
}

func openKafka(ctx context.Context, addr, topic string, proxy *delay) (target, error) {
	t := &kafkaTarget{addr: addr, topic: topic}
	if addr == "" {
		cfg := servers.KafkaConfig{Bench: true}
		if proxy != nil {
			// Clients go where the cluster tells them to.
			cfg.Settings = map[string]string{"advertised.listeners": "PLAINTEXT://" + proxy.address()}
		}
		server, err := servers.StartKafka(ctx, cfg)
		if err != nil {
			return nil, missing(err, "name a broker with --address")
		}
		t.server, t.addr = server, server.Addr()
		if proxy != nil {
			proxy.forward(server.Addr())
			t.addr = proxy.address()
		}
	} else if proxy != nil {
		return nil, errors.New("the round trip to a Kafka can only be made longer where the benchmark starts it: leave out --address")
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(t.addr))
	if err != nil {
		t.close()
		return nil, fmt.Errorf("Kafka at %s: %w", t.addr, err)
	}
	t.client, t.admin = client, kadm.NewClient(client)
	if err := client.Ping(ctx); err != nil {
		t.close()
		return nil, fmt.Errorf("Kafka at %s: %w", t.addr, err)
	}
	return t, nil
}

func (t *kafkaTarget) address() string { return t.addr }
func (t *kafkaTarget) yaml() string    { return fmt.Sprintf("{kafka: {brokers: [%q]}}", t.addr) }

func (t *kafkaTarget) version(ctx context.Context) (string, error) {
	if t.server != nil {
		return servers.KafkaVersion, nil
	}
	all, err := t.admin.ApiVersions(ctx)
	if err != nil {
		return "", err
	}
	guess := "unknown"
	all.Each(func(v kadm.BrokerApiVersions) { guess = v.VersionGuess() })
	return guess, nil
}

func (t *kafkaTarget) fresh(ctx context.Context) error {
	if _, err := t.admin.DeleteTopic(ctx, t.topic); err != nil && !errors.Is(err, kerr.UnknownTopicOrPartition) {
		return err
	}
	soon := "1000" // otherwise a minute's worth of topics is on the disk
	for {
		_, err := t.admin.CreateTopic(ctx, partitions, 1, map[string]*string{"file.delete.delay.ms": &soon}, t.topic)
		if err == nil {
			break
		}
		if !errors.Is(err, kerr.TopicAlreadyExists) {
			return fmt.Errorf("create the topic: %w", err)
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil { // deletion takes a moment
			return err
		}
	}
	// Ready when every partition has a leader: nobody's time should go into waiting for that.
	for {
		n, err := t.count(ctx)
		if err == nil && n == 0 {
			return nil
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

func (t *kafkaTarget) count(ctx context.Context) (int, error) {
	ends, err := t.admin.ListEndOffsets(ctx, t.topic)
	if err != nil {
		return 0, err
	}
	n := int64(0)
	ends.Each(func(o kadm.ListedOffset) { n += max(o.Offset, 0) })
	return int(n), ends.Error()
}

func (t *kafkaTarget) consume(ctx context.Context, visit func([]byte) bool) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(t.addr), kgo.ConsumeTopics(t.topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return err
	}
	defer client.Close()
	for {
		fetches := client.PollFetches(ctx)
		if err := errors.Join(ctx.Err(), fetches.Err()); err != nil {
			return err
		}
		for r := range fetches.RecordsAll() {
			if !visit(r.Value) {
				return nil
			}
		}
	}
}

func (t *kafkaTarget) close() {
	ctx, cancel := context.WithTimeout(context.Background(), hangUp)
	defer cancel()
	if t.client != nil {
		if t.server == nil {
			_, _ = t.admin.DeleteTopic(ctx, t.topic) // best effort, as all of this
		}
		t.client.Close()
	}
	if t.server != nil {
		_ = t.server.Close()
	}
}

type natsTarget struct {
	server *servers.NATS
	url    string // for contenders
	topic  string
	conn   *nats.Conn
	js     jetstream.JetStream
}

func openNATS(ctx context.Context, url, topic string, proxy *delay) (target, error) {
	t := &natsTarget{url: url, topic: topic}
	if url == "" {
		server, err := servers.StartNATS(ctx)
		if err != nil {
			return nil, missing(err, "name a server with --address")
		}
		t.server, t.url = server, server.URL()
	}
	var err error
	if t.conn, err = nats.Connect(t.url); err == nil {
		t.js, err = jetstream.New(t.conn)
	}
	if err != nil {
		t.close()
		return nil, fmt.Errorf("NATS: %w", err)
	}
	if proxy != nil {
		behind, err := parseURL(t.conn.ConnectedUrl())
		if err != nil {
			t.close()
			return nil, fmt.Errorf("the address of NATS: %w", err)
		}
		port := behind.Port()
		setDefault(&port, strconv.Itoa(nats.DefaultPort))
		proxy.forward(net.JoinHostPort(behind.Hostname(), port))
		behind.Host = proxy.address()
		t.url = behind.String()
	}
	return t, nil
}

func (t *natsTarget) address() string { return t.url }
func (t *natsTarget) yaml() string    { return fmt.Sprintf("{nats: {url: %q}}", t.url) }

func (t *natsTarget) version(context.Context) (string, error) {
	return t.conn.ConnectedServerVersion(), nil
}

func (t *natsTarget) fresh(ctx context.Context) error {
	if err := t.js.DeleteStream(ctx, t.topic); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return err
	}
	if _, err := t.js.CreateStream(ctx, jetstream.StreamConfig{Name: t.topic, Subjects: []string{t.topic}}); err != nil {
		return fmt.Errorf("create the stream: %w", err)
	}
	return nil
}

func (t *natsTarget) count(ctx context.Context) (int, error) {
	s, err := t.js.Stream(ctx, t.topic)
	if err != nil {
		return 0, err
	}
	return int(s.CachedInfo().State.Msgs), nil
}

func (t *natsTarget) consume(ctx context.Context, visit func([]byte) bool) error {
	consumer, err := t.js.OrderedConsumer(ctx, t.topic, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return err
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessages(5000))
	if err != nil {
		return err
	}
	defer messages.Stop()
	defer context.AfterFunc(ctx, messages.Stop)()
	for {
		m, err := messages.Next()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return err
		}
		if !visit(m.Data()) {
			return nil
		}
	}
}

func (t *natsTarget) close() {
	ctx, cancel := context.WithTimeout(context.Background(), hangUp)
	defer cancel()
	if t.conn != nil {
		if t.server == nil && t.js != nil {
			_ = t.js.DeleteStream(ctx, t.topic) // best effort, as all of this
		}
		t.conn.Close()
	}
	if t.server != nil {
		_ = t.server.Close()
	}
}

// pause waits for d, or returns ctx's error.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
