package polling

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/cursors"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/relay/internal/lease"
	"github.com/pgoutbox/outbox/relay/internal/messages"
	"github.com/pgoutbox/outbox/schema"
)

// boundIdleTransactions makes the server end a transaction of this connection that is idle for as long as the lease
// lasts. If a relay froze, or was cut off, in the middle of a transaction, it would keep the cursor's row locked, and
// other relays from taking over, long after its lease has expired.
func (s *Snapshot) boundIdleTransactions(ctx context.Context, conn *pgx.Conn) error {
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
	countNotifications(cfg)
	return lease.Connect(ctx, cfg, name)
}

// start begins a session with a lease that was just taken. It reads on the connection of the registration, if it can,
// and writes on that with which it has taken the lease, until it has nothing to do.
func (s *Snapshot) start(ctx context.Context, writing *lease.Link, row cursors.Row, since time.Time) (*snapshotSession, error) {
	session, err := s.session(ctx, writing, row, since, 0)
	if err != nil {
		return nil, err
	}
	if session.reader = s.sharedReader(ctx, writing, session.pool, row.Group, row.Groups); session.reader == nil {
		session.reader, err = s.reader(ctx, writing, session.pool, row.Group, row.Groups)
	}
	if err != nil {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), dial.HangUpTimeout)
		defer cancel()
		return nil, errors.Join(err, session.lease.Release(closing, session.position))
	}
	session.setApart(true)
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
		return nil, lease.ErrServer
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

// takeSQL takes the lease if it is free, or this relay's own, or if this session has the lock ($6) that the owner had:
// then the owner's session has ended. It raises the epoch, so the previous holder can write no more. It repeats the
// conditions that were checked before where they must hold. $7: the session that writes has the lock.
const takeSQL = `
UPDATE outbox.cursors SET owner = $4, epoch = epoch + 1, lease = $5::bigint * interval '1 microsecond',
	lease_until = clock_timestamp() + $5::bigint * interval '1 microsecond', locked = $7
WHERE destination = $1 AND shard_group = $2 AND shard_groups = $3
	AND (NOT (` + schema.LeasedSQL + `) OR owner = $4 OR locked AND $6)
	AND system_identifier = (SELECT s.system_identifier FROM pg_control_system() s)
RETURNING epoch, prev::text, windows::text[], last_id, ` + schema.AttachedSQL

// errLayout means that a destination has another number of shard groups than requested.
var errLayout = errors.New("polling: another number of shard groups")

// take waits for the lease of a shard group, and for the lock of its owner: when the owner's session ends, this one has
// the lock at once, and takes the lease before it expires. Between the waits it looks whether the lease has expired: a
// process that is frozen, or cut off, still has the lock.
//
// writes means that conn is the connection that writes, which keeps the lock. If the lock can't be had, the lease is
// taken without it (see lease.Lease). since is when the statement that took it was sent. take returns errLayout if the
// destination has another number of shard groups.
func (s *Snapshot) take(ctx context.Context, conn *pgx.Conn, group, groups int,
	writes bool) (row cursors.Row, since time.Time, err error) {
	lock, waitingFor := lease.LockOf(s.destination, group), ""
	for {
		if row, err = s.look(ctx, conn, group, groups); err != nil {
			return row, since, err
		}
		others := row.Held && row.Owner != s.owner
		if others && row.Owner != waitingFor {
			waitingFor = row.Owner
			s.cfg.Logger.Info("standing by, another relay owns the shard group",
				"destination", s.destination, "shard_group", group, "shard_groups", groups, "owner", row.Owner)
		}
		var got bool
		switch {
		case !others:
			got, err = s.quickly(ctx, func(ctx context.Context) (bool, error) { return lock.Try(ctx, conn, s.cfg.Lease) })
		case row.Locked:
			got, err = s.quickly(ctx, func(ctx context.Context) (bool, error) { return lock.Wait(ctx, conn, s.cfg.Lease) })
		default: // it has no lock, so there is nothing to wait for, and its own try must find the lock free
			err = lease.Pause(ctx, s.cfg.Lease/3)
		}
		if err != nil {
			return row, since, err
		}
		if others && !got {
			continue
		}
		since = time.Now()
		row.Locked = got && writes
		taken, err := s.quickly(ctx, func(ctx context.Context) (bool, error) { return s.tryTake(ctx, conn, &row, got) })
		if taken || err != nil {
			return row, since, err
		}
		if got { // another relay was faster
			if err := lock.Unlock(ctx, conn); err != nil {
				return row, since, err
			}
		}
	}
}

// quickly waits no longer than dial.AnswerWithin for an answer: a standby with a dead connection would never take over.
func (s *Snapshot) quickly(ctx context.Context, ask func(context.Context) (bool, error)) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, dial.AnswerWithin)
	defer cancel()
	return ask(ctx)
}

// look reads the cursor.
func (s *Snapshot) look(ctx context.Context, conn *pgx.Conn, group, groups int) (row cursors.Row, err error) {
	ctx, cancel := context.WithTimeout(ctx, dial.AnswerWithin)
	defer cancel()
	rows, err := cursors.Rows(ctx, conn, s.destination)
	if err != nil {
		return row, err
	}
	if len(rows) != groups || rows[0].Groups != groups {
		return row, errLayout
	}
	return rows[group], cursors.RefuseForeign(&rows[group])
}

// tryTake takes the lease if it may be taken.
func (s *Snapshot) tryTake(ctx context.Context, conn *pgx.Conn, row *cursors.Row, got bool) (taken bool, err error) {
	err = conn.QueryRow(ctx, schema.WithTableOf(s.destination, takeSQL), s.destination, row.Group, row.Groups, s.owner,
		s.cfg.Lease.Microseconds(), got, row.Locked).
		Scan(&row.Epoch, &row.Position.Prev, &row.Position.Windows, &row.Position.LastID, &row.Attached)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("take the lease: %w", err)
	}
	return true, dial.Replicated(conn)
}

// Awaited reports whether a relay waits for the shard group, so that it has it as soon as its owner gives it back. A
// relay that stands by is seen waiting nearly always: between two waits, of less than a second each, it looks at the
// cursor.
func Awaited(ctx context.Context, conn *pgx.Conn, destination string, group int) (waiting bool, err error) {
	err = conn.QueryRow(ctx, `SELECT EXISTS (
		SELECT FROM pg_catalog.pg_locks l CROSS JOIN (SELECT `+lease.LockOf(destination, group).Key+`) k (class, name)
		WHERE l.locktype = 'advisory' AND NOT l.granted AND l.classid = k.class::oid AND l.objid = k.name::oid AND l.objsubid = 2
			AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database()))`).Scan(&waiting)
	if err != nil {
		return false, fmt.Errorf("look for relays that wait: %w", err)
	}
	return waiting, nil
}
