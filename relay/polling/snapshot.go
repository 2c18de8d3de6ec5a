package polling

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/cursors"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/lease"
	"github.com/pgoutbox/outbox/relay/internal/messages"
	"github.com/pgoutbox/outbox/relay/internal/states"
	"github.com/pgoutbox/outbox/schema"
)

// Snapshot is the default strategy: it reads what a new snapshot of the database sees and the cursor's snapshot
// doesn't. Every committed transaction becomes visible between exactly two snapshots, so none is lost or read twice,
// and an open transaction blocks no other.
//
// Order: the messages of a key come in the order in which their transactions locked that key's row, provided that the
// outbox row is inserted after that lock was taken. Messages of one window come by id, which was drawn under the lock;
// messages of different windows come in the order of their commits.
//
// Acquire may be called again after a session was closed. There can't be two sessions at once.
type Snapshot struct {
	conn        *pgx.ConnConfig
	destination string
	owner       string
	cfg         SnapshotConfig
	states      *states.Writer

	// minPage is the least number of messages that are read at once, unless they are large.
	minPage int

	active  atomic.Bool
	release func() // of the registration
}

// usualPage is how many messages are read at once. To begin a page costs the server as much as to read some 150
// messages, and a page looks at the index of up to two chunks more than it returns.
const usualPage = 4500

var (
	_ relay.Reporting = (*Snapshot)(nil)
	_ relay.Coupled   = (*snapshotSession)(nil)
)

// NewSnapshot returns a source for a destination. It reports all faults of cfg together and doesn't connect yet. conn
// is copied. It must lead to the primary, with sessions of its own (see the package comment), as a role with the rights
// that schema.Grants lists for a relay.
func NewSnapshot(conn *pgx.ConnConfig, destination string, cfg SnapshotConfig) (*Snapshot, error) {
	cfg, err := cfg.withDefaults(conn, destination)
	if err != nil {
		return nil, err
	}
	s := &Snapshot{conn: conn.Copy(), destination: destination, cfg: cfg, minPage: usualPage}
	if cfg.Registration != nil {
		s.owner, s.states = cfg.Registration.Name(), cfg.Registration.States()
	} else {
		host, _ := os.Hostname() // only shown to people
		s.owner = fmt.Sprintf("%s/%d/%s", host, os.Getpid(), rand.Text()[:8])
		s.states = states.New(conn, s.owner, cfg.Logger)
	}
	return s, nil
}

// Report writes the relay's state and its lag objective to the cursor, where `outbox status` reads them.
func (s *Snapshot) Report(state relay.State, err error) {
	s.states.Report(states.Cursor{Destination: s.destination, Group: s.cfg.Group, LagObjective: s.cfg.LagObjective,
		Settings: states.Settings(s.cfg.Settings)}, state, err)
}

// Active reports whether Acquire waits, or its session isn't closed yet.
func (s *Snapshot) Active() bool { return s.active.Load() }

// Acquire waits until this relay owns the shard group, and returns a session that continues where the last owner's
// stored position is. The first source of a destination creates its cursor, which has seen nothing, so everything in
// the outbox is delivered.
//
// If the destination has another number of shard groups than cfg, one of the new sources waits until all groups of the
// old number are free, delivers their rest up to a common point and replaces them. Its session covers all shards and
// then ends with relay.ErrLeaseLost. So stop the relays of the old number: until they have ended, the groups that are
// already free are not delivered.
//
// These errors are marked by outbox.Permanent, because waiting alone doesn't cure them: relay.ErrActive,
// cursors.ErrStandby, cursors.ErrForeign, ErrNamesake and the errors of schema.Check. Other errors are the
// connection's.
func (s *Snapshot) Acquire(ctx context.Context) (relay.Session, error) {
	if !s.active.CompareAndSwap(false, true) {
		return nil, dial.Permanent("the source of destination %q is %w", s.destination, relay.ErrActive)
	}
	session, err := s.register(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, err
	}
	return session, nil
}

func (s *Snapshot) register(ctx context.Context) (_ relay.Session, err error) {
	s.release = func() {}
	defer func() {
		if err != nil {
			s.released()
		}
	}()
	if r := s.cfg.Registration; r != nil {
		release, err := r.Use(s.destination, s.cfg.Group)
		if err != nil {
			return nil, err
		}
		s.release = release
	}
	return s.acquire(ctx)
}

// released allows the next session.
func (s *Snapshot) released() {
	s.release()
	s.active.Store(false)
}

