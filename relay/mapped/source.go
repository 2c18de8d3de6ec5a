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
)

// Source reads an existing table by one of the strategies of package mapping.
type Source struct {
	strategy string
	conn     *pgx.ConnConfig
	mapping  mapping.Mapping
	cfg      Config
	owner    string
	active   atomic.Bool

	receipts receipts
	states   *states.Writer // nil without the name of a destination
	known    account
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
		t.Receipt = s.receipts.accepted
	}
	t.ShowsFailures = d.How != "" && (f.Attempts != "" || f.Error != "" || f.LastAttempt != "" || f.NextAttempt != "" || d.AckAt != "")
	return t
}

// Acquire waits until the session may begin: for the table's lock (mapping.Advisory), for the offsets of the group
// (mapping.XMin, mapping.Serial), for the slot (mapping.Replication), or for another relay of the same name
// (mapping.Lease). mapping.SkipLocked waits for nothing. Errors that waiting can't cure are marked by outbox.Permanent:
// a mapping that doesn't fit the table, a standby, a pooler in transaction mode where the strategy needs a server
// session of its own, whatever wal.OpenTail refuses, and relay.ErrActive.
func (s *Source) Acquire(ctx context.Context) (_ relay.Session, err error) {
	if !s.active.CompareAndSwap(false, true) {
		return nil, dial.Permanent("the source of table %q is %w", s.mapping.Table, relay.ErrActive)
	}
	var storing, reading *pgx.Conn
	defer func() {
		if err == nil {
			return
		}
		dial.HangUp(storing)
		dial.HangUp(reading)
		s.active.Store(false)
		if ctx.Err() != nil {
			err = ctx.Err()
		}
	}()
	conns := []**pgx.Conn{&storing, &reading}
	if s.strategy == mapping.SkipLocked || s.strategy == mapping.Replication {
		conns = conns[:1]
	}
	t, pooled, err := s.open(ctx, conns...)
	if err != nil {
		return nil, err
	}
	x := &session{source: s, table: t, pooled: pooled, holds: newHolds(s.note), conn: storing, reading: reading}
	defer func() {
		if err == nil {
			s.known.begin(x.holds)
		}
	}()
	switch s.strategy {
	case mapping.SkipLocked:
		return newSkipLocked(x), nil
	case mapping.Advisory:
		return newAdvisory(ctx, x)
	case mapping.Lease:
		return newLease(ctx, x)
	case mapping.Replication:
		return newLog(ctx, x)
	}
	return newOffset(ctx, x)
}

// open resolves the mapping and opens a connection for each pointer of conns. pooled is ErrTransactionPooler if the
// server sessions are not ours.
func (s *Source) open(ctx context.Context, conns ...**pgx.Conn) (t *table, pooled, err error) {
	for _, c := range conns {
		if *c, err = s.connect(ctx, &pooled); err != nil {
			return nil, pooled, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, dial.PrepareWithin)
	defer cancel()
	if t, err = resolve(ctx, *conns[0], s.mapping, s.strategy); err == nil && pooled != nil {
		err = t.refuseSettings(ctx, *conns[0])
	}
	if err == nil {
		err = s.sole(ctx, *conns[0], t)
	}
	return t, pooled, err
}

// awaitLock takes an advisory lock for the session, and logs once if that takes a while. It asks repeatedly, because
// waiting in the server would hold up vacuum. Once the session has the lock, the server ends it when it is silent for
// as long as the lease.
func (s *Source) awaitLock(ctx context.Context, conn *pgx.Conn, lock, what string) error {
	ask := func(sql string, into any, args ...any) error {
		ctx, cancel := context.WithTimeout(ctx, dial.AnswerWithin)
		defer cancel()
		return conn.QueryRow(ctx, sql, args...).Scan(into)
	}
	if err := ask("SELECT set_config('idle_session_timeout', $1, false)", nil, s.silence()); err != nil {
		return fmt.Errorf("prepare the connection: %w", err)
	}
	every := min(100*time.Millisecond, s.cfg.Lease/3)
	for waited := false; ; waited = true {
		var got bool
		if err := ask("SELECT pg_try_advisory_lock("+lock+")", &got); err != nil {
			return fmt.Errorf("take the lock: %w", err)
		}
		if got {
			return nil
		}
		if !waited {
			s.cfg.Logger.Info("waiting: "+what, "relay", s.owner, "table", s.mapping.Table)
		}
		if err := dial.Pause(ctx, every); err != nil {
			return err
		}
	}
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

// fullOf says why nothing new is read if n messages are set aside; nil if there may be more.
func (s *Source) fullOf(n int) error {
	if n < s.cfg.MaxHolds {
		return nil
	}
	return fmt.Errorf("as many messages are set aside for later attempts as MaxHolds allows (%d): nothing new is read, of any key, "+
		"until some of them are delivered or dead", s.cfg.MaxHolds)
}
