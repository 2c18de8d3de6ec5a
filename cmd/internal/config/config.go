// Package config reads the configuration of the relay daemon.
//
// There are four layers, each over the one before: defaults, a YAML file,
// OUTBOX_* environment variables, and overrides that stem from flags. [Load]
// reports every fault of all layers together, each with its place.
//
// A setting has one path, such as database.url or
// destinations[0].delivery.batch. Its environment variable is the path in
// capitals with underscores: OUTBOX_DATABASE_URL,
// OUTBOX_DESTINATIONS_0_DELIVERY_BATCH.
//
// Text in the file may refer to variables as ${NAME} or, with a default for a
// variable that is unset or empty, as ${NAME:-default} or ${NAME:default}.
// They are replaced after the file is parsed, so a value can't change its
// structure. $${ stands for a literal ${.
//
// Next to each secret stands a setting with the suffix _file, which names a
// file that holds it. A secret set in a higher layer replaces one of a lower
// layer, whichever of the two forms they have.
package config

import "time"

// The tags of the fields below are the one description of the format: json has
// the key, jsonschema what it means; enum, min and max (inclusive) constrain
// it. Durations must be positive. defaults.go has the defaults.

// Config is the daemon's configuration.
type Config struct {
	Name         string        `json:"name" jsonschema:"Name of this relay. An instance that restarts under its name takes its leases back at once; no two may share one. Default: the host's name."`
	Database     Database      `json:"database" jsonschema:"The PostgreSQL database that holds the outbox."`
	Log          Log           `json:"log" jsonschema:"Logging, to standard error."`
	HTTP         HTTP          `json:"http" jsonschema:"Health and metrics."`
	Retention    Retention     `json:"retention" jsonschema:"Removal of messages that every destination has had."`
	Notify       *Notify       `json:"notify" jsonschema:"Who is told of messages that will not be tried again. None: nobody; metrics and log tell of them in any case."`
	Destinations []Destination `json:"destinations" jsonschema:"Where messages go. Each destination has a cursor of its own, so that one that is down holds up no other."`
}

// Database says where the outbox is.
type Database struct {
	URL     URL    `json:"url" jsonschema:"Connection URL or keyword/value string. Required."`
	URLFile string `json:"url_file" jsonschema:"File that holds the URL, instead of url."`
}

// Log configures logging.
type Log struct {
	Level  string `json:"level" enum:"debug,info,warn,error" jsonschema:"Least severe level that is written."`
	Format string `json:"format" enum:"auto,text,json" jsonschema:"auto is text on a terminal and JSON elsewhere."`
}

// HTTP configures the listener for health and metrics.
type HTTP struct {
	Listen string `json:"listen" jsonschema:"Address that serves /livez, /readyz and /metrics. Empty: none."`
}

// Retention configures the removal of delivered messages.
type Retention struct {
	Enabled  bool          `json:"enabled" jsonschema:"Whether this relay removes messages that every destination has had."`
	Interval time.Duration `json:"interval" jsonschema:"Pause between two attempts."`
}

// Destination is a broker with a filter, and how messages are delivered to it.
type Destination struct {
	Name           string          `json:"name" jsonschema:"Name of the destination's cursor: a new name begins with everything that is in the outbox. Required."`
	Topics         []string        `json:"topics" jsonschema:"Topics that are wanted, as patterns in which * stands for any text; a pattern after a ! excludes. Empty: all."`
	Filter         []Match         `json:"filter" jsonschema:"Conditions, of which a wanted message meets at least one. Empty: all."`
	Route          Route           `json:"route" jsonschema:"Topics and headers under which messages are sent."`
	Format         Format          `json:"format" jsonschema:"What messages are sent as. None: payloads as they are."`
	SchemaRegistry *SchemaRegistry `json:"schema_registry" jsonschema:"Puts payloads into the wire format of schema registries."`
	Rate           int             `json:"rate" min:"0" max:"1000000" jsonschema:"Messages a second that this relay sends at most. 0: no limit."`
	ShardGroups    int             `json:"shard_groups" min:"1" max:"64" jsonschema:"Number of parts that relays may share among them."`
	Source         *Source         `json:"source" jsonschema:"A table that exists already, to be read instead of the outbox. None: the outbox."`
	Replication    *Replication    `json:"replication" jsonschema:"Reads the write-ahead log instead of polling the outbox. None: the outbox is polled."`
	Broker         Broker          `json:"broker" jsonschema:"Exactly one broker."`
	Delivery       Delivery        `json:"delivery" jsonschema:"Retries and bounds."`
	Lease          time.Duration   `json:"lease" jsonschema:"How long after the last sign of life of a relay another one takes over."`
	Poll           Poll            `json:"poll" jsonschema:"How often the database is asked for new messages."`
	Notify         *Notify         `json:"notify" jsonschema:"Who is told of this destination's messages, instead of what stands at the top level."`
	DrainTimeout   time.Duration   `json:"drain_timeout" jsonschema:"How long the relay waits on shutdown for what is in flight."`
}

