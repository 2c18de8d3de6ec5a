package config

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"strings"

	"github.com/pgoutbox/outbox/broker/registry"
	records "github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/around"
)

// Broker has exactly one member that is not nil.
type Broker struct {
	Kafka  *Kafka  `json:"kafka" jsonschema:"Apache Kafka."`
	NATS   *NATS   `json:"nats" jsonschema:"NATS JetStream."`
	SQS    *SQS    `json:"sqs" jsonschema:"Amazon SQS."`
	SNS    *SNS    `json:"sns" jsonschema:"Amazon SNS."`
	PubSub *PubSub `json:"pubsub" jsonschema:"Google Cloud Pub/Sub."`
	Stdout *Stdout `json:"stdout" jsonschema:"JSON lines on standard output."`
	File   *File   `json:"file" jsonschema:"JSON lines in a file."`

	Archive *Archive `json:"archive" jsonschema:"An archive: compressed files of JSON lines in a directory."`

	Webhook *Webhook `json:"http" jsonschema:"Webhooks, by the rules of Standard Webhooks."`
	GRPC    *GRPC    `json:"grpc" jsonschema:"A server of the gRPC service outbox.v1.Delivery."`

	Redis    *Redis    `json:"redis" jsonschema:"Redis streams."`
	RabbitMQ *RabbitMQ `json:"rabbitmq" jsonschema:"RabbitMQ, over AMQP 0.9.1."`
}

// section is what the file says of one kind of broker. Defaults and checks are those of the adapter that it opens; a
// field that has another name there carries it in its tag field.
type section interface {
	// open makes the broker, or reports all faults of the section together, by the names of the adapter's fields. It
	// connects to nothing: a broker that is down is an outage of its destination, and no reason not to start.
	open(o Opening) (relay.Broker, error)
}

// Opening is what a broker gets beside its section.
type Opening struct {
	Stdout io.Writer
	Group  int // for a broker that each shard group has for itself
	Logger *slog.Logger
	Pool   *Pool // nil: the destination has a client of its own

	name   string // of the destination
	groups int
	format records.Format // nil: payloads as they are
}

// Opened is a destination's broker, with all that the configuration puts around it.
type Opened struct {
	relay.Broker

	// Coupled is not nil if the broker wants to see what its source reads and settles. It then belongs to one shard
	// group.
	Coupled Coupled

	// Calls is how many calls a relay has on their way: more than its default (0) where each message is a request of
	// its own, and the slowest one holds up its call.
	Calls int

	closer io.Closer
}

// Close gives up the destination's part in its client, and closes that if no other destination shares it.
func (o *Opened) Close() error { return o.closer.Close() }

// Unwrap returns the broker with what is around it.
func (o *Opened) Unwrap() relay.Broker { return o.Broker }

var _ relay.Wrapper = (*Opened)(nil)

// Coupled is the side of a broker that is coupled to a source.
type Coupled interface {
	Source(relay.Source) relay.Source
}

// chosen returns the only section that is there, and its field.
func (b Broker) chosen() (kind section, field string, err error) {
	var chosen []string
	for f, v := range reflect.ValueOf(b).Fields() {
		if !v.IsNil() {
			kind, field, chosen = v.Interface().(section), f.Name, append(chosen, key(f))
		}
	}
	switch len(chosen) {
	case 0:
		return nil, "", fmt.Errorf("none is given; name one of %s", strings.Join(keys(reflect.TypeOf(b)), ", "))
	case 1:
		return kind, field, nil
	}
	return nil, "", fmt.Errorf("%s are given; keep one, or make a destination of each", strings.Join(chosen, " and "))
}

// Kind is the name of the section that is there, "" if none is.
func (b Broker) Kind() string {
	for f, v := range reflect.ValueOf(b).Fields() {
		if !v.IsNil() {
			return key(f)
		}
	}
	return ""
}

// Open opens the destination's broker. Faults have the names of fields, from the destination's on.
func (d Destination) Open(o Opening) (*Opened, error) {
	var faults settings.Faults
	var broker relay.Broker
	var closer io.Closer
	o.name, o.groups, o.format = d.Name, d.ShardGroups, d.Format.Description()
	kind, field, err := d.Broker.chosen()
	faults.Add("Broker", err)
	if err == nil {
		broker, closer, err = o.Pool.open(kind, o)
		faults.Add("Broker."+field, err)
	}
	whole, err := d.Surround(broker)
	faults.Add("", err)
	if err := faults.Err(); err != nil {
		if broker != nil {
			err = errors.Join(err, closer.Close())
		}
		return nil, err
	}
	opened := &Opened{Broker: whole, closer: closer}
	opened.Coupled, _ = broker.(Coupled)
	switch kind.(type) {
	case *SQS, *SNS, *PubSub, *Webhook, *GRPC:
		opened.Calls = 4
	}
	return opened, nil
}

// made returns the broker that an adapter has made, or its faults and those that were found before.
func made(broker relay.Broker, err error, faults *settings.Faults) (relay.Broker, error) {
	faults.Add("", err)
	all := faults.Err()
	if all == nil {
		return broker, nil
	}
	if err == nil {
		all = errors.Join(all, broker.Close())
	}
	return nil, all
}

// Surround puts around a broker what the destination asks for: routing and framing, the circuit breaker.
func (d Destination) Surround(broker relay.Broker) (relay.Broker, error) {
	var faults settings.Faults
	rules, err := d.Table().Parse()
	faults.Add("Route", err)
	var framer *registry.Framer
	if d.SchemaRegistry != nil {
		framer, err = d.SchemaRegistry.open()
		faults.Add("SchemaRegistry", err)
	}
	if err := faults.Err(); err != nil || broker == nil {
		return nil, err
	}
	var steps []around.Step
	if !rules.Idle() {
		steps = append(steps, around.Routing(rules))
	}
	if framer != nil {
		steps = append(steps, framer.Frame) // behind routing, since subjects have the topic's name
	}
	if len(steps) > 0 {
		broker = around.Steps(broker, rules.Headers(), steps...)
	}
	if d.Delivery.Outage.After > 0 {
		broker = around.Breaker(broker, d.Delivery.Outage.After)
	}
	return broker, nil
}
