package replication

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/wal"
	"github.com/pgoutbox/outbox/relay/polling"
	"github.com/pgoutbox/outbox/schema"
)

// Source reads a destination's messages from the write-ahead log, in the order of commits: rows inserted into
// outbox.messages, and logical messages written by outbox.Writer.Emit.
//
// Acquire may be called again after a session was closed. There can't be two sessions at once.
type Source struct {
	conn        *pgx.ConnConfig
	destination string
	cfg         Config
	table       *polling.Snapshot
}

var _ relay.Source = (*Source)(nil)

// New returns a source for a destination. It reports all faults of cfg together and doesn't connect yet. conn is
// copied. It must lead to the primary itself, as a role with the attribute REPLICATION and the rights that
// schema.Grants lists for a relay.
func New(conn *pgx.ConnConfig, destination string, cfg Config) (*Source, error) {
	cfg, err := cfg.withDefaults(conn, destination)
	if err != nil {
		return nil, err
	}
	table, err := polling.NewSnapshot(conn, destination, cfg.Table)
	if err != nil {
		return nil, err
	}
	return &Source{conn: conn.Copy(), destination: destination, cfg: cfg, table: table}, nil
}

// Report writes the relay's state to the cursor.
func (s *Source) Report(state relay.State, err error) { s.table.Report(state, err) }

// Traits are those of the table, which has the holds.
func (s *Source) Traits() relay.Traits { return s.table.Traits() }

func (s *Source) server() wal.Server { return wal.Server{Conn: s.conn, Name: s.destination} }

// preflight refuses what waiting doesn't cure.
func (s *Source) preflight(ctx context.Context, conn *pgx.Conn) error {
	if err := wal.RefuseLevel(ctx, conn); err != nil {
		return err
	}
	if !s.cfg.Emitted {
		return nil
	}
	revoke, err := schema.EmitsOpen(ctx, conn)
	if err != nil {
		return err
	}
	if revoke != "" {
		s.cfg.Table.Logger.Warn("every role of this database can publish: emitted messages are delivered, and PUBLIC "+
			"may execute pg_logical_emit_message",
			"destination", s.destination, "next", "a superuser runs, in this database: "+
				revoke+" and what outbox migrate grants --emitter prints for those who are to")
	}
	return nil
}
