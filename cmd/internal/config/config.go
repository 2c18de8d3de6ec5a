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

import (
	"time"

	"github.com/pgoutbox/outbox/relay"
)

// The tags of the fields below are the one description of the format: json has
// the key, jsonschema what it means; enum, min and max (inclusive) constrain
// it. Durations must be positive. defaults.go has the defaults.

// Config is the daemon's configuration.
type Config struct {
	Name         string        `json:"name" jsonschema:"Name of this relay. An instance that restarts under its name takes its leases back at once; no two may share one. Default: the host's name."`
	Database     Database      `json:"database" jsonschema:"The PostgreSQL database that holds the outbox."`
	Log          Log           `json:"log" jsonschema:"Logging, to standard error."`
	HTTP         HTTP          `json:"http" jsonschema:"Health, metrics and the API of operators."`
	Retention    Retention     `json:"retention" jsonschema:"Removal of messages that every destination has had."`
	Notify       *Notify       `json:"notify" jsonschema:"Who is told of messages that will not be tried again. None: nobody; metrics and log tell of them in any case."`
	Telemetry    Telemetry     `json:"telemetry" jsonschema:"Traces of what is sent. Spans are made of messages whose trace is sampled."`
	Destinations []Destination `json:"destinations" jsonschema:"Where messages go. Each destination has a cursor of its own, so that one that is down holds up no other."`
	Databases    []Entry       `json:"databases" jsonschema:"Several databases, in place of one. Retention, notify and destinations at the top level are their defaults."`
	DatabasesDir string        `json:"databases_dir" jsonschema:"Folder of files, *.yaml, that are a database each; its name is the file's unless the file has one. Relative to this file."`
}

// Database says where the outbox is.
type Database struct {
	URL     URL    `json:"url" jsonschema:"Connection URL or keyword/value string. Required."`
	URLFile string `json:"url_file" jsonschema:"File that holds the URL, instead of url."`

	ViewerURL     URL    `json:"viewer_url" jsonschema:"Connection of a database role that can't read payloads, such as migrate grants --viewer makes; viewers read by it. Empty: url."`
	ViewerURLFile string `json:"viewer_url_file" jsonschema:"File that holds the URL, instead of viewer_url."`
}

// Log configures logging.
type Log struct {
	Level  string `json:"level" enum:"debug,info,warn,error" jsonschema:"Least severe level that is written."`
	Format string `json:"format" enum:"auto,text,json" jsonschema:"auto is text on a terminal and JSON elsewhere."`
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
	Rate           int             `json:"rate" min:"0" max:"1000000" jsonschema:"Messages a second that are sent at most; each shard group has an equal part. 0: no limit."`
	ShardGroups    int             `json:"shard_groups" field:"Groups" min:"1" max:"64" jsonschema:"Number of parts that relays may share among them."`
	Source         *Source         `json:"source" jsonschema:"A table that exists already, to be read instead of the outbox. None: the outbox."`
	Replication    *Replication    `json:"replication" jsonschema:"Reads the write-ahead log instead of polling the outbox. None: the outbox is polled."`
	Broker         Broker          `json:"broker" jsonschema:"Exactly one broker."`
	Delivery       Delivery        `json:"delivery" jsonschema:"Retries and bounds."`
	Lease          time.Duration   `json:"lease" jsonschema:"How long after the last sign of life of a relay another one takes over."`
	LagObjective   time.Duration   `json:"lag_objective" min:"0" jsonschema:"How long a message may wait before the verdict is that the destination lags. 0: as long as it likes."`
	Poll           Poll            `json:"poll" jsonschema:"How often the database is asked for new messages."`
	Notify         *Notify         `json:"notify" jsonschema:"Who is told of this destination's messages, instead of what stands at the top level."`
	DrainTimeout   time.Duration   `json:"drain_timeout" jsonschema:"How long the relay waits on shutdown for what is in flight."`
}

// Delivery configures retries and bounds.
type Delivery struct {
	MaxAttempts      int           `json:"max_attempts" min:"1" max:"1000000" jsonschema:"Failures of a message before on_exhausted applies. Outages don't count. 40 for http and grpc."`
	OnExhausted      string        `json:"on_exhausted" enum:"dead_letter,block,stop" jsonschema:"dead_letter: set the message aside and go on with its key. block: keep the key held. stop: stop the relay."`
	Backoff          Backoff       `json:"backoff" jsonschema:"Pause before a failed message is tried again; it doubles each time. For http and grpc the longest is 5m."`
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
	After   int           `json:"after" min:"0" max:"10000" jsonschema:"Failures of this many different messages, with none accepted in between, count as an outage as well, and spend no attempts. Answers about a message (4xx of HTTP) are not counted. 0: only a broker that does not answer does. 5 for http and grpc."`
}

// Poll is the pause between two reads.
type Poll struct {
	Busy time.Duration `json:"busy" jsonschema:"Pause while messages keep coming."`
	Idle time.Duration `json:"idle" jsonschema:"Longest pause where writers can not notify the relay."`
}

// Engine returns what the destination configures of the relay's engine.
func (d Destination) Engine() relay.Config {
	c := d.Delivery
	return relay.Config{
		Name:             d.Name,
		Batch:            c.Batch,
		MaxInFlight:      c.MaxInFlight,
		MaxInFlightBytes: int(c.MaxInFlightBytes),
		MaxAttempts:      c.MaxAttempts,
		OnExhausted:      relay.Policy(c.OnExhausted),
		Backoff:          relay.Backoff{Initial: c.Backoff.Initial, Max: c.Backoff.Max},
		Outage:           relay.Backoff{Initial: c.Outage.Initial, Max: c.Outage.Max},
		HoldAfter:        c.HoldAfter,
		Rate:             float64(d.Rate) / float64(max(d.ShardGroups, 1)),
		DrainTimeout:     d.DrainTimeout,
	}
}
