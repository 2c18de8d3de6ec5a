package polling

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/cursors"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/dial"
	"github.com/pgoutbox/outbox/relay/internal/states"
	"github.com/pgoutbox/outbox/schema"
)

// Snapshot is the default strategy: it reads what a new snapshot of the database sees and the cursor's
// doesn't. Every committed transaction becomes visible between exactly two snapshots, so none is lost
// and none is read twice, and one that stays open blocks nobody.
//
// Order: the messages of a key come in the order in which their transactions took that key's row,
// provided that the outbox row is inserted after the business row was locked. What falls into one window
// comes by id, which was drawn under that lock; between windows the order is that of the commits.
//
// Acquire may be called again after a session was closed; not for two sessions at once.
type Snapshot struct {
	conn        *pgx.ConnConfig
	destination string
	owner       string
	cfg         SnapshotConfig
	states      *states.Writer

	// minPage is how many messages are read at once at least.
	minPage int

	active  atomic.Bool
	release func() // of the registration
	intact  bool   // the tables were once as they should be; of Acquire's goroutine
}

var (
	_ relay.Reporting = (*Snapshot)(nil)
	_ relay.Coupled   = (*snapshotSession)(nil)
)

// NewSnapshot returns a source for a destination. It reports every fault of cfg at once and connects to
// nothing yet. conn is copied; it must lead to the primary, with sessions of its own (see the package
// comment), as a role with the rights that schema.Grants lists for a relay.
func NewSnapshot(conn *pgx.ConnConfig, destination string, cfg SnapshotConfig) (*Snapshot, error) {
	cfg, err := cfg.withDefaults(conn, destination)
	if err != nil {
		return nil, err
	}
	s := &Snapshot{conn: conn.Copy(), destination: destination, cfg: cfg, minPage: 1000}
	if cfg.Registration != nil {
		s.owner, s.states = cfg.Registration.Name(), cfg.Registration.states
	} else {
		host, _ := os.Hostname() // only for people
		s.owner = fmt.Sprintf("%s/%d/%s", host, os.Getpid(), rand.Text()[:8])
		s.states = states.New(conn, s.owner, cfg.Logger)
	}
	return s, nil
}

// Report writes the relay's state to the cursor, where `outbox status` reads it from anywhere.
func (s *Snapshot) Report(state relay.State, err error) {
	s.states.Report(s.destination, s.cfg.Group, state, err)
}

var errActive = errors.New("polling: the source already has a session")

// Acquire waits until this relay owns the shard group and returns a session that goes on where the last
// owner durably stood. The first source of a destination makes its cursor, which has seen nothing, so
// everything that is in the outbox is delivered.
//
// If the destination is split into another number of shard groups than cfg has, one of the new sources
// waits until all groups of the old number are free, delivers what is left of them up to a common point
// and replaces them; its session covers all shards and then ends with relay.ErrLeaseLost. So stop the
// relays of the old number: until they end, nothing is delivered of the groups that are free already.
//
// Marked by outbox.Permanent, because waiting doesn't cure them, are cursors.ErrStandby, cursors.ErrForeign,
// ErrNamesake and the errors of schema.Check, but schema.ErrSegments only until the schema has once been
// found in order. Other errors are the connection's.
func (s *Snapshot) Acquire(ctx context.Context) (relay.Session, error) {
	if !s.active.CompareAndSwap(false, true) {
		return nil, errActive
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
		release, err := r.use(s.destination, s.cfg.Group)
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
	preparing, cancel := context.WithTimeout(ctx, prepareWithin)
	defer cancel()
	if err := s.prepare(preparing, conn); err != nil {
		return nil, err
	}
	s.intact = true
	if err := s.letGo(preparing, conn); err != nil {
		return nil, err
	}
	writing := &link{conn: conn}
	if writing.server, err = cursors.Server(preparing, conn); err != nil {
		return nil, err
	}
	for {
		row, since, err := s.take(ctx, conn, s.cfg.Group, s.cfg.Groups)
		if errors.Is(err, errLayout) {
			session, err := s.regroup(ctx, writing)
			if session != nil || err != nil {
				return session, err
			}
			continue // another relay has done it
		}
		if err != nil {
			return nil, err
		}
		return s.start(ctx, writing, row, since)
	}
}

// letGo has the server end a transaction of this connection in which nothing happens for as long as the
// lease lasts. A relay that freezes, or is cut off, in the middle of one would keep the cursor's row locked,
// and others from taking over, long after its lease has run out.
func (s *Snapshot) letGo(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, "SELECT set_config('idle_in_transaction_session_timeout', $1, false)",
		strconv.FormatInt(max(s.cfg.Lease.Milliseconds(), 1), 10))
	if err != nil {
		return fmt.Errorf("bound idle transactions: %w", err)
	}
	return nil
}

// start begins a session with a lease that was just taken.
func (s *Snapshot) start(ctx context.Context, writing *link, row cursors.Row, since time.Time) (*snapshotSession, error) {
	session, err := s.session(writing, row, since, 0)
	if err != nil {
		return nil, err
	}
	session.reader, err = s.reader(ctx, writing, session.pool, row.Group, row.Groups)
	if err != nil {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), dial.HangUpTimeout)
		defer cancel()
		return nil, errors.Join(err, session.lease.release(closing, session.position))
	}
	return session, nil
}

