// Package lease is how a relay owns a shard group of the outbox, and the connections that its statements need.
package lease

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/brokers"
	"github.com/pgoutbox/outbox/internal/cursors"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/owner"
	"github.com/pgoutbox/outbox/schema"
)

// Lease is the ownership of a shard group, on the connection that does all of a session's writes. Every write names the
// epoch of the lease, so a session that has lost the lease can't change anything, even if it doesn't know of the loss.
type Lease struct {
	destination string
	group       int
	Epoch       int64
	attached    string                  // the segments at the start: all rows come from them
	current     func() cursors.Position // to store with a renewal

	Link        *Link
	*owner.Term // ends when no further write is possible

	// These are used while the link is held. locked means that the link's session has the lock.
	lock    owner.Lock
	locked  bool
	tryAt   time.Time
	resting func() bool // nothing happens; nil: unknown
}

// Start renews a lease until Release. The statement that took the lease was sent at since; current is the position
// to store.
func Start(link *Link, destination string, row *cursors.Row,
	ttl time.Duration, since time.Time, current func() cursors.Position) *Lease {
	l := &Lease{
		destination: destination, group: row.Group, Epoch: row.Epoch, attached: row.Attached, current: current, Link: link,
		Term: owner.NewTerm(ttl, since), lock: LockOf(destination, row.Group), locked: row.Locked,
	}
	l.Keep(l.due, func(context.Context) error { // a release that interrupted a write would lose the connection with it
		return l.Query(func(*pgx.Conn) error { return nil })
	})
	return l
}

// Expires is when another relay may take the lease; the zero time once one has.
func (l *Lease) Expires() time.Time {
	until, err := l.Until()
	if errors.Is(err, relay.ErrLeaseLost) {
		return time.Time{}
	}
	return until
}

// due is when to renew the lease: a third of it after the last write was sent. How long the answer took doesn't count,
// or a slow line would leave too little of a short lease.
func (l *Lease) due() time.Duration {
	return l.Due()
}

// WriteCursorSQL moves the cursor and renews the lease, if the lease still has this epoch. It is the only statement
// that moves a cursor over messages that were read. So it checks that none of them were hidden: no segment was detached
// since the lease was taken, not even for a moment.
const WriteCursorSQL = `
UPDATE outbox.cursors SET
	prev = $4::text::pg_snapshot, windows = $5::text::pg_snapshot[], last_id = $6, last_at = coalesce($10, last_at), delivered = delivered + $7,
	lease_until = clock_timestamp() + $8::bigint * interval '1 microsecond', lease = $8::bigint * interval '1 microsecond',
	updated_at = clock_timestamp()
WHERE destination = $1 AND shard_group = $2 AND epoch = $3 AND $9 = ` + schema.AttachedSQL

// Write stores the position that current returns, adds to the count of delivered messages and renews the lease. If more
// is given, it runs in the same transaction. current is called when all earlier writes have ended. A write lasts no
// longer than the lease. After any error other than relay.ErrLeaseLost the outcome is unknown; after every error
// nothing more is written.
func (l *Lease) Write(ctx context.Context, delivered int, current func() cursors.Position, more func(context.Context, pgx.Tx) error) error {
	l.Link.Lock()
	defer l.Link.Unlock()
	if err := l.Failure(); err != nil {
		return err
	}
	return l.move(ctx, delivered, current(), more)
}

// move is write while the link is held.
func (l *Lease) move(ctx context.Context, delivered int, at cursors.Position, more func(context.Context, pgx.Tx) error) error {
	ctx, cancel := l.bounded(ctx)
	defer cancel()
	if err := l.lockLate(ctx); err != nil {
		return l.Fail(err)
	}
	since, length := time.Now(), l.length()
	move := func(ctx context.Context, db execer) error {
		tag, err := db.Exec(ctx, schema.WithTableOf(l.destination, WriteCursorSQL), l.destination, l.group, l.Epoch,
			at.Prev, snapshotArray(at.Windows), at.LastID, delivered, length.Microseconds(), l.attached, lastAt(at))
		switch {
		case err != nil:
			return fmt.Errorf("move the cursor: %w", err)
		case tag.RowsAffected() == 0:
			return relay.ErrLeaseLost
		}
		return nil
	}
	var err error
	if more == nil {
		err = move(ctx, l.Link.Conn)
	} else {
		err = InTransaction(ctx, l.Link.Conn, func(tx pgx.Tx) error {
			// This comes first, for its row lock: no other relay can take the lease from here until the commit.
			if err := move(ctx, tx); err != nil {
				return err
			}
			return more(ctx, tx)
		})
	}
	if err == nil {
		err = dial.Replicated(l.Link.Conn)
	}
	if err != nil {
		return l.Fail(err)
	}
	l.ProlongBy(since, length)
	return nil
}

// lockLate takes the lock of a lease that was taken without it, because a session that was frozen or cut off still had
// it. It tries as often as the lease is renewed.
func (l *Lease) lockLate(ctx context.Context) error {
	if l.locked || time.Now().Before(l.tryAt) {
		return nil
	}
	l.tryAt = time.Now().Add(l.Length / 3)
	var err error
	if l.locked, err = l.lock.Try(ctx, l.Link.Conn, l.Length); err != nil || !l.locked {
		return err
	}
	tag, err := l.Link.Conn.Exec(ctx, lockedSQL, l.destination, l.group, l.Epoch, true)
	if err == nil && tag.RowsAffected() == 0 {
		err = relay.ErrLeaseLost
	}
	if err != nil {
		return fmt.Errorf("note the lock: %w", err)
	}
	return nil
}

