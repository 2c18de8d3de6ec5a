package polling

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/cursors"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/controls"
	"github.com/pgoutbox/outbox/relay/internal/holds"
	"github.com/pgoutbox/outbox/relay/internal/lease"
	"github.com/pgoutbox/outbox/relay/internal/messages"
	"github.com/pgoutbox/outbox/relay/registration"
)

// regroupSession changes the number of shard groups of a destination. It owns all groups of the old number, and takes
// one snapshot once it owns them. It delivers each group up to that snapshot, and then replaces their cursors by those
// of the new number, which begin at the snapshot.
//
// This loses, repeats and reorders nothing. Until the replacement, each old cursor is an ordinary one, and any relay of
// the old number could continue it. After it, what the snapshot sees is settled in every group, and what it doesn't see
// is new to every group.
//
// The groups are delivered one after the other. A group begins when the previous one is completely settled, so a
// settlement concerns one cursor. The session ends with relay.ErrLeaseLost: the relay acquires again, and finds the
// number that it is configured for.
type regroupSession struct {
	source *Snapshot
	end    cursors.Snapshot
	groups []*snapshotSession // of the old number
	link   *lease.Link
	reader *reader
	walk   holds.Walk
	at     int // the group that is being delivered; belongs to Next
}

var _ relay.Coupled = (*regroupSession)(nil)

// groupOrdinals keeps the windows of different groups apart: the number of a delivery's window includes its group.
const groupOrdinals = 48

// regroup waits until it owns every group of the old number. It returns nil if another relay has changed the number in
// the meantime.
func (s *Snapshot) regroup(ctx context.Context, writing *lease.Link) (_ relay.Session, err error) {
	// Sources of one registration would take each other's leases for their own, so only one of them regroups.
	done := func() {}
	if r := s.cfg.Registration; r != nil {
		if done, err = r.Use(s.destination, registration.AllGroups); errors.Is(err, relay.ErrActive) {
			return nil, lease.Pause(ctx, s.cfg.Lease/3)
		}
		if err != nil {
			return nil, err
		}
	}
	releaseGroup := s.release
	s.release = func() { done(); releaseGroup() }
	session := &regroupSession{source: s, link: writing}
	ok, err := session.acquire(ctx)
	if err == nil && ok {
		return session, nil
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), dial.HangUpTimeout)
	defer cancel()
	if releaseErr := session.release(closing); releaseErr != nil && !errors.Is(releaseErr, relay.ErrLeaseLost) {
		err = errors.Join(err, releaseErr)
	}
	s.release = releaseGroup
	done()
	return nil, err
}

// acquire takes the groups in order. So if several relays try, one gets the first group and the others wait for it, and
// no relay waits while it keeps another one waiting.
func (s *regroupSession) acquire(ctx context.Context) (ok bool, err error) {
	src := s.source
	rows, err := cursors.Rows(ctx, s.link.Conn, src.destination)
	if err != nil || len(rows) == 0 || rows[0].Groups == src.cfg.Groups {
		return false, err
	}
	old := rows[0].Groups
	src.cfg.Logger.Info("changing the number of shard groups when all are free",
		"destination", src.destination, "from", old, "to", src.cfg.Groups)
	for group := range old {
		row, since, err := s.take(ctx, group, old)
		if errors.Is(err, errLayout) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		sub, err := src.session(ctx, s.link, row, since, uint64(group)<<groupOrdinals)
		if err != nil {
			return false, err
		}
		s.groups = append(s.groups, sub)
	}

	s.reader, err = src.reader(ctx, s.link, &messages.Pool{}, 0, old)
	if err != nil {
		return false, err
	}
	// No other session opens windows any more, so this snapshot lies behind all existing windows.
	var text string
	if err := s.reader.conn.QueryRow(ctx, "SELECT pg_current_snapshot()::text").Scan(&text); err != nil {
		return false, fmt.Errorf("take a snapshot: %w", err)
	}
	if s.end, err = cursors.Parse(text); err != nil {
		return false, fmt.Errorf("take a snapshot: %w", err)
	}
	for group, sub := range s.groups {
		sub.reader, sub.pool, sub.drainTo = s.reader.forGroup(group, old), s.reader.pool, &s.end
	}
	return true, nil
}

// take takes one lease. It waits on a connection of its own, because the link renews the leases taken before. The link
// has the lock when it renews this one, too.
func (s *regroupSession) take(ctx context.Context, group, groups int) (row cursors.Row, since time.Time, err error) {
	conn, err := connect(ctx, s.source.conn, s.source.owner)
	if err != nil {
		return row, since, err
	}
	defer dial.HangUp(conn)
	return s.source.take(ctx, conn, group, groups, false)
}

func (s *regroupSession) Next(ctx context.Context, limit int) (relay.Batch, error) {
	for s.at < len(s.groups) {
		for _, sub := range s.groups {
			if err := sub.lease.Failure(); err != nil {
				return relay.Batch{}, err
			}
		}
		batch, err := s.groups[s.at].Next(ctx, limit)
		if !errors.Is(err, errDrained) {
			return batch, err
		}
		s.at++
	}
	if err := s.replace(context.WithoutCancel(ctx)); err != nil {
		return relay.Batch{}, err
	}
	s.source.cfg.Logger.Info("number of shard groups changed",
		"destination", s.source.destination, "from", len(s.groups), "to", s.source.cfg.Groups)
	return relay.Batch{}, fmt.Errorf("destination %q has %d shard groups now, acquire again: %w",
		s.source.destination, s.source.cfg.Groups, relay.ErrLeaseLost)
}

// dropCursorSQL removes an old cursor if this session owns it and it stands at the common snapshot.
const dropCursorSQL = `
DELETE FROM outbox.cursors
WHERE destination = $1 AND shard_group = $2 AND epoch = $3 AND prev::text = $4 AND cardinality(windows) = 0
RETURNING delivered`