func (s *Snapshot) acquire(ctx context.Context) (_ relay.Session, err error) {
	conn, err := connect(ctx, s.conn, s.owner)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			dial.HangUp(conn)
		}
	}()
	preparing, cancel := context.WithTimeout(ctx, dial.PrepareWithin)
	defer cancel()
	if err := s.prepare(preparing, conn); err != nil {
		return nil, err
	}
	if err := s.letGo(preparing, conn); err != nil {
		return nil, err
	}
	// Once the lease is taken, no round trip is left for this.
	for _, sql := range []string{schema.WithTableOf(s.destination, takeSQL), schema.WithTableOf(s.destination, lease.WriteCursorSQL)} {
		if _, err := conn.Prepare(preparing, sql, sql); err != nil {
			return nil, fmt.Errorf("prepare the lease: %w", err)
		}
	}
	writing := &lease.Link{Conn: conn}
	if writing.Server, err = cursors.Server(preparing, conn); err != nil {
		return nil, err
	}
	for {
		row, since, err := s.take(ctx, conn, s.cfg.Group, s.cfg.Groups)
		if errors.Is(err, errLayout) {
			session, err := s.regroup(ctx, writing)
			if session != nil || err != nil {
				return session, err
			}
			continue // another relay has replaced the cursors
		}
		if err != nil {
			return nil, err
		}
		return s.start(ctx, writing, row, since)
	}
}

// letGo makes the server end a transaction of this connection that is idle for as long as the lease lasts. If a relay
// froze, or was cut off, in the middle of a transaction, it would keep the cursor's row locked, and other relays from
// taking over, long after its lease has expired.
func (s *Snapshot) letGo(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, "SELECT set_config('idle_in_transaction_session_timeout', $1, false)",
		strconv.FormatInt(max(s.cfg.Lease.Milliseconds(), 1), 10))
	if err != nil {
		return fmt.Errorf("bound idle transactions: %w", err)
	}
	return nil
}

// connect opens a connection whose notifications are counted.
func connect(ctx context.Context, base *pgx.ConnConfig, name string) (*pgx.Conn, error) {
	cfg := base.Copy()
	hear(cfg)
	return lease.Connect(ctx, cfg, name)
}

// start begins a session with a lease that was just taken.
func (s *Snapshot) start(ctx context.Context, writing *lease.Link, row cursors.Row, since time.Time) (*snapshotSession, error) {
	session, err := s.session(ctx, writing, row, since, 0)
	if err != nil {
		return nil, err
	}
	session.reader, err = s.reader(ctx, writing, session.pool, row.Group, row.Groups)
	if err != nil {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), dial.HangUpTimeout)
		defer cancel()
		return nil, errors.Join(err, session.lease.Release(closing, session.position))
	}
	return session, nil
}

// session returns a session without a reader, whose windows are numbered from ordinals.
func (s *Snapshot) session(ctx context.Context, writing *lease.Link, row cursors.Row, since time.Time,
	ordinals uint64) (*snapshotSession, error) {
	cursor, err := newCursor(row.Position, ordinals)
	if err != nil {
		return nil, dial.Permanent("cursor of destination %q: %w", s.destination, err)
	}
	life, end := context.WithCancel(context.Background())
	session := &snapshotSession{
		life: life, end: end,
		source: s, group: row.Group, groups: row.Groups, pool: &messages.Pool{}, cursor: cursor,
		settled: make(chan struct{}, 1), alarm: newAlarm(),
	}
	session.lease = lease.Start(writing, s.destination, &row, s.cfg.Lease, since, session.position)
	if err := s.lookAgain(ctx, session.lease); err != nil {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), dial.HangUpTimeout)
		defer cancel()
		_ = session.lease.Release(closing, session.position) // it may be broken
		return nil, err
	}
	return session, nil
}

// lookAgain refuses what may have changed while this relay waited for the lease: a segment may have been detached, or
// the sequence set back. From here on, a detached segment makes every write fail. The lease is renewed meanwhile.
func (s *Snapshot) lookAgain(ctx context.Context, l *lease.Lease) error {
	ctx, cancel := context.WithTimeout(ctx, dial.AnswerWithin)
	defer cancel()
	err := l.Query(func(conn *pgx.Conn) error { return lease.Refused(schema.Intact(ctx, conn)) })
	if err != nil {
		return err
	}
	return l.Query(func(conn *pgx.Conn) error { return cursors.RefuseSequence(ctx, conn, s.destination) })
}

// reader connects a reader to the server that is written to: one address can lead to several servers, and the snapshots
// of a standby would lose messages.
func (s *Snapshot) reader(ctx context.Context, writing *lease.Link, pool *messages.Pool, group, groups int) (_ *reader, err error) {
	conn, err := connect(ctx, s.conn, s.owner)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			dial.HangUp(conn)
		}
	}()
	here, err := cursors.Server(ctx, conn)
	if err != nil {
		return nil, err
	}
	if here != writing.Server {
		return nil, errors.New("two connections have reached different servers: give the address of the primary alone, " +
			"or add target_session_attrs=read-write")
	}
	return newReader(ctx, conn, pool, s.destination, group, groups)
}