// Broker has exactly one member that is not nil.
type Broker struct {
	Kafka  *Kafka  `json:"kafka" jsonschema:"Apache Kafka."`
	NATS   *NATS   `json:"nats" jsonschema:"NATS JetStream."`
	SQS    *SQS    `json:"sqs" jsonschema:"Amazon SQS."`
	SNS    *SNS    `json:"sns" jsonschema:"Amazon SNS."`
	PubSub *PubSub `json:"pubsub" jsonschema:"Google Cloud Pub/Sub."`
	Stdout *Stdout `json:"stdout" jsonschema:"JSON lines on standard output."`
	File   *File   `json:"file" jsonschema:"JSON lines in a file."`

	Webhook *Webhook `json:"http" jsonschema:"Webhooks, by the rules of Standard Webhooks."`
	GRPC    *GRPC    `json:"grpc" jsonschema:"A server of the gRPC service outbox.v1.Delivery."`

	Redis    *Redis    `json:"redis" jsonschema:"Redis streams."`
	RabbitMQ *RabbitMQ `json:"rabbitmq" jsonschema:"RabbitMQ, over AMQP 0.9.1."`
}

// Kafka configures a Kafka cluster.
type Kafka struct {
	Brokers           []string `json:"brokers" jsonschema:"Addresses (host:port) to begin with. Required."`
	Topic             string   `json:"topic" jsonschema:"Template of the topic, with the fields {topic}, {event_type} and {aggregate_type}."`
	InternalTopics    bool     `json:"internal_topics" jsonschema:"Whether messages may go to topics that begin with __, as the cluster's own do, or end with -cursor, as those of exactly-once destinations do. Otherwise such a message is refused."`
	ClientID          string   `json:"client_id" jsonschema:"Name of the client in the cluster's logs and quotas."`
	TLS               TLS      `json:"tls" jsonschema:"Transport security."`
	SASL              SASL     `json:"sasl" jsonschema:"Authentication; used when a username or oauth is given."`
	Compression       string   `json:"compression" enum:"none,gzip,snappy,lz4,zstd" jsonschema:"Compression of batches."`
	CreateTopics      bool     `json:"create_topics" jsonschema:"Whether missing topics are created."`
	Partitions        int      `json:"partitions" min:"1" max:"100000" jsonschema:"Partitions of created topics."`
	ReplicationFactor int      `json:"replication_factor" min:"-1" max:"32767" jsonschema:"Replicas of created topics; -1 leaves it to the cluster."`
	ExactlyOnce       bool     `json:"exactly_once" jsonschema:"Publish in transactions, so that consumers with isolation.level=read_committed see every message once."`
	TransactionalID   string   `json:"transactional_id" jsonschema:"What the transactional ids of an exactly-once destination begin with; no other destination of the cluster may have the same. Empty: outbox- and the destination's name."`
	CursorTopic       string   `json:"cursor_topic" jsonschema:"Compacted topic of one partition for the records of an exactly-once destination. Empty: the transactional id and -cursor."`
}

// TLS configures transport security.
type TLS struct {
	Enabled            bool   `json:"enabled" jsonschema:"Whether TLS is used."`
	CAFile             string `json:"ca_file" jsonschema:"PEM file of the certificate authorities to trust. Empty: those of the system."`
	CertFile           string `json:"cert_file" jsonschema:"PEM file of the client's certificate. It and key_file are read again for each connection, so they may be replaced."`
	KeyFile            string `json:"key_file" jsonschema:"PEM file of the client's key."`
	ServerName         string `json:"server_name" jsonschema:"Name that the server's certificate must have. Empty: the host that is connected to."`
	InsecureSkipVerify bool   `json:"insecure_skip_verify" jsonschema:"Accept any certificate. For tests alone."`
}

