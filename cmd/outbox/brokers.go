package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/jsonl"
	"github.com/pgoutbox/outbox/broker/kafka"
	"github.com/pgoutbox/outbox/broker/nats"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	records "github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/relay"
)

// brokerKind is a kind of broker that a destination may name. Opening connects to nothing: a broker that
// is down is an outage of its destination, and no reason not to start.
type brokerKind struct {
	chosen func(config.Broker) bool
	open   func(config.Broker, brokerSetting) (relay.Broker, error)

	// formats means that open heeds brokerSetting.format.
	formats bool

	// calls is how many calls a relay has on their way: more than its default (0) where each message is a request of its
	// own, and the slowest one holds up its call.
	calls int
}

// brokerSetting is what brokers get beside their configuration.
type brokerSetting struct {
	stdout io.Writer
	name   string // of the destination
	group  int    // for a broker that each shard group has for itself
	groups int
	format records.Format // nil: payloads as they are
	logger *slog.Logger
}

// brokerKinds is all of them, by the name in the configuration.
func brokerKinds() map[string]brokerKind {
	return map[string]brokerKind{
		"kafka": {
			chosen:  func(b config.Broker) bool { return b.Kafka != nil },
			open:    func(b config.Broker, s brokerSetting) (relay.Broker, error) { return openKafka(b.Kafka, s) },
			formats: true,
		},
		"nats": {
			chosen:  func(b config.Broker) bool { return b.NATS != nil },
			open:    func(b config.Broker, s brokerSetting) (relay.Broker, error) { return openNATS(b.NATS, s) },
			formats: true,
		},
		"sqs": {
			chosen:  func(b config.Broker) bool { return b.SQS != nil },
			open:    func(b config.Broker, s brokerSetting) (relay.Broker, error) { return openSQS(b.SQS, s) },
			formats: true,
			calls:   4,
		},
		"sns": {
			chosen:  func(b config.Broker) bool { return b.SNS != nil },
			open:    func(b config.Broker, s brokerSetting) (relay.Broker, error) { return openSNS(b.SNS, s) },
			formats: true,
			calls:   4,
		},
		"pubsub": {
			chosen:  func(b config.Broker) bool { return b.PubSub != nil },
			open:    func(b config.Broker, s brokerSetting) (relay.Broker, error) { return openPubSub(b.PubSub, s) },
			formats: true,
			calls:   4,
		},
		"redis": {
			chosen:  func(b config.Broker) bool { return b.Redis != nil },
			open:    func(b config.Broker, s brokerSetting) (relay.Broker, error) { return openRedis(b.Redis, s) },
			formats: true,
		},
		"rabbitmq": {
			chosen:  func(b config.Broker) bool { return b.RabbitMQ != nil },
			open:    func(b config.Broker, s brokerSetting) (relay.Broker, error) { return openRabbitMQ(b.RabbitMQ, s) },
			formats: true,
		},
		"stdout": {
			chosen: func(b config.Broker) bool { return b.Stdout != nil },
			open:   func(_ config.Broker, s brokerSetting) (relay.Broker, error) { return jsonl.New(s.stdout), nil },
		},
		"file": {
			chosen: func(b config.Broker) bool { return b.File != nil },
			open: func(b config.Broker, s brokerSetting) (relay.Broker, error) {
				return &lazyFile{path: b.File.Path, logger: s.logger}, nil
			},
		},
		"http": {
			chosen:  func(b config.Broker) bool { return b.Webhook != nil },
			open:    func(b config.Broker, s brokerSetting) (relay.Broker, error) { return openHTTP(b.Webhook, s) },
			formats: true,
			calls:   4,
		},
		"grpc": {
			chosen:  func(b config.Broker) bool { return b.GRPC != nil },
			open:    func(b config.Broker, s brokerSetting) (relay.Broker, error) { return openGRPC(b.GRPC, s) },
			formats: true,
			calls:   4,
		},
	}
}

// openBroker opens what a destination names, and says of which kind it is.
func openBroker(b config.Broker, s brokerSetting) (relay.Broker, string, error) {
	kinds := brokerKinds()
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		if kind := kinds[name]; kind.chosen(b) {
			if s.format != nil && !kind.formats {
				return nil, name, fmt.Errorf("%s has a format of its own; leave format out", name)
			}
			broker, err := kind.open(b, s)
			return broker, name, err
		}
	}
	return nil, "", errors.New("no broker is named")
}

// openDestination opens a destination's broker with all that the configuration puts around it.
func openDestination(d config.Destination, s brokerSetting) (relay.Broker, string, error) {
	broker, _, kind, err := openCoupled(d, s)
	return broker, kind, err
}

// coupling is a broker that wants to see what its source reads and settles. It belongs to one shard group.
type coupling interface {
	Source(relay.Source) relay.Source
}

