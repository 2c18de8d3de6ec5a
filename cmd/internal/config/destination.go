package config

import (
	"time"

	"github.com/pgoutbox/outbox/cmd/internal/config/brokers"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/findings"
	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/polling"
)

// Destination is a broker with a filter, and how messages are delivered to it.
type Destination struct {
	Name           string                  `json:"name" jsonschema:"Name of the destination's cursor: a new name begins with everything that is in the outbox. Required."`
	Topics         []string                `json:"topics" jsonschema:"Topics that are wanted, as patterns in which * stands for any text; a pattern after a ! excludes. Empty: all."`
	Filter         []Match                 `json:"filter" jsonschema:"Conditions, of which a wanted message meets at least one. Empty: all."`
	Route          Route                   `json:"route" jsonschema:"Topics and headers under which messages are sent."`
	Format         Format                  `json:"format" jsonschema:"What messages are sent as. None: payloads as they are."`
	SchemaRegistry *brokers.SchemaRegistry `json:"schema_registry" jsonschema:"Puts payloads into the wire format of schema registries."`
	Rate           int                     `json:"rate" min:"0" max:"1000000" jsonschema:"Messages a second that are sent at most; each shard group has an equal part. 0: no limit."`
	Weight         int                     `json:"weight" min:"1" max:"100" jsonschema:"Its share of a broker client that destinations of several databases use at once, beside the others' weights."`
	ShardGroups    int                     `json:"shard_groups" field:"Groups" min:"1" max:"64" jsonschema:"Number of parts that relays may share among them."`
	Source         *Source                 `json:"source" jsonschema:"A table that exists already, to be read instead of the outbox. None: the outbox."`
	Replication    *Replication            `json:"replication" jsonschema:"Reads the write-ahead log instead of polling the outbox. None: the outbox is polled."`
	Broker         brokers.Broker          `json:"broker" jsonschema:"Exactly one broker."`
	Delivery       Delivery                `json:"delivery" jsonschema:"Retries and bounds."`
	Lease          time.Duration           `json:"lease" jsonschema:"How long after the last sign of life of a relay another one takes over."`
	LagObjective   time.Duration           `json:"lag_objective" min:"0" jsonschema:"How long a message may wait before the verdict is that the destination lags. 0: as long as it likes."`
	Poll           Poll                    `json:"poll" jsonschema:"How often the database is asked for new messages."`
	Notify         *Notify                 `json:"notify" jsonschema:"Who is told of this destination's messages, instead of what stands at the top level."`
	DrainTimeout   time.Duration           `json:"drain_timeout" jsonschema:"How long the relay waits on shutdown for what is in flight."`
}

// Delivery configures retries and bounds.
type Delivery struct {
	MaxAttempts      int           `json:"max_attempts" min:"1" max:"1000000" jsonschema:"Failures of a message before on_exhausted applies. Outages don't count. 40 for http and grpc."`
	OnExhausted      string        `json:"on_exhausted" enum:"dead_letter,block,stop" jsonschema:"dead_letter: set the message aside and go on with its key. block: keep the key held. stop: stop the relay."`
	Backoff          Backoff       `json:"backoff" jsonschema:"Pause before a failed message is tried again; it doubles each time. For http and grpc the longest is 5m."`
	Outage           Outage        `json:"outage" jsonschema:"What counts as an outage of the broker, and how often it is asked again."`
	HoldAfter        time.Duration `json:"hold_after" jsonschema:"A key that must pause for longer is held in the database, so that other keys go on."`
	MaxInFlight      int           `json:"max_in_flight" min:"2" max:"10000000" jsonschema:"Messages that are read and not settled yet, at most. At least twice batch."`
	MaxInFlightBytes scalar.Size   `json:"max_in_flight_bytes" min:"1024" jsonschema:"Their size together, at most. One batch may exceed it."`
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

// SetDefaults gives what a destination has unless told otherwise.
func (d *Destination) SetDefaults() {
	engine, table := relay.Defaults(), polling.Defaults()
	d.Weight = 1
	fields.Adopt(&d.Delivery, engine)
	d.DrainTimeout, d.ShardGroups, d.Lease, d.LagObjective = engine.DrainTimeout, table.Groups, table.Lease, table.LagObjective
	d.Poll = Poll{Busy: table.PollBusy, Idle: table.PollIdle}
}

// serviceDefaults sets the defaults for destinations that are services of the user's own, which answer an outage of
// theirs with an error for each message: about two hours of attempts, as webhooks usually have, and an outage as soon
// as several messages have failed and none was accepted.
func (d *Destination) serviceDefaults(r *findings.Report, path string) {
	if d.Broker.Webhook == nil && d.Broker.GRPC == nil {
		return
	}
	path += ".delivery."
	given := func(key string) bool { return r.Given(path + key) }
	if !given("max_attempts") {
		d.Delivery.MaxAttempts = 40
	}
	if !given("backoff.max") {
		d.Delivery.Backoff.Max = max(5*time.Minute, d.Delivery.Backoff.Initial)
	}
	if !given("outage.after") {
		d.Delivery.Outage.After = 5
	}
}
