// Package line is the one connection that the parts of a relay share in a database where little happens.
package line

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgoutbox/outbox/internal/dial"
)

// ErrDown means that there is no connection at present: the last one broke, and its owner opens another.
var ErrDown = errors.New("the relay's connection to the database is down")

// Line lends one connection to many, one at a time. While nobody has it, it waits for notifications; who wants it ends
// that wait. It survives its connections: its owner opens them, and gives it the next one when one is lost.
//
// Who has the connection runs short statements only, because renewals of leases wait for it.
type Line struct {
	turn chan struct{} // who puts a token in has the connection

	mu     sync.Mutex
	quiet  sync.Cond
	conn   *pgx.Conn // nil: none
	lost   chan struct{}
	why    error
	wanted int                // who has the connection, or waits for it
	hush   context.CancelFunc // ends the wait for notifications
	ears   map[*Ear]struct{}
	rests  int   // who rests on the connection, see Rest
	apart  int   // who has connections of its own besides
	called int64 // notifications

	attending sync.WaitGroup
}

// New returns a line without a connection.
func New() *Line {
	l := &Line{turn: make(chan struct{}, 1), ears: make(map[*Ear]struct{})}
	l.quiet.L = &l.mu
	return l
}

// Configure makes connections of cfg tell the line of notifications.
func (l *Line) Configure(cfg *pgx.ConnConfig) {
	cfg.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) { l.ring() }
}

// Open gives the line a connection, which it owns from now on. The channel is closed when that is lost.
func (l *Line) Open(conn *pgx.Conn) (lost <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn, l.lost, l.why, l.rests = conn, make(chan struct{}), nil, 0
	l.attending.Go(func() { l.attend(conn) })
	return l.lost
}

// Why is the error that the last connection was lost with.
func (l *Line) Why() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.why
}

// Do runs f with the connection. An error of f is that of a statement: others go on if the connection still works.
func (l *Line) Do(ctx context.Context, f func(*pgx.Conn) error) error {
	conn, err := l.take(ctx, nil)
	if err != nil {
		return err
	}
	err = f(conn)
	l.give(conn, err)
	return err
}

// On is Do for who has begun something on a connection: if that is lost, it fails. The statements of f go on when ctx
// ends, since an interrupted one would cost all others the connection, and are given up when the server doesn't answer.
func (l *Line) On(ctx context.Context, conn *pgx.Conn, f func(context.Context) error) error {
	if _, err := l.take(ctx, conn); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), Within)
	defer cancel()
	err := f(ctx)
	l.give(conn, err)
	return err
}

// Within is how long a statement may go without an answer. The server ends it before.
const Within = dial.AnswerWithin + 2*time.Second

// Borrow and Return are On for who needs the connection for longer than a call.
func (l *Line) Borrow(conn *pgx.Conn) error {
	_, err := l.take(context.Background(), conn)
	return err
}

// Return gives back what Borrow has taken.
func (l *Line) Return(conn *pgx.Conn) { l.give(conn, errBroken) }

var errBroken = errors.New("the relay's connection to the database broke")

// take waits for the connection. If only is given, it must be that one. A connection that is had is given back.
func (l *Line) take(ctx context.Context, only *pgx.Conn) (*pgx.Conn, error) {
	l.mu.Lock()
	l.wanted++
	if l.hush != nil {
		l.hush()
	}
	l.mu.Unlock()
	var err error
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		err = ctx.Err()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && (l.conn == nil || only != nil && l.conn != only) {
		if err = ErrDown; l.why != nil {
			err = errors.Join(ErrDown, l.why)
		}
		<-l.turn
	}
	if err != nil {
		l.leave()
		return nil, err
	}
	return l.conn, nil
}

// leave is called with mu.
func (l *Line) leave() {
	if l.wanted--; l.wanted == 0 {
		l.quiet.Broadcast()
	}
}

// give gives the connection back after a use that ended with err. One that is broken, or in a transaction that can't be
// ended, is lost.
func (l *Line) give(conn *pgx.Conn, err error) {
	if !conn.IsClosed() && conn.PgConn().TxStatus() != 'I' {
		ctx, cancel := context.WithTimeout(context.Background(), dial.HangUpTimeout)
		if _, rollbackErr := conn.Exec(ctx, "ROLLBACK"); rollbackErr != nil {
			dial.HangUp(conn)
		}
		cancel()
	}
	if conn.IsClosed() {
		l.lose(conn, err)
	}
	<-l.turn
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leave()
}

// lose is called by who has the connection.
func (l *Line) lose(conn *pgx.Conn, err error) {
	dial.HangUp(conn)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != conn {
		return
	}
	l.conn, l.why = nil, err
	close(l.lost)
	l.quiet.Broadcast()
	for e := range l.ears {
		e.signal()
	}
}

