package mapped

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/states"
	"github.com/pgoutbox/outbox/relay/internal/wal"
	"github.com/pgoutbox/outbox/relay/mapped/internal/marking"
	"github.com/pgoutbox/outbox/relay/mapped/internal/pending"
)

// Source reads an existing table by one of the strategies of package mapping.
type Source struct {
	strategy string
	conn     *pgx.ConnConfig
	mapping  mapping.Mapping
	cfg      Config
	owner    string
	active   atomic.Bool

	receipts marking.Receipts
	states   *states.Writer // nil without the name of a destination
	account  pending.Account
	unsent   *wal.Unsent // why the slot can't be read any more; sessions set it, one after the other
}

var _ relay.Source = (*Source)(nil)

// Open returns a source that reads the table of m by a strategy, such as mapping.SkipLocked. It reports all faults of m
// and cfg together, and doesn't connect yet.
func Open(strategy string, conn *pgx.ConnConfig, m mapping.Mapping, cfg Config) (*Source, error) {
	s := &Source{strategy: strategy}
	if err := s.init(conn, m, cfg); err != nil {
		return nil, err
	}
	if !slices.Contains(mapping.Strategies(), strategy) {
		return nil, fmt.Errorf("mapped: unknown strategy %q for a table: choose one of %q", strategy, mapping.Strategies())
	}
	if err := m.Suits(strategy); err != nil {
		return nil, fmt.Errorf("mapped: %w", err)
	}
	if strategy == mapping.Replication && (cfg.Slot == "" || cfg.Publication == "") {
		return nil, fmt.Errorf("mapped: table %q is read by the log, but the slot is %q and the publication %q: both must be named",
			m.Table, cfg.Slot, cfg.Publication)
	}
	return s, nil
}

func (s *Source) init(conn *pgx.ConnConfig, m mapping.Mapping, cfg Config) (err error) {
	if s.cfg, err = cfg.withDefaults(s.strategy, conn, m); err != nil {
		return err
	}
	if s.strategy != mapping.Replication {
		s.cfg.Slot, s.cfg.Publication = "", "" // no slot that it doesn't read is missing
	}
	s.conn, s.mapping, s.owner = conn.Copy(), m, cfg.Name
	if s.owner == "" {
		host, _ := os.Hostname() // only shown to people
		s.owner = fmt.Sprintf("%s/%d/%s", host, os.Getpid(), rand.Text()[:8])
	}
	if cfg.Destination != "" {
		s.states = states.NewTable(conn, s.owner, states.Table{
			Groups: s.cfg.Groups, Session: dial.ApplicationName("outbox relay " + s.owner),
			Strategy: s.strategy, Slot: s.cfg.Slot, Mapping: m,
			Account: func(ahead time.Duration) any { return s.Account().Shifted(ahead) },
		}, s.cfg.Logger)
	}
	return nil
}

// Report writes the relay's state to outbox.tables, where `outbox status` reads it.
func (s *Source) Report(state relay.State, err error) {
	if s.states != nil {
		s.states.Report(s.cursor(), state, err)
	}
}

func (s *Source) cursor() states.Cursor {
	return states.Cursor{Destination: s.cfg.Destination, Group: s.cfg.Group, LagObjective: s.cfg.LagObjective,
		Settings: states.Settings(s.cfg.Settings)}
}

// Traits depend on the mapping: whether the table has a column that records every failure, and one for partitions.
func (s *Source) Traits() (t relay.Traits) {
	f, d := &s.mapping.Failure, &s.mapping.Done
	if d.Partition != "" {
		t.Receipt = s.receipts.Accepted
	}
	t.ShowsFailures = d.How != "" && (f.Attempts != "" || f.Error != "" || f.LastAttempt != "" || f.NextAttempt != "" || d.AckAt != "")
	return t
}

// lasting returns a context for statements that the end of ctx must not interrupt: an interruption would close the
// connection and lose the outcomes that are still to be stored. Such a statement lasts no longer than the lease. By
// then a connection that hasn't answered is lost anyway; a half-open one never answers.
func (s *Source) lasting(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Lease)
}

// claiming is lasting for a statement that claims rows: no lease rests on it before it is answered. It may walk along
// many rows that are done, and would never be answered if each attempt ended with a short lease.
func (s *Source) claiming(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), max(s.cfg.Lease, dial.AnswerWithin))
}

// errHolds says why nothing new is read if n messages are set aside; nil if there may be more.
func (s *Source) errHolds(n int) error {
	if n < s.cfg.MaxHolds {
		return nil
	}
	return fmt.Errorf("as many messages are set aside for later attempts as MaxHolds allows (%d): nothing new is read, of any key, "+
		"until some of them are delivered or dead", s.cfg.MaxHolds)
}

// Account is what the source knows of its work: of what it holds, no more than its session does.
func (s *Source) Account() mapping.Account { return s.account.Now() }

// writeAccount has the account written, where operators look for it.
func (s *Source) writeAccount() {
	if s.states != nil {
		s.states.Again(s.cursor())
	}
}

// noteSettled notes that a settlement is stored.
func (s *Source) noteSettled(x *relay.Settlement) {
	if s.account.Settle(x) {
		s.writeAccount()
	}
}
