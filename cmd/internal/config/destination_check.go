package config

import (
	"io"
	"log/slog"
	"reflect"
	"strings"

	"github.com/pgoutbox/outbox/cmd/internal/config/brokers"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/findings"
	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/relay/polling"
)

func (d *Destination) check(r *findings.Report, path string, unopened bool) {
	r.Check(d.Name != "", path+".name", "not given; it names the destination's cursor")
	r.Check(d.Name == "" || namePattern.MatchString(d.Name), path+".name", "%q is no name; %s", d.Name, nameRule)
	for i, topic := range d.Topics {
		pattern := strings.TrimPrefix(topic, "!")
		r.Check(pattern != "" && len(pattern) <= maxPattern && !strings.ContainsAny(pattern, " \t\r\n!?[]{}\\"),
			fields.Element(path+".topics", i), "%q is not a pattern of topics such as orders.* or !orders.internal", topic)
	}

	if !r.Given(path + ".delivery.max_in_flight") {
		d.Delivery.MaxInFlight = max(d.Delivery.MaxInFlight, 2*d.Delivery.Batch)
	}
	d.serviceDefaults(r, path)
	if !r.Given(path + ".delivery.outage.max") {
		d.Delivery.Outage.Max = max(d.Delivery.Outage.Max, d.Delivery.Outage.Initial)
	}

	d.checkSource(r, path)
	d.checkReplication(r, path)
	d.checkExactlyOnce(r, path)
	d.checkRouting(r, path)
	d.checkPackages(r, path, unopened)
}

// maxExactlyOnce bounds what an exactly-once destination has in flight: each transaction names what isn't settled,
// in a record of at most 1 MB.
const maxExactlyOnce = 24_000

func (d *Destination) checkExactlyOnce(r *findings.Report, path string) {
	if k := d.Broker.Kafka; k == nil || !k.ExactlyOnce {
		return
	}
	r.Check(d.Source == nil, path+".broker.kafka.exactly_once",
		"not possible with a source of its own: no strategy for such a table notes everything that was delivered, "+
			"offsets neither, which stay before a message that waits; leave one of the two out")
	r.Check(d.Delivery.MaxInFlight <= maxExactlyOnce, path+".delivery.max_in_flight",
		"%d is too large with exactly_once; the most is %d", d.Delivery.MaxInFlight, maxExactlyOnce)
}

func (d *Destination) checkReplication(r *findings.Report, path string) {
	if d.Replication == nil {
		return
	}
	if d.Source != nil {
		strategy, _ := d.Source.Resolve()
		r.Check(strategy == logStrategy, path+".replication",
			"given together with source, whose strategy %s reads the table: to read that table by its log, give "+
				"source.strategy: replication", strategy)
		r.Check(*d.Replication == Replication{Slot: d.Replication.Slot, Publication: d.Replication.Publication,
			Failover: true, Heartbeat: fields.Default[Replication]().Heartbeat},
			path+".replication", "failover, emitted, catch_up and heartbeat have no effect together with source: the slot is "+
				"made by you, and of the log its table's rows are delivered alone")
	}
	r.Check(d.ShardGroups == 1, path+".shard_groups",
		"%d, but a replication slot can't be split: use one group, or leave out replication", d.ShardGroups)
}

// checkPackages reports what the packages have to say that a destination configures. Its broker is opened and closed,
// unless unopened: it has connected to nothing.
func (d *Destination) checkPackages(r *findings.Report, path string, unopened bool) {
	var faults settings.Faults
	faults.Add("Delivery", d.Engine().Check())
	if d.Source == nil {
		faults.Add("", polling.SnapshotConfig{Groups: d.ShardGroups, Lease: d.Lease, PollBusy: d.Poll.Busy, PollIdle: d.Poll.Idle}.Check())
	}
	if r := d.Replication; r != nil {
		faults.Add("Replication", r.Library().Check(d.Name))
	}
	if d.Source != nil {
		faults.Add("Source", d.sourceFaults())
	}
	if !unopened {
		opened, err := d.Open(brokers.Opening{Stdout: io.Discard, Logger: slog.New(slog.DiscardHandler)})
		faults.Add("", err)
		if err == nil {
			faults.Add("Broker", opened.Close())
		}
	}
	var found []findings.Fault
	for _, fault := range settings.List(faults.Err()) {
		at, unknown := fields.PathOf(reflect.TypeOf(d).Elem(), path, fault.Field)
		if r.Faulty(at) {
			continue // what the file says already is likely to be the cause
		}
		message := fault.Err.Error()
		if unknown != "" {
			message = unknown + ": " + message
		}
		found = append(found, findings.Fault{Path: at, Message: message})
	}
	for _, f := range found {
		r.Fault(r.OriginOf(f.Path), f.Path, "%s", f.Message)
	}
}