// NATS configures a NATS server with JetStream.
type NATS struct {
	URL             URL      `json:"url" jsonschema:"Server URL, or several separated by commas."`
	URLFile         string   `json:"url_file" jsonschema:"File that holds the URL, instead of url."`
	Stream          string   `json:"stream" jsonschema:"The only stream that may take the messages. Empty: whichever has the subject."`
	Subject         string   `json:"subject" jsonschema:"Template of the subject, with the fields {topic}, {key}, {event_type}, {aggregate_type} and {aggregate_id}."`
	Recall          int      `json:"recall" min:"0" max:"10000000" jsonschema:"How many of the stream's last messages are read on connecting, so that none of them is stored twice, however long ago it was. Needs stream. 0: only the stream's own duplicate window."`
	CreateStream    bool     `json:"create_stream" jsonschema:"Whether the stream is created when it is missing."`
	StreamSubjects  []string `json:"stream_subjects" jsonschema:"Subjects of a created stream. Empty: the template with everything from its first field on replaced by >."`
	Replicas        int      `json:"replicas" min:"1" max:"5" jsonschema:"Replicas of a created stream."`
	CredentialsFile string   `json:"credentials_file" jsonschema:"File with a user's JWT and seed."`
	Token           Secret   `json:"token" jsonschema:"Token to authenticate with."`
	TokenFile       string   `json:"token_file" jsonschema:"File that holds the token, instead of token."`
	User            string   `json:"user" jsonschema:"User to authenticate as."`
	Password        Secret   `json:"password" jsonschema:"The user's password."`
	PasswordFile    string   `json:"password_file" jsonschema:"File that holds the password, instead of password."`
	TLS             TLS      `json:"tls" jsonschema:"Transport security."`
}

// Stdout has no settings.
type Stdout struct{}

// File configures a file of JSON lines.
type File struct {
	Path string `json:"path" jsonschema:"The file; it is created if it is missing. Required."`
}

// Delivery configures retries and bounds.
type Delivery struct {
	MaxAttempts      int           `json:"max_attempts" min:"1" max:"1000000" jsonschema:"Failures of a message before on_exhausted applies. Outages don't count."`
	OnExhausted      string        `json:"on_exhausted" enum:"dead_letter,block,stop" jsonschema:"dead_letter: set the message aside and go on with its key. block: keep the key held. stop: stop the relay."`
	Backoff          Backoff       `json:"backoff" jsonschema:"Pause before a failed message is tried again; it doubles each time."`
	Outage           Outage        `json:"outage" jsonschema:"What counts as an outage of the broker, and how often it is asked again."`
	HoldAfter        time.Duration `json:"hold_after" jsonschema:"A key that must pause for longer is held in the database, so that other keys go on."`
	MaxInFlight      int           `json:"max_in_flight" min:"2" max:"10000000" jsonschema:"Messages that are read and not settled yet, at most. At least twice batch."`
	MaxInFlightBytes Size          `json:"max_in_flight_bytes" min:"1024" jsonschema:"Their size together, at most. One batch may exceed it."`
	Batch            int           `json:"batch" min:"1" max:"1000000" jsonschema:"Messages in one call to the broker, at most. Half as many are read at once."`
}

// Backoff is a pause that doubles from Initial to Max.
type Backoff struct {
	Initial time.Duration `json:"initial" jsonschema:"The first pause."`
	Max     time.Duration `json:"max" jsonschema:"The longest pause."`
}

// Outage is the circuit breaker of a destination.
type Outage struct {
	Initial time.Duration `json:"initial" jsonschema:"Pause before a destination that does not answer is asked again, with one call; it doubles each time."`
	Max     time.Duration `json:"max" jsonschema:"The longest pause."`
	After   int           `json:"after" min:"0" max:"10000" jsonschema:"Failures of this many different messages, with none accepted in between, count as an outage as well, and spend no attempts. 0: only a broker that does not answer does."`
}

// Poll is the pause between two reads.
type Poll struct {
	Busy time.Duration `json:"busy" jsonschema:"Pause while messages keep coming."`
	Idle time.Duration `json:"idle" jsonschema:"Pause when there have been none for a while."`
}
