package main

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/mapped"
	"github.com/pgoutbox/outbox/relay/polling"
	"github.com/pgoutbox/outbox/relay/replication"
)

// partitioned is a source that wants to know in which partitions the broker puts messages.
type partitioned interface {
	Broker(relay.Broker) relay.Broker
}

// readsOutbox reports whether any destination reads the outbox, whose schema has to be installed then.
func readsOutbox(cfg config.Config) bool {
	return slices.ContainsFunc(cfg.Destinations, func(d config.Destination) bool { return d.Source == nil })
}

// openSource returns what a destination reads.
func (d *daemon) openSource(c config.Destination, group int, logger *slog.Logger) (relay.Source, error) {
	page := max(int(c.Delivery.MaxInFlightBytes)/4, 1)
	if c.Replication != nil && c.Source == nil {
		return d.openReplication(c, page, logger)
	}
	if c.Source == nil {
		source, err := polling.NewSnapshot(d.conn, c.Name, polling.SnapshotConfig{
			Registration: d.registration,
			Groups:       c.ShardGroups,
			Group:        group,
			Lease:        c.Lease,
			PollBusy:     c.Poll.Busy,
			PollIdle:     c.Poll.Idle,
			PageBytes:    page,
			Logger:       logger,
		})
		if err != nil {
			return nil, err
		}
		return replication.Guard(d.conn, c.Name, source), nil
	}
	strategy, m := c.Source.Resolve()
	m.RawKey = c.RawKeys()
	cfg := mapped.Config{
		Name:      d.cfg.Name + "/" + c.Name,
		Groups:    c.ShardGroups,
		Group:     group,
		Lease:     c.Lease,
		PollBusy:  c.Poll.Busy,
		PollIdle:  c.Poll.Idle,
		PageBytes: page,
		Logger:    logger,
	}
	if strategy == mapping.Replication {
		cfg.Slot, cfg.Publication = tableLog(c)
	}
	return mapped.Open(strategy, d.conn, m, cfg)
}

// purge deletes delivered rows of the tables that ask for it, until ctx ends.
func (d *daemon) purge(ctx context.Context, c config.Destination) {
	_, m := c.Source.Resolve()
	p, err := mapped.NewPurge(d.conn, m, mapped.PurgeConfig{
		Keep: c.Source.Purge.Keep, Every: c.Source.Purge.Interval, Archive: c.Source.Purge.ArchiveTable, Logger: d.logger})
	if err == nil {
		err = p.Run(ctx)
	}
	if err != nil {
		d.logger.Error("delivered rows are not deleted", "destination", c.Name, "error", err)
	}
}

// noteTable passes on the state of a destination with a table of its own, which has no cursor to be asked
// for it.
func (d *daemon) noteTable(name string, state relay.State, err error) {
	v := admin.Verdict{State: admin.StateFlowing}
	switch state {
	case relay.StateWaiting:
		v = admin.Verdict{State: admin.StateIdle, Cause: "another relay reads the table"}
	case relay.StatePaused:
		v.State = admin.StatePaused
	case relay.StateBroken:
		v.State = admin.StateBroken
	case relay.StateStopped:
		v.State = admin.StateStopped
	}
	if err != nil {
		v.Cause = err.Error()
	}
	d.watch.note(name, v, readsOutbox(d.cfg))
}

// note keeps the verdict on a destination with a table of its own. others means that there are destinations
// which have theirs from the outbox.
func (w *watch) note(name string, v admin.Verdict, others bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.tables == nil {
		w.tables = make(map[string]admin.Verdict)
	}
	w.tables[name] = v
	if !others {
		w.at, w.verdict = time.Now(), worst(w.tables)
	}
}

// worst is the verdict on all: the one that delivers least.
func worst(all map[string]admin.Verdict) admin.Verdict {
	list := slices.Collect(maps.Values(all))
	return slices.MinFunc(list, func(a, b admin.Verdict) int {
		rank := func(v admin.Verdict) int {
			if v.State.Delivers() {
				return 1
			}
			return 0
		}
		return cmp.Compare(rank(a), rank(b))
	})
}
