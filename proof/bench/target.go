package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testnet"
	"github.com/pgoutbox/outbox/proof/rig"
)

// target is the broker that is delivered to, and the topics there.
type target interface {
	// address is where contenders find it.
	address() string
	// yaml is the broker's part of a relay's configuration, which delivers in transactions of that id if it isn't "".
	yaml(transactions string) string
	version(ctx context.Context) (string, error)
	// fresh makes the topics, empty.
	fresh(ctx context.Context) error
	// count is how far the topics have grown, in messages and records that end transactions.
	count(ctx context.Context) (int, error)
	// consume shows the payloads in the topics to visit, from their beginning and as they come, until ctx ends, whose
	// error it then returns.
	consume(ctx context.Context, visit func(payload []byte)) error
	// readAll shows what stands in the topics now.
	readAll(ctx context.Context, visit func(payload []byte)) error
	// close removes the topics and hangs up.
	close()
}

// hangUp bounds what is done in farewell.
const hangUp = 10 * time.Second

// partitions of the topic, where it has such.
const partitions = 2

func openTarget(ctx context.Context, cfg *Config, topics []string, proxy *testnet.Proxy) (target, error) {
	if cfg.Broker == "nats" {
		return openNATS(ctx, cfg.Address, topics[0], proxy)
	}
	decode := func(payload []byte) []byte { return payload }
	if cfg.Bench == "strategies" {
		decode = decodeJSON
	}
	return openKafka(ctx, cfg.Address, topics, cfg.work().partitions, decode, proxy)
}

type kafkaTarget struct {
	server     *servers.Kafka
	addr       string
	topics     []string
	partitions int32 // of each
	decode     func([]byte) []byte
	cursors    []string // topics in which relays keep cursors beside transactions
	client     *kgo.Client
	admin      *kadm.Client
}

func openKafka(ctx context.Context, addr string, topics []string, partitions int, decode func([]byte) []byte, proxy *testnet.Proxy) (target, error) {
	t := &kafkaTarget{addr: addr, topics: topics, partitions: int32(partitions), decode: decode}
	if addr == "" {
		cfg := servers.KafkaConfig{Bench: true}
		if proxy != nil {
			// Clients go where the cluster tells them to.
			cfg.Settings = map[string]string{"advertised.listeners": "PLAINTEXT://" + proxy.Addr()}
		}
		server, err := servers.StartKafka(ctx, cfg)
		if err != nil {
			return nil, missing(err, "name a broker with --address")
		}
		t.server, t.addr = server, server.Addr()
		if proxy != nil {
			proxy.Forward(server.Addr())
			t.addr = proxy.Addr()
		}
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(t.addr))
	if err == nil {
		t.client, t.admin = client, kadm.NewClient(client)
		err = client.Ping(ctx)
	}
	if err != nil {
		t.close()
		return nil, fmt.Errorf("Kafka at %s: %w", t.addr, err)
	}
	return t, nil
}

func (t *kafkaTarget) address() string { return t.addr }

func (t *kafkaTarget) yaml(transactions string) string {
	if transactions == "" {
		return fmt.Sprintf("{kafka: {brokers: [%q]}}", t.addr)
	}
	t.cursors = append(t.cursors, transactions+"-cursor")
	return fmt.Sprintf("{kafka: {brokers: [%q], exactly_once: true, create_topics: true, transactional_id: %s}}", t.addr, transactions)
}

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
	responses, err := t.admin.DeleteTopics(ctx, slices.Concat(t.topics, t.cursors)...)
	if err != nil {
		return err
	}
	for _, r := range responses {
		if r.Err != nil && !errors.Is(r.Err, kerr.UnknownTopicOrPartition) {
			return r.Err
		}
	}
	soon := "1000" // otherwise a minute's worth of topics is on the disk
	for _, topic := range t.topics {
		for {
			_, err := t.admin.CreateTopic(ctx, t.partitions, 1, map[string]*string{"file.delete.delay.ms": &soon}, topic)
			if err == nil {
				break
			}
			if !errors.Is(err, kerr.TopicAlreadyExists) {
				return fmt.Errorf("create the topic: %w", err)
			}
			if err := rig.Pause(ctx, 100*time.Millisecond); err != nil { // deletion takes a moment
				return err
			}
		}
	}
	// Ready when every partition has a leader: no contender's time should go into waiting for that.
	for {
		n, err := t.count(ctx)
		if err == nil && n == 0 {
			return nil
		}
		if err := rig.Pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

func (t *kafkaTarget) count(ctx context.Context) (n int, err error) {
	ends, err := t.ends(ctx)
	ends.Each(func(o kadm.ListedOffset) { n += int(max(o.Offset, 0)) })
	return n, err
}

// ends are where the topics end. A broker that is kept from work for long has no leaders for a moment.
func (t *kafkaTarget) ends(ctx context.Context) (kadm.ListedOffsets, error) {
	for began := time.Now(); ; {
		ends, err := t.admin.ListEndOffsets(ctx, t.topics...)
		if err == nil {
			err = ends.Error()
		}
		if err == nil || !kerr.IsRetriable(err) || time.Since(began) > stalled {
			return ends, err
		}
		if err := rig.Pause(ctx, 5*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

func (t *kafkaTarget) consume(ctx context.Context, visit func([]byte)) error {
	return t.records(ctx, visit, func(*kgo.Record) bool { return true })
}

func (t *kafkaTarget) readAll(ctx context.Context, visit func([]byte)) error {
	ends, err := t.ends(ctx)
	if err != nil {
		return err
	}
	type part struct {
		topic string
		no    int32
	}
	left := map[part]int64{} // what was aborted leaves gaps
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left[part{o.Topic, o.Partition}] = o.Offset
		}
	})
	if len(left) == 0 {
		return nil
	}
	return t.records(ctx, visit, func(r *kgo.Record) bool {
		if p := (part{r.Topic, r.Partition}); r.Offset+1 >= left[p] {
			delete(left, p)
		}
		return len(left) > 0
	})
}

// records shows what was committed to visit, until more says of a record, those that end transactions included, that it
// was the last.
func (t *kafkaTarget) records(ctx context.Context, visit func([]byte), more func(*kgo.Record) bool) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(t.addr), kgo.ConsumeTopics(t.topics...), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())
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
			if !r.Attrs.IsControl() {
				visit(t.decode(r.Value))
			}
			if !more(r) {
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
			_, _ = t.admin.DeleteTopics(ctx, slices.Concat(t.topics, t.cursors)...) // best effort, as all of this
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

func openNATS(ctx context.Context, url, topic string, proxy *testnet.Proxy) (target, error) {
	t := &natsTarget{url: url, topic: topic}
	if url == "" {
		server, err := servers.StartNATS(ctx, servers.NATSConfig{})
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
		proxy.Forward(net.JoinHostPort(behind.Hostname(), port))
		behind.Host = proxy.Addr()
		t.url = behind.String()
	}
	return t, nil
}

func (t *natsTarget) address() string    { return t.url }
func (t *natsTarget) yaml(string) string { return fmt.Sprintf("{nats: {url: %q}}", t.url) }

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

func (t *natsTarget) consume(ctx context.Context, visit func([]byte)) error {
	return t.messages(ctx, func(payload []byte) bool { visit(payload); return true })
}

func (t *natsTarget) readAll(ctx context.Context, visit func([]byte)) error {
	left, err := t.count(ctx)
	if err != nil || left == 0 {
		return err
	}
	return t.messages(ctx, func(payload []byte) bool { visit(payload); left--; return left > 0 })
}

func (t *natsTarget) messages(ctx context.Context, visit func([]byte) bool) error {
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
