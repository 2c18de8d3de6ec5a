package config

import (
	"time"

	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	records "github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/mapped"
	"github.com/pgoutbox/outbox/route"
)

// Engine returns what the destination configures of the relay's engine.
func (d Destination) Engine() relay.Config {
	cfg := relay.Config{Name: d.Name, Rate: float64(d.Rate) / float64(max(d.ShardGroups, 1)), DrainTimeout: d.DrainTimeout}
	fields.Assign(&cfg, d.Delivery)
	return cfg
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
	var f route.Filter
	fields.Assign(&f, struct {
		Topics []string
		Any    []Match
	}{d.Topics, d.Filter})
	return f
}

// Table returns the rules that give messages their topics and headers.
func (d Destination) Table() route.Table {
	var t route.Table
	fields.Assign(&t, d.Route)
	if t.Default == "" && d.Format.Debezium != nil {
		t.Default = records.DebeziumTopic
	}
	return t
}
