package main

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/internal/testnet"
	"github.com/pgoutbox/outbox/proof/rig"
)

// target is the broker that is delivered to, and the topics there.
type target struct {
	address string // where contenders find it
	version string
	topics  []rig.Target
	topic   func(name string) rig.Target // of that broker
	cursors []rig.Target                 // topics in which relays keep cursors beside transactions
	yaml    func(transactions string) string
	decode  func([]byte) []byte
	given   bool // the server isn't ours: its topics are removed
	hangUps []func()
}

// hangUp bounds what is done in farewell.
const hangUp = 10 * time.Second

const (
	// partitions of the topic, where it has such.
	partitions = 2

	// largest message that topics take: Kafka's default.
	largest = 1_048_588
)

func openTarget(ctx context.Context, cfg *Config, topics []string, proxy *testnet.Proxy) (*target, error) {
	t := &target{address: cfg.Address, given: cfg.Address != "", decode: func(payload []byte) []byte { return payload }}
	open := t.openKafka
	if cfg.Broker == "nats" {
		open = t.openNATS
	}
	if cfg.Bench == "strategies" {
		t.decode = decodeJSON
	}
	if err := open(ctx, cfg.work().partitions, proxy); err != nil {
		t.close()
		return nil, fmt.Errorf("%s at %s: %w", cfg.Broker, t.address, err)
	}
	for _, name := range topics {
		t.topics = append(t.topics, t.topic(name))
	}
	return t, nil
}

func (t *target) openKafka(ctx context.Context, partitions int, proxy *testnet.Proxy) error {
	if !t.given {
		cfg := servers.KafkaConfig{Bench: true}
		if proxy != nil {
			// Clients go where the cluster tells them to.
			cfg.Settings = map[string]string{"advertised.listeners": "PLAINTEXT://" + proxy.Addr()}
		}
		server, err := servers.StartKafka(ctx, cfg)
		if err != nil {
			return missing(err, "name a broker with --address")
		}
		t.hangUps = append(t.hangUps, func() { _ = server.Close() }) // best effort, as all of this
		t.address, t.version = server.Addr(), servers.KafkaVersion
		if proxy != nil {
			proxy.Forward(server.Addr())
			t.address = proxy.Addr()
		}
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(t.address))
	if err != nil {
		return err
	}
	t.hangUps = append(t.hangUps, client.Close)
	if err := client.Ping(ctx); err != nil {
		return err
	}
	if t.given {
		all, err := kadm.NewClient(client).ApiVersions(ctx)
		if err != nil {
			return err
		}
		t.version = "unknown"
		all.Each(func(v kadm.BrokerApiVersions) { t.version = v.VersionGuess() })
	}
	t.topic = func(name string) rig.Target {
		return rig.KafkaTopic{Addr: t.address, Topic: name, Partitions: partitions, Largest: largest, Committed: true, Client: client}
	}
	t.yaml = func(transactions string) string {
		if transactions == "" {
			return fmt.Sprintf("{kafka: {brokers: [%q]}}", t.address)
		}
		t.cursors = append(t.cursors, t.topic(transactions+"-cursor"))
		return fmt.Sprintf("{kafka: {brokers: [%q], exactly_once: true, create_topics: true, transactional_id: %s}}",
			t.address, transactions)
	}
	return nil
}

func (t *target) openNATS(ctx context.Context, _ int, proxy *testnet.Proxy) error {
	if !t.given {
		server, err := servers.StartNATS(ctx, servers.NATSConfig{})
		if err != nil {
			return missing(err, "name a server with --address")
		}
		t.hangUps = append(t.hangUps, func() { _ = server.Close() })
		t.address = server.URL()
	}
	conn, err := nats.Connect(t.address)
	if err != nil {
		return err
	}
	t.hangUps = append(t.hangUps, conn.Close)
	t.version = conn.ConnectedServerVersion()
	direct := t.address
	t.topic = func(name string) rig.Target {
		// The window is NATS's default.
		return rig.NATSTopic{URL: direct, Topic: name, Largest: largest, Window: 2 * time.Minute, Conn: conn}
	}
	t.yaml = func(string) string { return fmt.Sprintf("{nats: {url: %q}}", t.address) }
	if proxy == nil {
		return nil
	}
	behind, err := parseURL(conn.ConnectedUrl())
	if err != nil {
		return err
	}
	port := behind.Port()
	settings.Default(&port, strconv.Itoa(nats.DefaultPort))
	proxy.Forward(net.JoinHostPort(behind.Hostname(), port))
	behind.Host = proxy.Addr()
	t.address = behind.String()
	return nil
}

// fresh makes the topics, empty. They answer then: no contender's time should go into waiting for that.
func (t *target) fresh(ctx context.Context) error {
	if err := t.remove(ctx); err != nil {
		return err
	}
	for _, topic := range t.topics {
		if err := topic.Create(ctx); err != nil {
			return fmt.Errorf("create the topic: %w", err)
		}
		if err := topic.Answers(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (t *target) remove(ctx context.Context) error {
	for _, topic := range slices.Concat(t.topics, t.cursors) {
		if err := topic.Delete(ctx); err != nil {
			return err
		}
	}
	return nil
}

// count is how far the topics have grown, in messages and records that end transactions. A broker that is kept from
// work for long has no leaders for a moment.
func (t *target) count(ctx context.Context) (n int, err error) {
	for _, topic := range t.topics {
		for began := time.Now(); ; {
			grown, err := topic.Grown(ctx)
			if err == nil {
				n += grown
				break
			}
			if !kerr.IsRetriable(err) || time.Since(began) > stalled {
				return n, err
			}
			if err := rig.Pause(ctx, 5*time.Millisecond); err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

// consume shows the payloads in the topics to visit, which several goroutines call, from their beginning and as they
// come, until ctx ends, whose error it then returns.
func (t *target) consume(ctx context.Context, visit func([]byte)) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, topic := range t.topics {
		group.Go(func() error {
			reader, err := topic.Read(ctx)
			if err != nil {
				return err
			}
			defer reader.Close()
			for {
				payloads, err := reader.Next(ctx)
				if err != nil {
					return err
				}
				for _, payload := range payloads {
					visit(t.decode(payload))
				}
			}
		})
	}
	return group.Wait()
}

// readAll shows what stands in the topics now.
func (t *target) readAll(ctx context.Context, visit func([]byte)) error {
	for _, topic := range t.topics {
		if err := rig.ReadAll(ctx, topic, func(payload []byte) { visit(t.decode(payload)) }); err != nil {
			return err
		}
	}
	return nil
}

// close removes the topics and hangs up.
func (t *target) close() {
	ctx, cancel := context.WithTimeout(context.Background(), hangUp)
	defer cancel()
	if t.given {
		_ = t.remove(ctx)
	}
	for _, hangUp := range slices.Backward(t.hangUps) {
		hangUp()
	}
}
