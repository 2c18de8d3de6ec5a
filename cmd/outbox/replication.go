package main

import (
	"log/slog"

	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/polling"
	"github.com/pgoutbox/outbox/relay/replication"
)

// openReplication returns a source that reads the write-ahead log.
func (d *daemon) openReplication(c config.Destination, page int, logger *slog.Logger) (relay.Source, error) {
	return replication.New(d.conn, c.Name, replication.Config{
		Table: polling.SnapshotConfig{
			Registration: d.registration,
			Lease:        c.Lease,
			PollBusy:     c.Poll.Busy,
			PollIdle:     c.Poll.Idle,
			PageBytes:    page,
			Logger:       logger,
		},
		Slot:            c.Replication.Slot,
		Publication:     c.Replication.Publication,
		WithoutFailover: !c.Replication.Failover,
		Heartbeat:       c.Replication.Heartbeat,
	})
}