// session makes a session that can't read yet, whose windows are numbered from ordinals on.
func (s *Snapshot) session(writing *link, row cursors.Row, since time.Time, ordinals uint64) (*snapshotSession, error) {
	cursor, err := newCursor(row.Position, ordinals)
	if err != nil {
		return nil, dial.Permanent("cursor of destination %q: %w", s.destination, err)
	}
	life, end := context.WithCancel(context.Background())
	session := &snapshotSession{
		life: life, end: end,
		source: s, group: row.Group, groups: row.Groups, pool: &pagePool{}, cursor: cursor,
		settled: make(chan struct{}, 1), timer: time.NewTimer(time.Hour),
	}
	session.lease = startLease(writing, s.destination, &row, s.cfg.Lease, since, session.position)
	return session, nil
}

// reader connects a reader, to the server that is written to: one address can lead to several, and a
// standby's snapshots would lose messages.
func (s *Snapshot) reader(ctx context.Context, writing *link, pool *pagePool, group, groups int) (_ *reader, err error) {
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
	if here != writing.server {
		return nil, errors.New("two connections have reached different servers: give the address of the primary alone, " +
			"or add target_session_attrs=read-write")
	}
	return newReader(ctx, conn, pool, s.destination, group, groups)
}

// prepare verifies that the database can be worked with and makes the destination's cursor if there is
// none.
func (s *Snapshot) prepare(ctx context.Context, conn *pgx.Conn) error {
	if err := cursors.RefuseStandby(ctx, conn); err != nil {
		return err
	}
	if err := s.refused(schema.Check(ctx, conn)); err != nil {
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

// create makes the cursors of a destination, once, whoever comes first.
func (s *Snapshot) create(ctx context.Context, conn *pgx.Conn) error {
	return inTransaction(ctx, conn, func(tx pgx.Tx) error {
		if err := lockLayout(ctx, tx, s.destination); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, createCursorsSQL, s.destination, s.cfg.Groups)
		return err
	})
}

// checkSchema distinguishes what the database lacks, for which there is no use in waiting, from not
// getting an answer.
func checkSchema(ctx context.Context, conn *pgx.Conn) error {
	return lacking(schema.Check(ctx, conn))
}

func lacking(err error) error {
	for _, cure := range []error{schema.ErrMissing, schema.ErrOutdated, schema.ErrTooNew, schema.ErrChanged,
		schema.ErrForbidden, schema.ErrUnsupportedServer, schema.ErrHidden, schema.ErrSegments} {
		if errors.Is(err, cure) {
			return dial.Permanent("%w", err)
		}
	}
	return err
}

// refused is lacking, but for a segment that was detached while this relay ran: it can be attached again, so the relay waits.
func (s *Snapshot) refused(err error) error {
	if s.intact && errors.Is(err, schema.ErrSegments) {
		return err
	}
	return lacking(err)
}

// lockLayout keeps others from making or changing the set of cursors of a destination until tx ends.
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

// takeSQL takes the lease if it is free or this relay's own. The epoch grows, so whoever held it before
// can write no more. The conditions that were checked before are repeated where they must hold.
const takeSQL = `
UPDATE outbox.cursors SET owner = $4, epoch = epoch + 1, lease = $5::bigint * interval '1 microsecond',
	lease_until = clock_timestamp() + $5::bigint * interval '1 microsecond'
WHERE destination = $1 AND shard_group = $2 AND shard_groups = $3
	AND (NOT (` + schema.Leased + `) OR owner = $4)
	AND system_identifier = (SELECT s.system_identifier FROM pg_control_system() s)
RETURNING epoch, prev::text, windows::text[], last_id, ` + schema.Attached

// errLayout means that a destination is split into another number of shard groups than was asked for.
var errLayout = errors.New("polling: another number of shard groups")

// take waits for the lease of a shard group. since is when the statement that took it was sent. It returns
// errLayout when the destination is split otherwise.
func (s *Snapshot) take(ctx context.Context, conn *pgx.Conn, group, groups int) (row cursors.Row, since time.Time, err error) {
	waitingFor := ""
	for {
		var taken bool
		row, since, taken, err = s.tryTake(ctx, conn, group, groups)
		if taken || err != nil {
			return row, since, err
		}
		if !row.Held {
			continue // somebody was faster
		}
		if row.Owner != waitingFor {
			waitingFor = row.Owner
			s.cfg.Logger.Info("standing by, another relay owns the shard group",
				"destination", s.destination, "shard_group", group, "shard_groups", groups, "owner", row.Owner)
		}
		if err := pauseFor(ctx, s.cfg.Lease/3); err != nil {
			return row, since, err
		}
	}
}

// tryTake takes the lease if it is free or was this relay's. It asks no longer than answerWithin: who
// stands by on a dead connection would never take over.
func (s *Snapshot) tryTake(ctx context.Context, conn *pgx.Conn, group, groups int) (row cursors.Row, since time.Time, taken bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
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
	err = conn.QueryRow(ctx, reading(s.destination, takeSQL), s.destination, group, groups, s.owner, s.cfg.Lease.Microseconds()).
		Scan(&row.Epoch, &row.Position.Prev, &row.Position.Windows, &row.Position.LastID, &row.Attached)
	if errors.Is(err, pgx.ErrNoRows) {
		row.Held = false // look again, at once
		return row, since, false, nil
	}
	if err != nil {
		return row, since, false, fmt.Errorf("take the lease: %w", err)
	}
	if err := dial.Replicated(conn); err != nil {
		return row, since, false, err
	}
	// A segment may have been detached while this relay stood by. If one is from here on, nothing can be written.
	return row, since, true, s.refused(schema.Intact(ctx, conn))
}

// pauseFor waits for d, give or take a fifth, so that relays that started together don't stay in step.
func pauseFor(ctx context.Context, d time.Duration) error {
	return dial.Pause(ctx, time.Duration(float64(d)*(0.8+0.4*mathrand.Float64())))
}