// attend waits for notifications while nobody wants the connection: so a connection that ends is noticed at once, too.
func (l *Line) attend(conn *pgx.Conn) {
	for {
		l.mu.Lock()
		for l.wanted > 0 && l.conn == conn {
			l.quiet.Wait()
		}
		if l.conn != conn {
			l.mu.Unlock()
			return
		}
		ctx, hush := context.WithCancel(context.Background())
		l.hush = hush
		l.mu.Unlock()

		l.turn <- struct{}{} // who has come since has ended ctx, and has it before or after this
		var err error
		if !conn.IsClosed() {
			err = conn.PgConn().WaitForNotification(ctx)
		}
		if conn.IsClosed() || err != nil && ctx.Err() == nil {
			l.lose(conn, err)
		}
		<-l.turn
		l.mu.Lock()
		l.hush = nil
		l.mu.Unlock()
		hush()
	}
}

// Drop gives the connection up, so that its owner opens another.
func (l *Line) Drop(err error) {
	conn, takeErr := l.take(context.Background(), nil)
	if takeErr != nil {
		return // it is lost
	}
	dial.HangUp(conn)
	l.give(conn, err)
}

// Close runs last with the connection, if there is one that is free soon, and closes it. The owner opens no other.
func (l *Line) Close(last func(context.Context, *pgx.Conn)) {
	ctx, cancel := context.WithTimeout(context.Background(), dial.HangUpTimeout)
	defer cancel()
	conn, err := l.take(ctx, nil)
	if err == nil {
		last(ctx, conn)
		dial.HangUp(conn)
		l.give(conn, errClosed)
	} else {
		l.mu.Lock()
		stuck := l.conn
		l.mu.Unlock()
		if stuck != nil { // a statement hangs: its end is that of the connection
			_ = stuck.PgConn().Conn().Close()
		}
	}
	l.attending.Wait()
}

var errClosed = errors.New("the relay's connection to the database is closed")

// Silence is how long the server lets the session be silent: a frozen process must not keep its locks for long. The
// owner of the line has heartbeats more often.
const Silence = 15 * time.Second

// Rest takes the lock of sessions that rest (relay/polling), once for all that rest on the connection.
func (l *Line) Rest(ctx context.Context, conn *pgx.Conn, key int32) (held bool, err error) {
	err = l.On(ctx, conn, func(ctx context.Context) error {
		if held = l.resting(0) > 0; !held {
			if err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock($1, 1)", key).Scan(&held); err != nil {
				return err
			}
		}
		if held {
			l.resting(1)
		}
		return nil
	})
	return held, err
}

// Rise gives the lock back when the last one does.
func (l *Line) Rise(ctx context.Context, conn *pgx.Conn, key int32) error {
	return l.On(ctx, conn, func(ctx context.Context) error {
		if l.resting(-1) > 0 {
			return nil
		}
		_, err := conn.Exec(ctx, "SELECT pg_advisory_unlock($1, 1)", key)
		return err
	})
}

func (l *Line) resting(change int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rests += change
	return l.rests
}

// Apart notes that one more of those who use the line has connections of its own, or one less.
func (l *Line) Apart(change int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.apart += change
}

// Calm reports whether little happens: somebody rests on the connection, and nobody has another one.
func (l *Line) Calm() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn != nil && l.rests > 0 && l.apart == 0
}

// Calls counts the notifications.
func (l *Line) Calls() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.called
}

// Ear hears of notifications, and of the loss of the connection.
type Ear struct {
	C     chan struct{} // signalled by each
	calls atomic.Int64
}

// Listen returns an ear, which hears until Deafen.
func (l *Line) Listen() *Ear {
	e := &Ear{C: make(chan struct{}, 1)}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ears[e] = struct{}{}
	return e
}

// Deafen ends Listen.
func (l *Line) Deafen(e *Ear) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.ears, e)
}

// ring tells all ears. It may be called while somebody has the connection, whose statement is answered.
func (l *Line) ring() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.called++
	for e := range l.ears {
		e.calls.Add(1)
		e.signal()
	}
}

func (e *Ear) signal() {
	select {
	case e.C <- struct{}{}:
	default:
	}
}

// Called reports whether a notification has come since the last call, and forgets it.
func (e *Ear) Called() bool {
	select { // before it looks, so that what comes meanwhile is signalled
	case <-e.C:
	default:
	}
	return e.calls.Swap(0) > 0
}

// Has reports whether the line still has a connection.
func (l *Line) Has(conn *pgx.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn == conn
}
