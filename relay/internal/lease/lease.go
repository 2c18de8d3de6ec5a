// Package lease is how a relay owns a shard group of the outbox, and the connections that its statements need.
package lease

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/brokers"
	"github.com/pgoutbox/outbox/internal/cursors"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/schema"
)

// How long a lease lasts unless told, and at least.
const (
	Default = 3 * time.Second
	Min     = 100 * time.Millisecond
)

// Lease is the ownership of a shard group, on the connection that does all of a session's writes. Every write names the
// epoch of the lease, so a session that has lost the lease can't change anything, even if it doesn't know of the loss.
type Lease struct {
	destination string
	group       int
	Epoch       int64
	attached    string // the segments at the start: all rows come from them
	ttl         time.Duration
	current     func() cursors.Position // to store with a renewal

	Link *Link

	state struct {
		sync.Mutex
		expires time.Time
		written time.Time
		err     error // why no further write is possible
	}
	broken chan struct{} // closed when err is set

	stop    context.CancelFunc
	renewed chan struct{} // closed when the renewing goroutine has ended
}

// Link is a connection that writes. It is locked for a whole write, from the decision what to write until its outcome
// is known. No goroutine waits for the lock while it holds another lock of this package.
type Link struct {
	sync.Mutex
	Server string
	Conn   *pgx.Conn
}

// Start renews a lease until release. The statement that took the lease was sent at since; current is the position
// to store.
func Start(link *Link, destination string, row *cursors.Row,
	ttl time.Duration, since time.Time, current func() cursors.Position) *Lease {
	l := &Lease{
		destination: destination, group: row.Group, Epoch: row.Epoch, attached: row.Attached, ttl: ttl, current: current, Link: link,
		broken: make(chan struct{}), renewed: make(chan struct{}),
	}
	l.extend(since)
	ctx, stop := context.WithCancel(context.Background())
	l.stop = stop
	go l.renew(ctx)
	return l
}

// extend notes a write that was sent at since. The lease lasts from the time when the server got it, which is later, so
// the time noted here ends first.
func (l *Lease) extend(since time.Time) {
	l.state.Lock()
	defer l.state.Unlock()
	l.state.expires, l.state.written = since.Add(l.ttl), since
}

func (l *Lease) Expires() time.Time {
	l.state.Lock()
	defer l.state.Unlock()
	if errors.Is(l.state.err, relay.ErrLeaseLost) {
		return time.Time{}
	}
	return l.state.expires
}

// Fail ends the use of the lease. After an error the outcome of a write is unknown, so nothing may be written on top of
// it.
func (l *Lease) Fail(err error) error {
	l.state.Lock()
	defer l.state.Unlock()
	if l.state.err == nil {
		l.state.err = err
		close(l.broken)
	}
	return err
}

// Ended is closed when no further write is possible; failure says why.
func (l *Lease) Ended() <-chan struct{} { return l.broken }

// Failure returns why the lease is unusable, or nil.
func (l *Lease) Failure() error {
	l.state.Lock()
	defer l.state.Unlock()
	return l.state.err
}

func (l *Lease) renew(ctx context.Context) {
	defer close(l.renewed)
	timer := time.NewTimer(l.due())
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.broken:
			return
		case <-timer.C:
		}
		if l.due() <= 0 {
			// This doesn't use ctx: a release that interrupted a write would lose the connection with it.
			if err := l.Query(func(*pgx.Conn) error { return nil }); err != nil {
				return
			}
		}
		timer.Reset(l.due())
	}
}

// due is when to renew the lease: a third of it after the last write was sent. How long the answer took doesn't count,
// or a slow line would leave too little of a short lease.
func (l *Lease) due() time.Duration {
	l.state.Lock()
	defer l.state.Unlock()
	return time.Until(l.state.written.Add(l.ttl / 3))
}

// WriteCursorSQL moves the cursor and renews the lease, if the lease still has this epoch. It is the only statement
// that moves a cursor over messages that were read. So it checks that none of them were hidden: no segment was detached
// since the lease was taken, not even for a moment.
const WriteCursorSQL = `
UPDATE outbox.cursors SET
	prev = $4::text::pg_snapshot, windows = $5::text::pg_snapshot[], last_id = $6, last_at = coalesce($10, last_at), delivered = delivered + $7,
	lease_until = clock_timestamp() + $8::bigint * interval '1 microsecond', updated_at = clock_timestamp()
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
	ctx, cancel := context.WithDeadline(ctx, l.Expires())
	defer cancel()
	since := time.Now()
	move := func(ctx context.Context, db execer) error {
		tag, err := db.Exec(ctx, schema.WithTableOf(l.destination, WriteCursorSQL), l.destination, l.group, l.Epoch,
			at.Prev, snapshotArray(at.Windows), at.LastID, delivered, l.ttl.Microseconds(), l.attached, lastAt(at))
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
	l.extend(since)
	return nil
}

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
	l.extend(since)
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

// StopRenewing leaves the lease as it is: it ends when it expires.
func (l *Lease) StopRenewing() {
	l.stop()
	<-l.renewed
}

// releaseSQL gives the lease back. owner remains, to name the last owner.
const releaseSQL = `
UPDATE outbox.cursors SET
	prev = $4::text::pg_snapshot, windows = $5::text::pg_snapshot[], last_id = $6, last_at = coalesce($8, last_at),
	lease_until = '-infinity', updated_at = clock_timestamp()
WHERE destination = $1 AND shard_group = $2 AND epoch = $3 AND $7 = ` + schema.AttachedSQL

// Release stops renewing and gives the lease back if it is still held.
func (l *Lease) Release(ctx context.Context, current func() cursors.Position) error {
	l.StopRenewing()
	l.Link.Lock()
	defer l.Link.Unlock()
	if err := l.Failure(); err != nil {
		return err
	}
	at := current()
	tag, err := l.Link.Conn.Exec(ctx, schema.WithTableOf(l.destination, releaseSQL),
		l.destination, l.group, l.Epoch, at.Prev, snapshotArray(at.Windows), at.LastID, l.attached, lastAt(at))
	if err == nil && tag.RowsAffected() == 0 {
		err = relay.ErrLeaseLost
	}
	_ = l.Fail(ErrClosed)
	if err != nil {
		return fmt.Errorf("give the lease back: %w", err)
	}
	return nil
}

var ErrClosed = errors.New("the session is closed")

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