// makeCursorsSQL creates the new cursors. Their epoch is higher than every old one, so a relay that still believes to
// own an old group can write none of them.
const makeCursorsSQL = `
INSERT INTO outbox.cursors (destination, shard_group, shard_groups, prev, epoch, delivered, system_identifier)
SELECT $1, g, $2, $3::text::pg_snapshot, $4, CASE g WHEN 0 THEN $5::bigint ELSE 0 END, (SELECT s.system_identifier FROM pg_control_system() s)
FROM generate_series(0, $2::integer - 1) g`

// replace replaces the cursors in one transaction.
func (s *regroupSession) replace(ctx context.Context) error {
	s.link.Lock()
	defer s.link.Unlock()
	ctx, cancel := context.WithDeadline(ctx, s.Expires())
	defer cancel()
	err := lease.InTransaction(ctx, s.link.Conn, func(tx pgx.Tx) error {
		if err := lockLayout(ctx, tx, s.source.destination); err != nil {
			return err
		}
		var epoch, delivered int64
		for _, sub := range s.groups {
			var n int64
			err := tx.QueryRow(ctx, dropCursorSQL, s.source.destination, sub.group, sub.lease.Epoch, s.end.Text).Scan(&n)
			if errors.Is(err, pgx.ErrNoRows) {
				return relay.ErrLeaseLost
			}
			if err != nil {
				return err
			}
			epoch, delivered = max(epoch, sub.lease.Epoch), delivered+n
		}
		_, err := tx.Exec(ctx, makeCursorsSQL, s.source.destination, s.source.cfg.Groups, s.end.Text, epoch+1, delivered)
		return err
	})
	// The cursors are gone, or it is unknown whether they are.
	for _, sub := range s.groups {
		_ = sub.lease.Fail(relay.ErrLeaseLost)
	}
	if err != nil {
		return fmt.Errorf("change the number of shard groups: %w", err)
	}
	return nil
}

func (s *regroupSession) Settle(ctx context.Context, settlement relay.Settlement) error {
	// Holds may belong to any group; only one group's cursor is written.
	if d := settlement.Through; d != nil {
		return s.groups[d.Window>>groupOrdinals].settle(ctx, settlement, s.ownsAll)
	}
	return s.groups[0].settle(ctx, settlement, s.ownsAll)
}

// ownsAll fails unless this session still has every group, and keeps other relays from taking one until the transaction
// ends.
func (s *regroupSession) ownsAll(ctx context.Context, tx pgx.Tx) error {
	for _, sub := range s.groups {
		tag, err := tx.Exec(ctx, `SELECT FROM outbox.cursors WHERE destination = $1 AND shard_group = $2 AND epoch = $3 FOR SHARE`,
			s.source.destination, sub.group, sub.lease.Epoch)
		if err != nil {
			return fmt.Errorf("ask for the leases: %w", err)
		}
		if tag.RowsAffected() == 0 {
			return relay.ErrLeaseLost
		}
	}
	return nil
}

func (s *regroupSession) Lanes(ctx context.Context, after string, limit int) (lanes []string, next string, err error) {
	err = s.groups[0].lease.Query(func(conn *pgx.Conn) error {
		lanes, next, err = s.walk.Page(ctx, conn, s.source.destination, 0, 1, after, limit)
		return err
	})
	return lanes, next, err
}

func (s *regroupSession) Due(ctx context.Context, q relay.DueQuery) (lanes []relay.HeldLane, err error) {
	err = s.groups[0].lease.Query(func(conn *pgx.Conn) error {
		lanes, err = holds.Due(ctx, conn, s.source.destination, 0, 1, &q)
		return err
	})
	return lanes, err
}

func (s *regroupSession) Held(ctx context.Context, lanes []string, limit int) ([][]relay.Delivery, error) {
	return s.groups[0].Held(ctx, lanes, limit)
}

// Controls are those of one group: the groups are delivered one after the other.
func (s *regroupSession) Controls(ctx context.Context) (c relay.Controls, err error) {
	err = s.groups[0].lease.Query(func(conn *pgx.Conn) error {
		c, err = controls.Read(ctx, conn, s.source.destination, 1)
		return err
	})
	return c, err
}

func (s *regroupSession) Recognize(ctx context.Context, identity []string) error {
	return s.groups[0].Recognize(ctx, identity)
}

// Confirm renews all leases.
func (s *regroupSession) Confirm(ctx context.Context) error {
	for _, sub := range s.groups {
		if err := sub.Confirm(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Passed asks the cursors of all groups, because a position doesn't tell its group: if they differ, the answer is in
// doubt.
func (s *regroupSession) Passed(ref uint64, position int64) bool {
	for _, sub := range s.groups {
		if !sub.Passed(ref, position) {
			return false
		}
	}
	return true
}

func (s *regroupSession) Whole() bool { return true }

func (s *regroupSession) Expires() time.Time {
	first := s.groups[0].Expires()
	for _, sub := range s.groups[1:] {
		if at := sub.Expires(); at.Before(first) {
			first = at
		}
	}
	return first
}

func (s *regroupSession) Close(ctx context.Context) error {
	err := s.release(ctx)
	dial.HangUp(s.link.Conn)
	s.source.released()
	return err
}

// release gives back what was acquired, except the connection that writes.
func (s *regroupSession) release(ctx context.Context) error {
	var errs []error
	for _, sub := range s.groups {
		sub.end()
		errs = append(errs, sub.lease.Release(ctx, sub.position))
	}
	if s.reader != nil {
		s.reader.hangUp()
	}
	return errors.Join(errs...)
}