// prepare checks that the database is fit for use and creates the destination's cursor if there is none.
func (s *Snapshot) prepare(ctx context.Context, conn *pgx.Conn) error {
	if err := cursors.RefuseStandby(ctx, conn); err != nil {
		return err
	}
	if err := lease.Refused(schema.Check(ctx, conn)); err != nil {
		return err
	}
	rows, err := cursors.Rows(ctx, conn, s.destination)
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		if err := s.create(ctx, conn); err != nil {
			return fmt.Errorf("create the cursor: %w", err)
		}
	}
	for i := range rows {
		if err := cursors.RefuseForeign(&rows[i]); err != nil {
			return err
		}
	}
	strangers, err := cursors.ForeignRows(ctx, conn)
	if strangers {
		err = cursors.Foreign(s.destination, "there are messages of transactions that this cluster has not come to")
	}
	if err != nil {
		return err
	}
	return cursors.RefuseSequence(ctx, conn, s.destination)
}

// create creates the cursors of a destination once, even if several relays try.
func (s *Snapshot) create(ctx context.Context, conn *pgx.Conn) error {
	return lease.InTransaction(ctx, conn, func(tx pgx.Tx) error {
		if err := lockLayout(ctx, tx, s.destination); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, createCursorsSQL, s.destination, s.cfg.Groups)
		return err
	})
}

// lockLayout prevents other transactions from changing the set of cursors of a destination until tx ends.
func lockLayout(ctx context.Context, tx pgx.Tx, destination string) error {
	_, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtextextended('outbox.cursors ' || $1, 0))", destination)
	if err != nil {
		return fmt.Errorf("lock the cursors of the destination: %w", err)
	}
	return nil
}

const createCursorsSQL = `
INSERT INTO outbox.cursors (destination, shard_group, shard_groups, system_identifier)
SELECT $1, g, $2, (SELECT s.system_identifier FROM pg_control_system() s)
FROM generate_series(0, $2::integer - 1) g
WHERE NOT EXISTS (SELECT FROM outbox.cursors WHERE destination = $1)`

// takeSQL takes the lease if it is free or this relay's own. It raises the epoch, so the previous holder can write no
// more. It repeats the conditions that were checked before where they must hold.
const takeSQL = `
UPDATE outbox.cursors SET owner = $4, epoch = epoch + 1, lease = $5::bigint * interval '1 microsecond',
	lease_until = clock_timestamp() + $5::bigint * interval '1 microsecond'
WHERE destination = $1 AND shard_group = $2 AND shard_groups = $3
	AND (NOT (` + schema.LeasedSQL + `) OR owner = $4)
	AND system_identifier = (SELECT s.system_identifier FROM pg_control_system() s)
RETURNING epoch, prev::text, windows::text[], last_id, ` + schema.AttachedSQL

// errLayout means that a destination has another number of shard groups than requested.
var errLayout = errors.New("polling: another number of shard groups")

// take waits for the lease of a shard group. since is when the statement that took it was sent. It returns errLayout if
// the destination has another number of shard groups.
func (s *Snapshot) take(ctx context.Context, conn *pgx.Conn, group, groups int) (row cursors.Row, since time.Time, err error) {
	waitingFor := ""
	for {
		var taken bool
		row, since, taken, err = s.tryTake(ctx, conn, group, groups)
		if taken || err != nil {
			return row, since, err
		}
		if !row.Held {
			continue // another relay was faster
		}
		if row.Owner != waitingFor {
			waitingFor = row.Owner
			s.cfg.Logger.Info("standing by, another relay owns the shard group",
				"destination", s.destination, "shard_group", group, "shard_groups", groups, "owner", row.Owner)
		}
		if err := lease.Pause(ctx, s.cfg.Lease/3); err != nil {
			return row, since, err
		}
	}
}

// tryTake takes the lease if it is free or was this relay's. It waits no longer than dial.AnswerWithin for an answer: a
// standby with a dead connection would never take over.
func (s *Snapshot) tryTake(ctx context.Context, conn *pgx.Conn,
	group, groups int) (row cursors.Row, since time.Time, taken bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, dial.AnswerWithin)
	defer cancel()
	rows, err := cursors.Rows(ctx, conn, s.destination)
	if err != nil {
		return row, since, false, err
	}
	if len(rows) != groups || rows[0].Groups != groups {
		return row, since, false, errLayout
	}
	row = rows[group]
	if err := cursors.RefuseForeign(&row); err != nil {
		return row, since, false, err
	}
	if row.Held && row.Owner != s.owner {
		return row, since, false, nil
	}
	since = time.Now()
	err = conn.QueryRow(ctx, schema.WithTableOf(s.destination, takeSQL), s.destination, group, groups, s.owner, s.cfg.Lease.Microseconds()).
		Scan(&row.Epoch, &row.Position.Prev, &row.Position.Windows, &row.Position.LastID, &row.Attached)
	if errors.Is(err, pgx.ErrNoRows) {
		row.Held = false // look again at once
		return row, since, false, nil
	}
	if err != nil {
		return row, since, false, fmt.Errorf("take the lease: %w", err)
	}
	if err := dial.Replicated(conn); err != nil {
		return row, since, false, err
	}
	return row, since, true, nil
}

// As sets the owner of a source without a Registration, so that a later source of the same owner takes its lease back
// at once. The caller must ensure that no other source uses the name at the same time.
func (s *Snapshot) As(owner string) { s.owner = owner }
