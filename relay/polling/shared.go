package polling

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgoutbox/outbox/internal/cursors"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/lease"
	"github.com/pgoutbox/outbox/relay/internal/line"
	"github.com/pgoutbox/outbox/relay/internal/messages"
	"github.com/pgoutbox/outbox/schema"
)

// A session of a relay with a registration uses the connection of that while it has little to do. With it, it polls,
// reads the messages of a poll, settles them and renews its lease. When messages go on coming, or there are more than
// one poll takes, it opens two connections of its own, one that reads and one that writes, and closes them when it has
// had nothing to do for a while. So no long statement is on the shared connection, and many sessions under load don't
// wait for each other.
const (
	// sharedBelow: two messages that come within this time are a reason for connections of the session's own.
	sharedBelow = time.Second

	// sharedAfter is how long a session keeps them when nothing comes.
	sharedAfter = 5 * time.Second
)

// sharing is what a session knows of the connections of its own that it opens. The zero value is that of a session that
// has them or opens none.
type sharing struct {
	never   bool          // it has connections of its own all the time
	writes  bool          // on the shared connection, too
	apart   bool          // the registration knows that it doesn't
	again   time.Time     // before, it doesn't try to open or close any
	opening chan struct{} // closed when opened has the outcome; nil: it opens none
	opened  ownConnections
	last    atomic.Int64 // when it settled something, in nanoseconds of the time of day

	resting atomic.Pointer[line.Line] // the one that calls it, while it does nothing but wait
	free    free                      // used by Controls
}

// ownConnections are those that a session has when it doesn't share.
type ownConnections struct {
	reader  *reader
	writing *pgx.Conn
	err     error
}

func (o *ownConnections) hangUp() {
	if o.reader != nil {
		o.reader.hangUp()
	}
	dial.HangUp(o.writing)
	*o = ownConnections{}
}

func (g *sharing) settled(now time.Time) { g.last.Store(now.UnixNano()) }

// setApart notes whether the session writes on a connection of its own.
func (s *snapshotSession) setApart(is bool) {
	r := s.source.cfg.Registration
	if r == nil || s.sharing.apart == is {
		return
	}
	s.sharing.apart = is
	change := -1
	if is {
		change = 1
	}
	r.Line().Apart(change)
}

// close waits for what is being opened, and closes it. No Next runs.
func (g *sharing) close() {
	if g.opening != nil {
		<-g.opening
		g.opened.hangUp()
	}
}

// share is called before each poll and each page: it takes over the connections that have been opened, opens them where
// they are needed, and gives them up where they aren't.
func (s *snapshotSession) share(ctx context.Context) error {
	if s.source.cfg.Registration == nil || s.drainTo != nil || s.sharing.never {
		return nil
	}
	s.mu.Lock()
	w, _ := s.cursor.unread()
	backlog, windows := w != nil, len(s.cursor.windows)
	s.mu.Unlock()
	g := &s.sharing
	if s.reader.line != nil && backlog { // pages are read in advance, and with statements that take long
		g.again = time.Time{}
		s.grow(ctx)
		select {
		case <-g.opening:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := g.opened.err; err != nil {
			g.opening, g.opened = nil, ownConnections{}
			return err
		}
	}
	if g.opening != nil {
		select {
		case <-g.opening:
			g.opening = nil
			return s.adopt(ctx)
		default:
			return nil
		}
	}
	busyAt := s.foundAt
	if settled := time.Unix(0, g.last.Load()); settled.After(busyAt) {
		busyAt = settled
	}
	if time.Since(busyAt) < sharedAfter || backlog || windows > 0 || s.log != nil || s.asked.IsZero() || time.Now().Before(g.again) {
		return nil
	}
	if s.reader.line == nil {
		shared := s.source.sharedReader(ctx, s.lease.Link, s.pool, s.group, s.groups)
		if shared == nil {
			g.again = time.Now().Add(sharedAfter)
			return nil
		}
		s.exchange(shared)
	}
	if g.writes {
		return nil
	}
	g.writes = true
	s.setApart(false)
	return s.lease.Share(ctx, s.reader.line, s.reader.conn, func() bool { return g.resting.Load() != nil })
}

// grow begins to open connections of the session's own, unless it has them.
func (s *snapshotSession) grow(ctx context.Context) {
	g := &s.sharing
	if s.reader.line == nil || g.opening != nil || time.Now().Before(g.again) {
		return
	}
	g.opening = make(chan struct{})
	writing := g.writes
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dial.PrepareWithin)
	unlink := context.AfterFunc(s.life, cancel)
	go func() {
		defer close(g.opening)
		defer unlink()
		defer cancel()
		g.opened = s.open(ctx, writing)
	}()
}