// openCoupled is openDestination, and says what else the broker wants; nil: nothing, and it may be shared by all
// shard groups.
func openCoupled(d config.Destination, s brokerSetting) (_ relay.Broker, coupled coupling, kind string, err error) {
	s.name, s.groups, s.format = d.Name, d.ShardGroups, d.Format.Description()
	broker, kind, err := openBroker(d.Broker, s)
	if err != nil {
		return nil, nil, kind, err
	}
	whole, err := surround(broker, d)
	if err != nil {
		return nil, nil, kind, errors.Join(err, broker.Close())
	}
	coupled, _ = broker.(coupling)
	return whole, coupled, kind, nil
}

// checkBrokers reports what the adapters themselves have to say about the configuration.
func checkBrokers(cfg config.Config) error {
	var faults []error
	for _, d := range cfg.Destinations {
		broker, _, err := openDestination(d, brokerSetting{stdout: io.Discard, logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			faults = append(faults, fmt.Errorf("destination %s: %w", d.Name, err))
			continue
		}
		_ = broker.Close() // it has connected to nothing
	}
	if len(faults) > 0 {
		return coded{errors.Join(faults...), exitConfig}
	}
	return nil
}

func openKafka(k *config.Kafka, s brokerSetting) (relay.Broker, error) {
	secured, err := tlsConfig(k.TLS)
	if err != nil {
		return nil, err
	}
	cfg := kafka.Config{
		Brokers:        k.Brokers,
		Topic:          k.Topic,
		Format:         s.format,
		ClientID:       k.ClientID,
		TLS:            secured,
		Compression:    k.Compression,
		CreateTopics:   k.CreateTopics,
		InternalTopics: k.InternalTopics,
		Clients:        min(4*s.groups, 64), // a relay of each shard group makes four calls at once
		Logger:         s.logger,
	}
	if cfg.SASL, err = saslConfig(k.SASL, s.logger); err != nil {
		return nil, err
	}
	if k.CreateTopics {
		cfg.Partitions = int32(k.Partitions)
		cfg.ReplicationFactor = int16(max(k.ReplicationFactor, 0)) // 0 leaves it to the cluster, as -1 does in the file
	}
	if !k.ExactlyOnce {
		return kafka.New(cfg)
	}
	id := k.TransactionalID
	if id == "" {
		id = "outbox-" + s.name
	}
	return kafka.NewExactlyOnce(cfg, kafka.ExactlyOnceConfig{ID: id, Group: s.group, CursorTopic: k.CursorTopic})
}

func openNATS(n *config.NATS, s brokerSetting) (relay.Broker, error) {
	secured, err := tlsConfig(n.TLS)
	if err != nil {
		return nil, err
	}
	url := n.URL.Text()
	if secured != nil {
		// Enabled means that no connection goes without.
		url = strings.ReplaceAll(url, "nats://", "tls://")
	}
	cfg := nats.Config{
		Subject:         n.Subject,
		Format:          s.format,
		Stream:          n.Stream,
		Recall:          n.Recall,
		CredentialsFile: n.CredentialsFile,
		User:            n.User,
		Password:        n.Password.Text(),
		Token:           n.Token.Text(),
		TLS:             secured,
		Logger:          s.logger,
	}
	if n.CreateStream {
		cfg.CreateStream = &nats.StreamSettings{Subjects: n.StreamSubjects, Replicas: n.Replicas}
	}
	return nats.New(url, cfg)
}

// lazyFile opens its file when the first message comes, so that a standby does not keep the owner from
// it, and a file that can't be opened now is an outage of its destination alone.
type lazyFile struct {
	path   string
	logger *slog.Logger

	mu     sync.Mutex
	file   *jsonl.Broker
	closed bool
}

var (
	_ relay.Broker = (*lazyFile)(nil)
	_ relay.Pinger = (*lazyFile)(nil)
)

func (l *lazyFile) open() (*jsonl.Broker, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, outbox.Unavailable(os.ErrClosed)
	}
	if l.file == nil {
		file, err := jsonl.Open(l.path, jsonl.Config{Logger: l.logger})
		if err != nil {
			return nil, outbox.Unavailable(err)
		}
		l.file = file
	}
	return l.file, nil
}

func (l *lazyFile) Publish(ctx context.Context, batch []*outbox.Message) []error {
	file, err := l.open()
	if err != nil {
		return slices.Repeat([]error{err}, len(batch))
	}
	return file.Publish(ctx, batch)
}

func (l *lazyFile) Ping(ctx context.Context) error {
	file, err := l.open()
	if err != nil {
		return err
	}
	return file.Ping(ctx)
}

func (l *lazyFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.file == nil {
		return nil
	}
	return l.file.Close()
}
