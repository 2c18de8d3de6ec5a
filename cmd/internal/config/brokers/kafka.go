package brokers

import (
	"github.com/pgoutbox/outbox/broker/kafka"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/findings"
	"github.com/pgoutbox/outbox/cmd/internal/config/transport"
	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/relay"
)

// Kafka configures a Kafka cluster.
type Kafka struct {
	Brokers           []string      `json:"brokers" jsonschema:"Addresses (host:port, or host for port 9092) to begin with. Required."`
	Topic             string        `json:"topic" jsonschema:"Template of the topic, with the fields {topic}, {event_type} and {aggregate_type}."`
	InternalTopics    bool          `json:"internal_topics" jsonschema:"Whether messages may go to topics that begin with __, as the cluster's own do, or end with -cursor, as those of exactly-once destinations do. Otherwise such a message is refused."`
	ClientID          string        `json:"client_id" jsonschema:"Name of the client in the cluster's logs and quotas."`
	TLS               transport.TLS `json:"tls" jsonschema:"Transport security."`
	SASL              SASL          `json:"sasl" jsonschema:"Authentication; used when a username or oauth is given."`
	Compression       string        `json:"compression" enum:"none,gzip,snappy,lz4,zstd" jsonschema:"Compression of batches."`
	CreateTopics      bool          `json:"create_topics" jsonschema:"Whether missing topics are created."`
	Partitions        int           `json:"partitions" min:"1" max:"100000" jsonschema:"Partitions of created topics."`
	ReplicationFactor int           `json:"replication_factor" min:"-1" max:"32767" jsonschema:"Replicas of created topics; -1 leaves it to the cluster."`
	ExactlyOnce       bool          `json:"exactly_once" jsonschema:"Publish in transactions, so that consumers with isolation.level=read_committed see every message once."`
	TransactionalID   string        `json:"transactional_id" field:"ID" jsonschema:"What the transactional ids of an exactly-once destination begin with; no other destination of the cluster may have the same. Empty: outbox- and the destination's name."`
	CursorTopic       string        `json:"cursor_topic" jsonschema:"Compacted topic of one partition for the records of an exactly-once destination. Empty: the transactional id and -cursor."`
}

// SetDefaults gives the defaults of the adapter.
func (k *Kafka) SetDefaults() {
	fields.Adopt(k, kafka.Defaults())
	k.SASL.Mechanism, k.Partitions, k.ReplicationFactor = "scram-sha-512", 1, -1
}

func (k *Kafka) shares() bool { return !k.ExactlyOnce }

func (k *Kafka) open(o Opening) (relay.Broker, error) {
	var faults settings.Faults
	cfg := kafka.Config{Clients: min(4*max(o.Groups, 1), 64)} // a relay of each shard group makes four calls at once
	o.configure(&cfg, *k, k.TLS, &faults)
	cfg.SASL = k.SASL.config(&faults, o)
	if !k.CreateTopics {
		cfg.Partitions = 0
	}
	if !k.CreateTopics || k.ReplicationFactor < 0 {
		cfg.ReplicationFactor = 0 // leaves it to the cluster, as -1 does in the file
	}
	if !k.ExactlyOnce {
		broker, err := kafka.New(cfg)
		return withFaults(broker, err, &faults)
	}
	exactly := kafka.ExactlyOnceConfig{ID: k.TransactionalID, Group: o.Group, CursorTopic: k.CursorTopic}
	settings.Default(&exactly.ID, "outbox-"+o.Name)
	broker, err := kafka.NewExactlyOnce(cfg, exactly)
	return withFaults(broker, err, &faults)
}

// Advise warns about settings that have no effect or show what should be hidden.
func (k *Kafka) Advise(r *findings.Report, path string) {
	r.Advise(k.ExactlyOnce || k.TransactionalID == "", path+".transactional_id", "has no effect, since exactly_once is false")
	r.Advise(k.ExactlyOnce || k.CursorTopic == "", path+".cursor_topic", "has no effect, since exactly_once is false")
	defaults := fields.Default[Kafka]()
	r.Advise(k.CreateTopics || k.Partitions == defaults.Partitions, path+".partitions", "has no effect, since create_topics is false")
	r.Advise(k.CreateTopics || k.ReplicationFactor == defaults.ReplicationFactor, path+".replication_factor",
		"has no effect, since create_topics is false")
	mechanism := path + ".sasl.mechanism"
	r.Advise(k.TLS.Enabled || k.SASL.Mechanism != "plain" || k.SASL.User == "", mechanism,
		"plain sends the password unencrypted, since tls.enabled is false")
	r.Advise(k.TLS.Enabled || k.SASL.Mechanism != oauthBearer, mechanism,
		"oauthbearer sends tokens unencrypted, since tls.enabled is false")
}
