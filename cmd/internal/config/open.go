package config

import (
	"errors"
	"io"

	"github.com/pgoutbox/outbox/broker/registry"
	"github.com/pgoutbox/outbox/cmd/internal/config/brokers"
	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/around"
)

// Opened is a destination's broker, with all that the configuration puts around it.
type Opened struct {
	relay.Broker

	// Coupled is not nil if the broker wants to see what its source reads and settles. It then belongs to one shard
	// group.
	Coupled brokers.Coupled

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

// Open opens the destination's broker. Faults have the names of fields, from the destination's on.
func (d Destination) Open(o brokers.Opening) (*Opened, error) {
	var faults settings.Faults
	var broker relay.Broker
	var closer io.Closer
	o.Name, o.Groups, o.Weight, o.Format = d.Name, d.ShardGroups, d.Weight, d.Format.Description()
	kind, field, err := d.Broker.Chosen()
	faults.Add("Broker", err)
	if err == nil {
		broker, closer, err = o.Pool.Open(kind, o)
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
	opened.Coupled, _ = broker.(brokers.Coupled)
	switch kind.(type) {
	case *brokers.SQS, *brokers.SNS, *brokers.PubSub, *brokers.Webhook, *brokers.GRPC:
		opened.Calls = 4
	}
	return opened, nil
}

// Surround puts around a broker what the destination asks for: routing and framing, the circuit breaker.
func (d Destination) Surround(broker relay.Broker) (relay.Broker, error) {
	var faults settings.Faults
	rules, err := d.Table().Parse()
	faults.Add("Route", err)
	var framer *registry.Framer
	if d.SchemaRegistry != nil {
		framer, err = d.SchemaRegistry.Open()
		faults.Add("SchemaRegistry", err)
	}
	if err := faults.Err(); err != nil || broker == nil {
		return nil, err
	}
	var steps []around.Step
	if !rules.Empty() {
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
