package config

import (
	"time"

	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
	"github.com/pgoutbox/outbox/relay/replication"
)

// Replication reads the write-ahead log. See docs/replication.md.
type Replication struct {
	Slot        string        `json:"slot" jsonschema:"Name of the replication slot. Slots are the server's. Empty: outbox_, the database and the destination, with a part of their hash where a character was replaced."`
	Publication string        `json:"publication" jsonschema:"Name of the publication of outbox.messages, which destinations share; with a source, of its table."`
	Failover    bool          `json:"failover" jsonschema:"Whether the slot is one that PostgreSQL 17 and later copy to standbys."`
	Emitted     bool          `json:"emitted" jsonschema:"Whether messages that Writer.Emit writes to the log without a row are delivered. Whoever may execute pg_logical_emit_message can then publish; by default that is every role."`
	CatchUp     scalar.Size   `json:"catch_up" jsonschema:"Distance to the log's end from which the table is read instead, until that is done, if inserts follow the lock on the row of their key. 0: never."`
	Heartbeat   time.Duration `json:"heartbeat" jsonschema:"Silence of the log after which the server is asked where it is, which keeps the slot moving."`
}

// SetDefaults gives the defaults of package replication, but no slot: its name is made from the destination.
func (r *Replication) SetDefaults() {
	fields.Adopt(r, replication.Defaults())
	r.Slot, r.Failover = "", true
}

// Library returns the library's configuration.
func (r *Replication) Library() replication.Config {
	cfg := replication.Config{WithoutFailover: !r.Failover}
	fields.Assign(&cfg, *r)
	return cfg
}