func (s *snapshotSession) open(ctx context.Context, writing bool) (o ownConnections) {
	src := s.source
	if o.reader, o.err = src.reader(ctx, s.lease.Link, s.pool, s.group, s.groups); o.err != nil || !writing {
		return o
	}
	if o.writing, o.err = connect(ctx, src.conn, src.owner); o.err == nil {
		o.err = src.readyToWrite(ctx, o.writing)
	}
	var here string
	if o.err == nil {
		here, o.err = cursors.Server(ctx, o.writing)
	}
	if o.err == nil && here != s.lease.Link.Server {
		o.err = lease.ErrServer
	}
	if err := o.err; err != nil {
		o.hangUp()
		o.err = err
	}
	return o
}

// adopt takes over the connections that were opened. If they could not be, the session goes on with the shared one, and
// tries again later.
func (s *snapshotSession) adopt(ctx context.Context) error {
	g := &s.sharing
	o := g.opened
	g.opened = ownConnections{}
	if o.err != nil {
		s.source.cfg.Logger.Warn("no further connection could be opened; messages are read and settled on the relay's only one",
			"destination", s.source.destination, "error", o.err)
		g.again = time.Now().Add(sharedAfter)
		return nil
	}
	s.exchange(o.reader)
	if o.writing == nil {
		return nil
	}
	g.writes = false
	s.setApart(true)
	return s.lease.Own(ctx, o.writing)
}

// exchange makes the session read with another reader. It is called by Next.
func (s *snapshotSession) exchange(to *reader) {
	from := s.reader
	to.rest.goOn(from.rest)
	to.drawing, to.chunking = from.drawing, from.chunking
	to.rest.enter()
	from.rest.leave()
	from.hangUp()
	s.reader = to
	s.resting, s.pollAt = false, time.Time{} // nothing calls until the next poll
	s.rests()
}

// keepOwn makes a session have connections of its own all the time. Its Next has not been called.
func (s *snapshotSession) keepOwn(ctx context.Context) error {
	s.sharing.never = true
	if s.reader.line == nil {
		return nil
	}
	own, err := s.source.reader(ctx, s.lease.Link, s.pool, s.group, s.groups)
	if err != nil {
		return err
	}
	s.reader.hangUp()
	s.reader = own
	return nil
}

// readyToWrite prepares a connection that settles.
func (s *Snapshot) readyToWrite(ctx context.Context, conn *pgx.Conn) error {
	if err := s.boundIdleTransactions(ctx, conn); err != nil {
		return err
	}
	sql := schema.WithTableOf(s.destination, lease.WriteCursorSQL)
	if _, err := conn.Prepare(ctx, sql, sql); err != nil {
		return fmt.Errorf("prepare the lease: %w", err)
	}
	return nil
}

// sharedReader returns a reader on the connection of the registration, or nil if that can't be used now.
func (s *Snapshot) sharedReader(ctx context.Context, writing *lease.Link, pool *messages.Pool, group, groups int) (r *reader) {
	if s.cfg.Registration == nil {
		return nil
	}
	ln := s.cfg.Registration.Line()
	err := ln.Do(ctx, func(conn *pgx.Conn) (err error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), line.Within)
		defer cancel()
		here, err := cursors.Server(ctx, conn)
		if err != nil {
			return err
		}
		if here != writing.Server {
			return lease.ErrServer
		}
		r, err = newSharedReader(ctx, ln, conn, pool, s.destination, group, groups)
		return err
	})
	if err != nil {
		s.cfg.Logger.Debug("the relay's connection is not used to read", "destination", s.destination, "error", err)
		return nil
	}
	return r
}

