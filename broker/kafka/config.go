package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
)

// Config configures a Broker. Only Brokers is required.
type Config struct {
	// Brokers are the addresses, host:port, through which the cluster is first reached; the default port is 9092. The
	// cluster names its other servers. Required.
	Brokers []string

	// Topic is a template of a record's topic, with the fields {topic}, {aggregate_type} and {event_type}. Default
	// "{topic}".
	Topic string

	// InternalTopics allows messages to topics whose names begin with "__", as the cluster's own do, or end with
	// "-cursor", as those of exactly-once destinations do. Otherwise they are refused permanently: every role that may
	// write a message could write to such topics.
	InternalTopics bool

	// Format makes the records. nil sends payloads unchanged, with the adapter's own headers.
	Format format.Format

	// ClientID identifies the connections in the server's logs, metrics and quotas. Default "outbox".
	ClientID string

	// TLS, if set, is used for every connection. nil means none.
	TLS *tls.Config

	// SASL, if set, authenticates every connection.
	SASL *SASL

	// Compression of record batches: "none", "gzip", "snappy", "lz4" or "zstd". Default "none", which is the fastest by
	// far unless the network is the bottleneck.
	Compression string

	// CreateTopics creates a missing topic when its first message comes. Without it, such a message is an error that
	// can be retried.
	CreateTopics bool

	// Partitions and ReplicationFactor of topics that are created. Zero uses the cluster's defaults.
	Partitions        int32
	ReplicationFactor int16

	// Clients bounds how many calls publish at the same time. Each has a client of its own, and so its own connections.
	// Further calls wait. Default 4.
	Clients int

	// MaxRecordBytes is the largest record that a topic accepts, used if the role lacks the DescribeConfigs permission
	// to read the topic's max.message.bytes. Default 1,048,588, as in Kafka.
	MaxRecordBytes int

	// Unanswered is how long a call continues while nothing is acknowledged. Then the outcome of the rest is unknown,
	// and the call returns that. Default 10 s.
	Unanswered time.Duration

	// Dial opens connections, for proxies and tests. TLS is added on top. Default: net.Dialer with a
	// timeout of 5 s.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// Logger gets the client library's messages, most of them at debug level. nil: slog.Default.
	Logger *slog.Logger

	records   format.Encoder // of Format; nil without one
	mechanism sasl.Mechanism // of SASL; nil without one
}

const (
	kafkaPort         = "9092"
	defaultClients    = 4
	defaultLimit      = 1_048_588
	defaultUnanswered = 10 * time.Second
	dialTimeout       = 5 * time.Second
	maxClients        = 64
)

// Defaults returns the Config that the zero value stands for.
func Defaults() Config {
	cfg, _, _ := Config{}.withDefaults() // without the required fields
	return cfg
}

// withDefaults returns cfg completed, and reports all faults together.
func (cfg Config) withDefaults() (Config, topicName, error) {
	var faults settings.Faults
	cfg.Brokers = slices.Clone(cfg.Brokers)
	faults.Need(len(cfg.Brokers) > 0, "Brokers", "none is given; name at least one address, such as kafka-1:9092")
	for i, address := range cfg.Brokers {
		full, err := withPort(address)
		faults.Need(err == nil, fmt.Sprintf("Brokers[%d]", i), "%q: %w", address, err)
		cfg.Brokers[i] = full
	}
	cfg.Logger = settings.Logger(cfg.Logger)
	settings.Default(&cfg.Topic, "{topic}")
	topic, err := parseTopic(cfg.Topic, cfg.InternalTopics)
	faults.Add("Topic", err)
	if cfg.Format != nil {
		cfg.records, err = cfg.Format.Bind(format.Kafka)
		faults.Add("Format", err)
	}
	settings.Default(&cfg.ClientID, "outbox")
	settings.Default(&cfg.Compression, "none")
	_, err = codec(cfg.Compression)
	faults.Add("Compression", err)
	if cfg.SASL != nil {
		cfg.mechanism, err = cfg.SASL.mechanism()
		faults.Add("SASL", err)
	}
	faults.Need(cfg.Partitions >= 0 && cfg.ReplicationFactor >= 0, "Partitions",
		"partitions %d and replication factor %d must not be negative; 0 leaves them to the cluster", cfg.Partitions, cfg.ReplicationFactor)
	faults.Need(cfg.CreateTopics || cfg.Partitions == 0 && cfg.ReplicationFactor == 0, "Partitions",
		"partitions and replication factor are for topics that are created: set CreateTopics, or leave them out")
	settings.Within(&faults, "Clients", &cfg.Clients, defaultClients, 1, maxClients)
	settings.Within(&faults, "MaxRecordBytes", &cfg.MaxRecordBytes, defaultLimit, smallestLimit, largestLimit)
	settings.Positive(&faults, "Unanswered", &cfg.Unanswered, defaultUnanswered)
	if cfg.Dial == nil {
		cfg.Dial = (&net.Dialer{Timeout: dialTimeout}).DialContext
	}
	if err := faults.Err(); err != nil {
		return cfg, topic, fmt.Errorf("kafka: %w", err)
	}
	return cfg, topic, nil
}

func withPort(address string) (string, error) {
	if strings.Contains(address, "://") {
		return "", errors.New("an address is host:port, without a scheme")
	}
	host, port, err := net.SplitHostPort(address)
	if bare := strings.Trim(address, "[]"); net.ParseIP(bare) != nil || err != nil && !strings.Contains(address, ":") {
		host, port, err = bare, kafkaPort, nil
	}
	if err != nil {
		return "", fmt.Errorf("an address is host:port: %w", err)
	}
	if host == "" {
		return "", errors.New("an address is host:port, and the host is missing")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", errors.New("an address is host:port, and this is no port")
	}
	return net.JoinHostPort(host, port), nil
}

func codec(name string) (kgo.CompressionCodec, error) {
	switch name {
	case "none":
		return kgo.NoCompression(), nil
	case "gzip":
		return kgo.GzipCompression(), nil
	case "snappy":
		return kgo.SnappyCompression(), nil
	case "lz4":
		return kgo.Lz4Compression(), nil
	case "zstd":
		return kgo.ZstdCompression(), nil
	}
	return kgo.CompressionCodec{}, fmt.Errorf("compression %q: use none, gzip, snappy, lz4 or zstd", name)
}
