package polling

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgoutbox/outbox/internal/dial"
)

// rest lets a session wait without polling where messages come seldom. While a session rests it holds a lock of the
// database, which every INSERT into outbox.messages tries to share (the trigger of the table, in the migrations). An
// INSERT that can't share the lock sends a notification with its commit. So writers notify only while a session rests:
// a NOTIFY serialises all commits of a database, and would cost busy writers more than half of their rate.
//
// No message is missed. A transaction that got the lock keeps it until it has ended, and so keeps sessions from
// resting; a session that has just got the lock polls once more. Every transaction after that notifies, and the server
// delivers a notification after the commit is visible. Rows that come without the trigger wait for the next poll.
//
// One session of a database holds the lock. The others receive its notifications too, and poll besides.
type rest struct {
	bell
	available bool // sessions may rest: notifications are received, and can't make a writer fail
	key       int32

	// held means that this session has the lock. mu is held while Next runs, and where the lock is given back because
	// Next has not been called for a while.
	mu   sync.Mutex
	held bool
	away *time.Timer

	gap         time.Duration // between polls that find something, smoothed
	inVain      int           // polls since then that followed a notification and found nothing
	ignoreUntil time.Time     // until then, notifications are ignored
	ignoreFor   time.Duration // how long they are ignored next time
}

const (
	// Between polls that find something. A session that finds messages more often polls at its own pace.
	restBelow, restAbove = 2500 * time.Microsecond, 4 * time.Millisecond

	// restIdle is the pause of a session that rests, for rows that come without a notification. Where nothing has come
	// for restLong, and no such row within restWary, it is restMost.
	restIdle, restMost = time.Second, 5 * time.Second
	restLong, restWary = 30 * time.Second, 10 * time.Minute

	// restAway is how long the lock is kept while Next isn't called. Writers would notify to no avail.
	restAway = time.Second

	// Notifications for messages of other destinations are ignored for a while after maxVain of them.
	maxVain                 = 8
	ignoreFirst, ignoreMost = time.Second, 30 * time.Second
)

// restSQL is what a session needs before it may rest. A transaction that has notified can't be prepared for a commit in
// two phases, so where such transactions are possible no session rests.
const restSQL = `SELECT 'outbox.messages'::regclass::oid::int4, current_setting('max_prepared_transactions') = '0' AND EXISTS (
	SELECT FROM pg_trigger WHERE tgrelid = 'outbox.messages'::regclass AND tgname = 'wake' AND tgenabled IN ('O', 'A'))`

// bell is the connection of a session that rests, its own or one that it shares.
type bell interface {
	// take takes the lock of the database, without waiting, and drop gives it back. The server ends a session that has
	// it and is silent: a frozen one must not keep the lock for long.
	take(ctx context.Context, key int32) (held bool, err error)
	drop(ctx context.Context, key int32) error

	// notified reports whether a notification has come since the last call, and forgets it.
	notified() bool

	// listen waits for a notification, or the end of the connection, until stop is called; when stop has returned, the
	// connection is free. failure says afterwards whether the connection has ended.
	listen(ctx context.Context) (called <-chan struct{}, stop func())
	failure() error

	// close is called once, at the end; held is whether the lock is.
	close(held bool, key int32)
}

// ownBell is a connection of the session's own.
type ownBell struct {
	conn  *pgx.Conn
	calls *atomic.Int64 // notifications that have come since the last look
	err   error
}

const countKey = "outbox: notifications"

// countNotifications counts the notifications that come to conn; it keeps none.
func countNotifications(cfg *pgx.ConnConfig) {
	cfg.OnNotification = func(conn *pgconn.PgConn, _ *pgconn.Notification) {
		if calls, ok := conn.CustomData()[countKey].(*atomic.Int64); ok {
			calls.Add(1)
		}
	}
}

// newRest makes conn receive notifications. conn was configured by countNotifications.
func newRest(ctx context.Context, conn *pgx.Conn) (*rest, error) {
	own := &ownBell{conn: conn, calls: new(atomic.Int64)}
	conn.PgConn().CustomData()[countKey] = own.calls
	return restOn(ctx, conn, own)
}

