package main

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/pgoutbox/outbox/admin"
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
		Emitted:         c.Replication.Emitted,
		Heartbeat:       c.Replication.Heartbeat,
	})
}

// tableLog names the slot and the publication of a destination with a table of its own.
func tableLog(c config.Destination) (slot, publication string) {
	names := config.Standard[config.Replication]()
	if c.Replication != nil {
		names = *c.Replication
	}
	if names.Slot == "" {
		names.Slot = replication.SlotName(c.Name)
	}
	return names.Slot, names.Publication
}

// writeSlots shows how destinations read the write-ahead log.
func writeSlots(w io.Writer, r *admin.Report) error {
	t := newTable(w, "DESTINATION", "READ BY", "SLOT", "POSITION", "WAL", "KEPT", "LOST")
	for _, d := range r.Destinations {
		s := d.Slot
		if s == nil {
			continue
		}
		by, lost := "the log", ""
		if s.Position == "" {
			by = "the table"
		}
		if !s.LostAt.IsZero() {
			lost = fmt.Sprintf("%s ago: %s", ago(r.At, s.LostAt), s.LostReason)
		}
		t.row(d.Name, by, s.Name, s.Position, s.Status, bytesText(s.Kept), lost)
	}
	return t.flush()
}
