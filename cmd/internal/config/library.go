package config

import (
	"time"

	records "github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/mapped"
	"github.com/pgoutbox/outbox/route"
)

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

// Library returns the arguments that package mapped takes for a destination with a table of its own, in a shard group.
func (d *Destination) Library(group int) (strategy string, m mapping.Mapping, cfg mapped.Config) {
	strategy, m = d.Source.Resolve()
	m.RawKey = d.RawKeys()
	cfg = mapped.Config{
		Destination:  d.Name,
		Groups:       d.ShardGroups,
		Group:        group,
		LagObjective: d.Objective(),
		Lease:        d.Lease,
		PollBusy:     d.Poll.Busy,
		PollIdle:     d.Poll.Idle,
		PageBytes:    d.PageBytes(),
		MaxHolds:     d.Source.MaxHolds,
		Transactions: d.Source.Transactions,
		Notify:       d.Source.Notify,
	}
	return strategy, m, cfg
}

// Objective is LagObjective as the library has it, where 0 is the default and a negative one is none.
func (d *Destination) Objective() time.Duration {
	if d.LagObjective == 0 {
		return -1
	}
	return d.LagObjective
}

// PageBytes is how much is read at once.
func (d *Destination) PageBytes() int { return max(int(d.Delivery.MaxInFlightBytes)/4, 1) }

// RawKeys reports whether the broker's keys are bytes, so that a column of type bytea can be a key unchanged.
// Everywhere else keys are text, and formats write them into text.
func (d *Destination) RawKeys() bool {
	return (d.Broker.Kafka != nil || d.Broker.Redis != nil) && d.Format.Description() == nil
}

// Selection returns the filter for the destination's messages.
func (d Destination) Selection() route.Filter {
	f := route.Filter{Topics: d.Topics}
	for _, m := range d.Filter {
		f.Any = append(f.Any, route.Match(m))
	}
	return f
}

// Table returns the rules that give messages their topics and headers.
func (d Destination) Table() route.Table {
	t := route.Table{Default: d.Route.Default}
	if t.Default == "" && d.Format.Debezium != nil {
		t.Default = records.DebeziumTopic
	}
	for _, r := range d.Route.Rules {
		t.Rules = append(t.Rules, route.Rule{
			Match: route.Match{Topic: r.Topic, EventType: r.EventType, AggregateType: r.AggregateType, ContentType: r.ContentType,
				Header: r.Header, HeaderValue: r.HeaderValue},
			To: r.To, Drop: r.Drop})
	}
	for _, h := range d.Route.Headers {
		t.Headers = append(t.Headers, route.HeaderRule{Name: h.Name, Rename: h.Rename, Value: h.Value, Drop: h.Drop})
	}
	return t
}