// newSharedReader is called by who has the connection of the line.
func newSharedReader(ctx context.Context, ln *line.Line, conn *pgx.Conn, pool *messages.Pool, destination string,
	group, groups int) (*reader, error) {
	r := (&reader{conn: conn, line: ln, pool: pool, destination: destination, chunking: usualCut}).forGroup(group, groups)
	for _, s := range []struct {
		to        **pgconn.StatementDescription
		name, sql string
	}{{&r.keep, "outbox_keep ", keepSQL}, {&r.poll, "outbox_poll ", pollSQL}, {&r.flush, "outbox_flush ", flushSQL}} {
		name := s.name + schema.TableOf(destination) // prepared once for all destinations of a table
		if known, ok := conn.PgConn().CustomData()[name].(*pgconn.StatementDescription); ok {
			*s.to = known
			continue
		}
		sd, err := conn.PgConn().Prepare(ctx, name, schema.WithTableOf(destination, s.sql), nil)
		if err != nil {
			return nil, fmt.Errorf("prepare %s: %w", name, err)
		}
		conn.PgConn().CustomData()[name] = sd
		*s.to = sd
	}
	var err error
	b := &lineBell{line: ln, conn: conn, ear: ln.Listen()}
	if r.rest, err = restOn(ctx, conn, b); err != nil {
		ln.Deafen(b.ear)
		return nil, err
	}
	return r, nil
}

// free is what is known of a destination that has no controls.
type free struct {
	line  *line.Line
	calls int64 // as many notifications had come before the look
	at    time.Time
}

// freeFor is how long a session that rests believes that there are no controls: a verb that makes one notifies it.
const freeFor = 5 * time.Second

// controls reads the controls, or knows that there are none, since nobody has called since it looked.
func (s *snapshotSession) controls(read func() (relay.Controls, error)) (relay.Controls, error) {
	g, resting := &s.sharing, s.sharing.resting.Load()
	if resting == nil {
		g.free = free{}
		return read()
	}
	calls := resting.Calls()
	if g.free.line == resting && g.free.calls == calls && time.Since(g.free.at) < freeFor {
		return relay.Controls{}, nil
	}
	now := time.Now()
	c, err := read()
	if g.free = (free{}); err == nil && len(c.Pauses) == 0 && c.Rate == 0 {
		g.free = free{resting, calls, now}
	}
	return c, err
}

// rests notes whether the session does nothing but wait for notifications on the shared connection.
func (s *snapshotSession) rests() {
	if s.reader.line != nil && s.sharing.writes && s.reader.rest.held {
		s.sharing.resting.Store(s.reader.line)
	} else {
		s.sharing.resting.Store(nil)
	}
}

// with runs the statements of f. On a shared connection they go on when ctx ends.
func (r *reader) with(ctx context.Context, f func(context.Context) error) error {
	if r.line == nil {
		return f(ctx)
	}
	return r.line.On(ctx, r.conn, f)
}

// lineBell is a connection that sessions share.
type lineBell struct {
	line *line.Line
	conn *pgx.Conn
	ear  *line.Ear
}

func (b *lineBell) take(ctx context.Context, key int32) (bool, error) {
	return b.line.Rest(ctx, b.conn, key)
}

func (b *lineBell) drop(ctx context.Context, key int32) error { return b.line.Rise(ctx, b.conn, key) }

func (b *lineBell) notified() bool { return b.ear.Called() }

func (b *lineBell) listen(context.Context) (<-chan struct{}, func()) {
	if b.failure() != nil {
		gone := make(chan struct{})
		close(gone)
		return gone, func() {}
	}
	return b.ear.C, func() {}
}

func (b *lineBell) failure() error {
	if b.line.Has(b.conn) {
		return nil
	}
	return errors.Join(line.ErrDown, b.line.Why())
}

func (b *lineBell) close(held bool, key int32) {
	b.line.Deafen(b.ear)
	if !held {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), dial.HangUpTimeout)
	defer cancel()
	_ = b.drop(ctx, key) // or else the lock goes with the connection
}