func restOn(ctx context.Context, conn *pgx.Conn, b bell) (*rest, error) {
	r := &rest{bell: b, ignoreFor: ignoreFirst, gap: restAbove}
	if err := conn.QueryRow(ctx, restSQL).Scan(&r.key, &r.available); err != nil {
		return nil, fmt.Errorf("look for the trigger of outbox.messages: %w", err)
	}
	if !r.available {
		return r, nil
	}
	if _, err := conn.Exec(ctx, "LISTEN outbox_wake"); err != nil {
		return nil, fmt.Errorf("listen for notifications: %w", err)
	}
	return r, nil
}

// goOn takes over what another one has learned of the messages' pace.
func (r *rest) goOn(other *rest) {
	r.gap, r.inVain, r.ignoreUntil, r.ignoreFor = other.gap, other.inVain, other.ignoreUntil, other.ignoreFor
}

// begin is called before a poll; since is the time since a poll last found something. It takes the lock if messages are
// rare.
func (r *rest) begin(ctx context.Context, since time.Duration) error {
	if !r.available || r.held || time.Now().Before(r.ignoreUntil) || max(r.gap, since) < restAbove {
		return nil
	}
	var err error
	if r.held, err = r.take(ctx, r.key); err != nil {
		return fmt.Errorf("take the lock of a relay that rests: %w", err)
	}
	r.notified() // the coming poll sees what earlier notifications are about
	return nil
}

// end gives the lock back.
func (r *rest) end(ctx context.Context) error {
	if !r.held {
		return nil
	}
	r.held = false
	if err := r.drop(ctx, r.key); err != nil {
		return fmt.Errorf("give the lock of a relay that rests back: %w", err)
	}
	return nil
}

// polled takes the outcome of a poll: the time since an earlier one found something, whether this one has, and whether
// a notification caused it. It gives the lock back if resting doesn't pay.
func (r *rest) polled(ctx context.Context, since time.Duration, found, called bool) error {
	switch {
	case found:
		r.gap += (min(since, restIdle) - r.gap) / 8
		r.inVain, r.ignoreFor = 0, ignoreFirst
		if r.gap >= restBelow {
			return nil
		}
	case called:
		if r.inVain++; r.inVain < maxVain {
			return nil
		}
		r.inVain, r.ignoreUntil = 0, time.Now().Add(r.ignoreFor)
		r.ignoreFor = min(2*r.ignoreFor, ignoreMost)
	default:
		return nil
	}
	return r.end(ctx)
}

// listens reports whether a notification would shorten a pause.
func (r *rest) listens(pause time.Duration) bool {
	return r.available && (r.held || pause >= restAbove && !time.Now().Before(r.ignoreUntil))
}

// enter and leave enclose a call of Next.
func (r *rest) enter() {
	r.mu.Lock()
	if r.away != nil {
		r.away.Stop()
	}
}

func (r *rest) leave() {
	if r.held {
		if r.away == nil {
			r.away = time.AfterFunc(restAway, r.abandon)
		} else {
			r.away.Reset(restAway)
		}
	}
	r.mu.Unlock()
}

// abandon gives the lock back because Next isn't called. An error shows itself at the next use of the connection.
func (r *rest) abandon() {
	if !r.mu.TryLock() {
		return // Next runs
	}
	defer r.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), dial.AnswerWithin)
	defer cancel()
	_ = r.end(ctx)
}

// close is called once, after the last Next and before the connection is closed.
func (r *rest) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.away != nil {
		r.away.Stop()
	}
	r.bell.close(r.held, r.key)
	r.held = false
}

func (b *ownBell) take(ctx context.Context, key int32) (held bool, err error) {
	const sql = `SELECT CASE WHEN pg_try_advisory_lock($1, 1)
		THEN set_config('idle_session_timeout', '15s', false) END IS NOT NULL`
	err = b.conn.QueryRow(ctx, sql, key).Scan(&held)
	return held, err
}

func (b *ownBell) drop(ctx context.Context, key int32) error {
	_, err := b.conn.Exec(ctx, `SELECT pg_advisory_unlock($1, 1), set_config('idle_session_timeout', '0', false)`, key)
	return err
}

func (b *ownBell) notified() bool { return b.calls.Swap(0) > 0 }

func (b *ownBell) listen(ctx context.Context) (_ <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	called, ended := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(ended)
		err := b.conn.PgConn().WaitForNotification(ctx)
		if err != nil && ctx.Err() != nil {
			return
		}
		b.err = err
		called <- struct{}{}
	}()
	return called, func() {
		cancel()
		<-ended
	}
}

func (b *ownBell) failure() error { return b.err }

func (b *ownBell) close(bool, int32) {} // the lock goes with the connection
