package daemon

import (
	"log/slog"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/mapped"
	"github.com/pgoutbox/outbox/relay/polling"
	"github.com/pgoutbox/outbox/relay/registration"
	"github.com/pgoutbox/outbox/relay/replication"
	"github.com/pgoutbox/outbox/schema"
)

// accountable is a source that knows what it holds, where the table need not show it.
type accountable interface {
	Account() mapping.Account
}

// tableOwner is a relay's name at a destination with a table of its own.
func tableOwner(relay, destination string) string { return relay + "/" + destination }

// readsOutbox reports whether any destination reads the outbox, whose schema has to be installed then.
func readsOutbox(cfg config.Config) bool {
	return slices.ContainsFunc(cfg.Destinations, func(d config.Destination) bool { return d.Source == nil })
}

// OpenSource returns what a shard group of a destination reads. name is the relay's, and registration keeps it where
// the outbox is read; it is nil elsewhere.
func OpenSource(conn *pgx.ConnConfig, name string, registration *registration.Registration, c config.Destination, group int,
	logger *slog.Logger) (relay.Source, error) {
	if c.Source == nil {
		table := polling.SnapshotConfig{
			Registration: registration,
			Groups:       c.ShardGroups,
			Group:        group,
			Lease:        c.Lease,
			PollBusy:     c.Poll.Busy,
			PollIdle:     c.Poll.Idle,
			PageBytes:    c.PageBytes(),
			LagObjective: c.Objective(),
			Settings:     settingsOf(c),
			Logger:       logger,
			FirstEmpty:   true, // its turn to catch up ends
		}
		if r := c.Replication; r != nil {
			cfg := r.Library()
			cfg.Table = table
			return replication.New(conn, c.Name, cfg)
		}
		source, err := polling.NewSnapshot(conn, c.Name, table)
		if err != nil {
			return nil, err
		}
		return replication.Guard(conn, c.Name, source), nil
	}
	strategy, m, cfg := c.Library(group)
	cfg.Name, cfg.Settings, cfg.Logger = tableOwner(name, c.Name), settingsOf(c), logger
	if strategy == mapping.Replication {
		cfg.Slot, cfg.Publication = TableLog(conn, c)
	}
	return mapped.Open(strategy, conn, m, cfg)
}

// settingsOf is what people are told of a destination's configuration.
func settingsOf(c config.Destination) admin.Settings {
	s := admin.Settings{Rate: c.Engine().Rate}
	if c.Source == nil {
		selects := c.Selection()
		s.Selects = &selects
		if rules, err := c.Table().Parse(); err == nil {
			s.Drops = rules.CanDrop()
		}
	}
	return s
}

// TableLog returns the slot and the publication by which the destination reads a table of its own in a database.
func TableLog(conn *pgx.ConnConfig, c config.Destination) (slot, publication string) {
	names := fields.Default[config.Replication]()
	if c.Replication != nil {
		names = *c.Replication
	}
	if names.Slot == "" {
		names.Slot = schema.SlotName(replication.Database(conn), c.Name)
	}
	return names.Slot, names.Publication
}

// newPurge returns what deletes the delivered rows of a destination's table.
func newPurge(conn *pgx.ConnConfig, c config.Destination, logger *slog.Logger) (*mapped.Purge, error) {
	_, m := c.Source.Resolve()
	cfg := c.Source.Purge.Config()
	cfg.Logger = logger
	return mapped.NewPurge(conn, m, cfg)
}