const lockedSQL = `UPDATE outbox.cursors SET locked = $4 WHERE destination = $1 AND shard_group = $2 AND epoch = $3`

// forsakeSQL leaves a lease to expire, as soon as one that is renewed often would.
const forsakeSQL = `UPDATE outbox.cursors SET locked = false,
	lease_until = least(lease_until, clock_timestamp() + $4::bigint * interval '1 microsecond')
WHERE destination = $1 AND shard_group = $2 AND epoch = $3`

// Query runs f on the connection between writes. If the lease is to be renewed, it does that first: many may wait for
// the connection, and the renewal behind them.
func (l *Lease) Query(f func(*pgx.Conn) error) error {
	l.Link.Lock()
	defer l.Link.Unlock()
	if err := l.Failure(); err != nil {
		return err
	}
	if l.due() <= 0 {
		// This uses no context of the caller's, whose end would lose the connection.
		if err := l.move(context.Background(), 0, l.current(), nil); err != nil {
			return err
		}
	}
	if err := f(l.Link.Conn); err != nil {
		return l.Fail(err)
	}
	return nil
}

// RenewBy is write for a caller that renews the lease itself: f reports whether the cursor's row still had this epoch.
// Everything that f does must be one transaction.
func (l *Lease) RenewBy(ctx context.Context, f func(context.Context, *pgx.Conn) (owned bool, err error)) error {
	l.Link.Lock()
	defer l.Link.Unlock()
	if err := l.Failure(); err != nil {
		return err
	}
	ctx, cancel := context.WithDeadline(ctx, l.Expires())
	defer cancel()
	if err := l.lockLate(ctx); err != nil {
		return l.Fail(err)
	}
	since := time.Now()
	owned, err := f(ctx, l.Link.Conn)
	if err == nil && !owned {
		err = relay.ErrLeaseLost
	}
	if err == nil {
		err = dial.Replicated(l.Link.Conn)
	}
	if err != nil {
		return l.Fail(err)
	}
	l.Prolong(since)
	return nil
}

// Recognize compares the relay's broker with the destination's. A refusal ends no lease: it is given back.
func (l *Lease) Recognize(ctx context.Context, relay string, identity []string) (refusal error) {
	err := l.Query(func(conn *pgx.Conn) error {
		err := brokers.Recognize(ctx, conn, l.destination, relay, identity)
		if errors.Is(err, brokers.ErrOther) {
			refusal, err = err, nil
		}
		return err
	})
	if err != nil {
		return err
	}
	return refusal
}

// releaseSQL gives the lease back. owner remains, to name the last owner.
const releaseSQL = `
UPDATE outbox.cursors SET
	prev = $4::text::pg_snapshot, windows = $5::text::pg_snapshot[], last_id = $6, last_at = coalesce($8, last_at),
	lease_until = '-infinity', locked = false, updated_at = clock_timestamp()
WHERE destination = $1 AND shard_group = $2 AND epoch = $3 AND $7 = ` + schema.AttachedSQL

// Release stops renewing and gives the lease back if it is still held, and then the lock: whoever waits for that finds
// the position. If ctx has ended, the lease is left to expire, and nobody may take it before.
func (l *Lease) Release(ctx context.Context, current func() cursors.Position) error {
	l.StopKeeping()
	l.Link.Lock()
	defer l.Link.Unlock()
	defer l.unlock(ctx)
	if err := l.Failure(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), dial.HangUpTimeout)
		defer cancel()
		_, forsaken := l.Link.Conn.Exec(leaving, forsakeSQL, l.destination, l.group, l.Epoch, l.Length.Microseconds())
		return errors.Join(l.Fail(err), forsaken)
	}
	at := current()
	tag, err := l.Link.Conn.Exec(ctx, schema.WithTableOf(l.destination, releaseSQL),
		l.destination, l.group, l.Epoch, at.Prev, snapshotArray(at.Windows), at.LastID, l.attached, lastAt(at))
	if err == nil && tag.RowsAffected() == 0 {
		err = relay.ErrLeaseLost
	}
	_ = l.Fail(owner.ErrClosed)
	if err != nil {
		return fmt.Errorf("give the lease back: %w", err)
	}
	return nil
}

// unlock gives the lock back, if the connection can tell the server. If it can't, the lock ends with the session. A
// shared session goes on, so the lock is given back there whatever has ended the lease, as it would end with one's own.
func (l *Lease) unlock(ctx context.Context) {
	reason := l.Failure()
	if l.Link.has {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), dial.HangUpTimeout)
		defer cancel()
	}
	if l.locked && (l.Link.has || errors.Is(reason, owner.ErrClosed) || errors.Is(reason, relay.ErrLeaseLost)) {
		l.locked = l.lock.Unlock(ctx, l.Link.Conn) != nil
	}
}

// lastAt is nil if the position doesn't say it: what the cursor has is true then.
func lastAt(at cursors.Position) *time.Time {
	if at.LastAt.IsZero() {
		return nil
	}
	return &at.LastAt
}

// snapshotArray writes a pg_snapshot[] literal.
func snapshotArray(snapshots []string) string {
	if len(snapshots) == 0 {
		return "{}"
	}
	return `{"` + strings.Join(snapshots, `","`) + `"}`
}
