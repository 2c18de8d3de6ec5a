package polling

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/cursors"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/controls"
	"github.com/pgoutbox/outbox/relay/internal/holds"
	"github.com/pgoutbox/outbox/relay/internal/lease"
	"github.com/pgoutbox/outbox/relay/internal/messages"
)

// snapshotSession owns a shard group. It alone writes the group's cursor, so the cursor in memory is authoritative, and
// the session stores it.
//
// Next runs in one goroutine and Settle in another; they share the cursor. Locks: lease.mu, then mu.
type snapshotSession struct {
	source        *Snapshot
	group, groups int
	lease         *lease.Lease
	reader        *reader
	pool          *messages.Pool
	walk          holds.Walk

	// drainTo, if not nil, is the end: the session reads and settles what this snapshot sees, and then Next returns
	// errDrained.
	drainTo *cursors.Snapshot

	mu     sync.Mutex
	cursor cursor

	// signalled when Settle has made room for another window
	settled chan struct{}

	// life is the context of queries that read ahead. end ends it, and with it the reader's connection.
	life context.Context
	end  context.CancelFunc

	// Only Next uses the rest.
	page    *messages.Page   // the page of which rest is still to be returned
	rest    []relay.Delivery // by id
	log     *backlog         // of the window that is being read, if it is large
	bytes   int              // of a message, by recent ones; 0: none was read
	pause   time.Duration    // before the next poll
	pollAt  time.Time
	asked   time.Time // when the last poll began; zero: none has
	resting bool      // pollAt was set while notifications called

	flushAgain time.Time     // before this time, waiting for a flush is pointless
	inVain     time.Duration // how long it is pointless after another vain wait; 0: the last wait was not in vain
	foundAt    time.Time     // when a poll last found something
	uncalled   time.Time     // when a poll last found something of which no notification had come
	sharing    sharing
	alarm      *alarm
	nothing    bool // the first poll has found nothing, and Next has not returned since
	looked     bool // the first poll is over
}

var _ relay.Coupled = (*snapshotSession)(nil)

// cursor is the position of a session. Everything that prev sees is settled. A window holds what its snapshot sees and
// the previous one doesn't.
type cursor struct {
	prev    cursors.Snapshot
	windows []window // open, oldest first; all but the last have been read to their end

	// base is the end of what was read: everything that it sees is settled or in a window. Polls that find nothing move
	// it past the last window.
	base cursors.Snapshot

	ordinals uint64
}

type window struct {
	ordinal  uint64
	end      cursors.Snapshot
	complete bool  // all its messages were read
	last     int64 // the id of the last message read, at least settled
	settled  int64 // messages up to this id are settled

	settledAt time.Time // when the message of settled was written; zero after a restart
}

// newCursor returns the cursor that at describes; its windows are numbered from ordinals.
func newCursor(at cursors.Position, ordinals uint64) (cursor, error) {
	prev, err := cursors.Parse(at.Prev)
	if err != nil {
		return cursor{}, err
	}
	c := cursor{prev: prev, base: prev, ordinals: ordinals}
	for i, text := range at.Windows {
		end, err := cursors.Parse(text)
		if err != nil {
			return cursor{}, err
		}
		w := c.open(end)
		if i == 0 && at.LastID > 0 { // 0 means that nothing is settled; ids inserted by hand can be below 0
			w.last, w.settled = at.LastID, at.LastID
		}
	}
	return c, nil
}

// open adds a window that ends at end.
func (c *cursor) open(end cursors.Snapshot) *window {
	c.ordinals++
	c.windows = append(c.windows, window{ordinal: c.ordinals, end: end, last: math.MinInt64, settled: math.MinInt64})
	c.base = end
	return &c.windows[len(c.windows)-1]
}

// unread returns the first window with more messages to return, and the snapshot before it.
func (c *cursor) unread() (w *window, before *cursors.Snapshot) {
	before = &c.prev
	for i := range c.windows {
		if !c.windows[i].complete {
			return &c.windows[i], before
		}
		before = &c.windows[i].end
	}
	return nil, nil
}

func (c *cursor) window(ordinal uint64) *window {
	for i := range c.windows {
		if c.windows[i].ordinal == ordinal {
			return &c.windows[i]
		}
	}
	return nil
}

// settle notes that d, and everything that was returned before it, is settled.
func (c *cursor) settle(d *relay.Delivery) {
	for i := range c.windows {
		w := &c.windows[i]
		if w.ordinal == d.Window {
			if d.Position > w.settled {
				w.settled, w.settledAt = d.Position, d.CreatedAt
			}
			return
		}
		if w.ordinal < d.Window {
			w.settled = w.last
		}
	}
}

// position closes the windows that are done and returns what to store.
func (c *cursor) position() cursors.Position {
	n := 0
	for n < len(c.windows) && c.windows[n].complete && c.windows[n].settled >= c.windows[n].last {
		c.prev = c.windows[n].end
		n++
	}
	c.windows = append(c.windows[:0], c.windows[n:]...)
	at := cursors.Position{}
	if len(c.windows) == 0 {
		c.prev = c.base
	} else {
		at.LastID, at.LastAt = max(c.windows[0].settled, 0), c.windows[0].settledAt
	}
	at.Prev = c.prev.Text
	for i := range c.windows {
		at.Windows = append(at.Windows, c.windows[i].end.Text)
	}
	return at
}

// passed reports whether a message is settled, by its position: everything that prev sees is settled, and so is the
// part of the oldest window before its position.
func (c *cursor) passed(xid uint64, id int64) bool {
	if c.prev.Sees(xid) {
		return true
	}
	if len(c.windows) == 0 {
		return false
	}
	w := &c.windows[0]
	return w.end.Sees(xid) && id <= w.settled
}

// crowded reports whether the next window must wait until one is closed. Small windows make latency low, but each
// window is in every write of the cursor, with all transactions that were in progress.
func (c *cursor) crowded() bool {
	const maxWindows, maxText = 16, 32 << 10
	text := 0
	for i := range c.windows {
		text += len(c.windows[i].end.Text)
	}
	return len(c.windows) >= maxWindows || text > maxText
}

// position returns what lease stores.
func (s *snapshotSession) position() cursors.Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cursor.position()
}

func (s *snapshotSession) Next(ctx context.Context, limit int) (relay.Batch, error) {
	if limit < 1 {
		return relay.Batch{}, fmt.Errorf("polling: Next was asked for %d messages", limit)
	}
	s.reader.rest.enter()
	defer func() { s.reader.rest.leave() }() // it may be that of another reader then
	for len(s.rest) == 0 {
		if err := s.lease.Failure(); err != nil {
			return relay.Batch{}, err
		}
		if err := s.share(ctx); err != nil {
			return relay.Batch{}, err
		}
		// Each page has a fixed cost, so a small batch is a part of a page.
		size := max(limit, s.source.minPage)
		pg, err := s.readWindow(ctx, size)
		switch {
		case err != nil || pg != nil:
		case s.drainTo != nil:
			err = s.drain(ctx)
		default:
			pg, err = s.poll(ctx, size)
			if s.nothing {
				s.nothing = false
				return relay.Batch{}, err // the caller learns that nothing has piled up
			}
		}
		if err != nil {
			return relay.Batch{}, err
		}
		if pg != nil {
			s.page, s.rest = pg, pg.Deliveries
			pg.Start()
		}
	}
	batch := s.pool.Cut(s.page, &s.rest, limit)
	batch.More = len(s.rest) > 0 || s.log != nil
	return batch, nil
}

// readWindow returns the next page of windows that were not read to their end: a large one, or, after a restart, those
// that the cursor had open. It returns nil if there are none.
func (s *snapshotSession) readWindow(ctx context.Context, limit int) (*messages.Page, error) {
	for {
		s.mu.Lock()
		w, before := s.cursor.unread()
		if w == nil {
			s.mu.Unlock()
			return nil, nil
		}
		ordinal, last, end, prev := w.ordinal, w.last, w.end, *before
		s.mu.Unlock()

		if s.log == nil {
			log, err := newBacklog(ctx, s.reader, &prev, &end, last)
			if err != nil {
				return nil, err
			}
			s.log = log
		}
		// Requests in advance must outlive this call.
		interrupted := context.AfterFunc(ctx, s.end)
		pg, err := s.log.read(s.life, s.reader, s.limit(limit), s.source.cfg.PageBytes)
		interrupted()
		if err != nil {
			return nil, errors.Join(ctx.Err(), err)
		}
		if pg != nil {
			s.observe(len(pg.Deliveries), pg.Size())
			stamp(pg, ordinal)
		}
		done := s.log.done()
		if done {
			s.log = nil
		}

		s.mu.Lock()
		w = s.cursor.window(ordinal) // it is still open, because it isn't complete
		if pg != nil {
			w.last = pg.Deliveries[len(pg.Deliveries)-1].Position
		}
		w.complete = done
		s.mu.Unlock()
		if pg != nil {
			return pg, nil
		}
	}
}

// poll waits until a poll is due and looks for committed messages. It returns nil if there are none, or so many that
// they have to be read as a window.
func (s *snapshotSession) poll(ctx context.Context, limit int) (*messages.Page, error) {
	s.mu.Lock()
	crowded, base := s.cursor.crowded(), s.cursor.base
	s.mu.Unlock()
	rest := s.reader.rest
	if crowded { // nothing is read until a settlement, so notifications would be to no avail
		if err := rest.end(ctx); err != nil {
			return nil, err
		}
	}
	if s.resting && !rest.held { // the lock was given back since, so nobody calls
		s.resting, s.pause, s.pollAt = false, s.source.cfg.PollBusy, time.Time{}
	}
	called, err := s.await(ctx, crowded)
	if err != nil || crowded {
		return nil, err
	}
	since := time.Since(s.foundAt)
	if err := rest.begin(ctx, since); err != nil {
		return nil, err
	}
	asked := time.Now()
	s.asked = asked
	waited := s.resting && s.reader.rest.held
	found, err := s.reader.pollWindow(ctx, &base, s.limit(limit), s.source.cfg.PageBytes)
	if err != nil {
		return nil, err
	}
	pg, large := found.page, found.large
	if pg != nil {
		s.observe(len(pg.Deliveries), pg.Size())
	}
	if err == nil && large {
		err = rest.end(ctx) // the connection is in use for long
	} else if err == nil {
		err = rest.polled(ctx, since, pg != nil, called)
	}
	if err != nil {
		if pg != nil {
			s.pool.Put(pg)
		}
		return nil, err
	}
	if large {
		// The window is read by pages from its start, because these rows are in no order.
		if pg != nil {
			s.pool.Put(pg)
			pg = nil
		}
	}
	if found := pg != nil || large; found && waited && !called {
		s.uncalled = asked
	}
	s.schedule(asked, pg != nil || large)
	if pg != nil && since < sharedBelow {
		s.grow(ctx)
	}
	if pg == nil && !large {
		// Nothing is to be settled, so nothing is written: the next write of the cursor includes this.
		s.mu.Lock()
		s.cursor.base = found.next
		s.mu.Unlock()
		s.nothing, s.looked = s.source.cfg.FirstEmpty && !s.looked, true
		return nil, nil
	}

	if pg != nil && !found.onDisk {
		if found.onDisk, err = s.awaitFlush(ctx, found.logged); err != nil {
			s.pool.Put(pg)
			return nil, err
		}
	}

	var ordinal uint64
	open := func() cursors.Position {
		s.mu.Lock()
		defer s.mu.Unlock()
		w := s.cursor.open(found.next)
		ordinal = w.ordinal
		if pg != nil {
			w.complete = true
			w.last = pg.Deliveries[len(pg.Deliveries)-1].Position
		}
		return s.cursor.position()
	}
	if pg != nil && found.onDisk {
		// The settlement stores the window. If this process dies before, a successor opens a larger window, in which
		// the messages of a key have the same order.
		open()
	} else if err = s.lease.Write(context.WithoutCancel(ctx), 0, open, nil); err != nil {
		// This commit flushes every commit that the window sees, even those with synchronous_commit=off, so none can
		// vanish after its message was published. It must not end with ctx: the connection would be lost, and it is
		// still needed to settle.
		return nil, err
	}
	if pg != nil {
		stamp(pg, ordinal)
	}
	return pg, nil
}

// awaitFlush waits a moment for other sessions to flush the log up to end. Some don't: their transactions are long, or
// don't wait for the disk. After a second vain wait it isn't tried again for inVainFirst, and twice as long each time.
func (s *snapshotSession) awaitFlush(ctx context.Context, end []byte) (onDisk bool, err error) {
	if time.Now().Before(s.flushAgain) {
		return false, nil
	}
	onDisk, err = s.reader.flushed(ctx, end, s.alarm)
	switch {
	case err != nil:
	case onDisk:
		s.inVain = 0
	case s.inVain == 0:
		s.inVain = inVainFirst
	default:
		s.flushAgain = time.Now().Add(s.inVain)
		s.inVain = min(2*s.inVain, inVainLast)
	}
	return onDisk, err
}

const (
	inVainFirst = 20 * time.Millisecond
	inVainLast  = time.Second
)

var errDrained = errors.New("polling: everything up to the session's end is settled")

// drain opens the last window, and waits until everything is settled.
func (s *snapshotSession) drain(ctx context.Context) error {
	s.mu.Lock()
	opened := s.cursor.base.Text == s.drainTo.Text
	s.mu.Unlock()
	if !opened {
		last := func() cursors.Position {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.cursor.open(*s.drainTo)
			return s.cursor.position()
		}
		return s.lease.Write(context.WithoutCancel(ctx), 0, last, nil)
	}
	// The window may have been empty; then nothing was written that closes it.
	if err := s.lease.Write(context.WithoutCancel(ctx), 0, s.position, nil); err != nil {
		return err
	}
	s.mu.Lock()
	settled := len(s.cursor.windows) == 0
	s.mu.Unlock()
	if settled {
		return errDrained
	}
	_, err := s.await(ctx, true)
	return err
}

func stamp(pg *messages.Page, ordinal uint64) {
	for i := range pg.Deliveries {
		pg.Deliveries[i].Window = ordinal
	}
}

// limit returns how many messages to read so that they have about PageBytes, at most most. Bytes beyond PageBytes are
// read again, so a session, which doesn't know the messages' size yet, begins with few.
func (s *snapshotSession) limit(most int) int {
	const unknownSize = 256
	if s.bytes == 0 {
		return min(most, unknownSize)
	}
	return min(most, 1+s.source.cfg.PageBytes/s.bytes)
}

// observe learns the size of messages: quickly when they grow, slowly when they shrink.
func (s *snapshotSession) observe(messages, bytes int) {
	if messages > 0 {
		size := 1 + bytes/messages
		s.bytes = max(size, s.bytes-s.bytes/4)
	}
}

// busyFor is how many pauses of PollBusy a session continues at that pace after it found something: messages that come
// a few milliseconds apart are worth it, and an idle database is left alone.
const busyFor = 25

// schedule sets the time of the poll after the one that began at a time: polls come at a beat. One that is slow is
// followed by a pause as long as itself, at most s.pause.
func (s *snapshotSession) schedule(asked time.Time, found bool) {
	cfg := &s.source.cfg
	now := time.Now()
	switch {
	case found:
		s.pause, s.foundAt = cfg.PollBusy, now
	case s.reader.rest.held:
	case now.Sub(s.foundAt) > busyFor*cfg.PollBusy:
		s.pause = min(max(s.pause+s.pause/4, cfg.PollBusy), cfg.PollIdle)
	}
	if s.resting = s.reader.rest.held; s.resting {
		s.pause = max(restIdle, cfg.PollIdle)
		if now.Sub(s.foundAt) > restLong && now.Sub(s.uncalled) > restWary {
			s.pause = max(restMost, cfg.PollIdle)
		}
	}
	s.rests()
	took := now.Sub(asked)
	s.pollAt = asked.Add(max(s.pause, took+min(took, s.pause)))
}

// await waits until the next poll is due, a wake-up or a notification comes; if crowded, until something was settled.
// called means that it was a notification.
func (s *snapshotSession) await(ctx context.Context, crowded bool) (called bool, err error) {
	var due <-chan struct{}
	var calls <-chan struct{}
	wake := s.source.cfg.Wake
	if crowded {
		wake = nil
	} else {
		wait := time.Until(s.pollAt)
		if rest := s.reader.rest; rest.listens(s.pause) {
			if rest.notified() {
				return true, ctx.Err()
			}
			var stop func()
			calls, stop = rest.listen(ctx)
			defer stop()
		}
		if wait <= 0 {
			return false, ctx.Err()
		}
		s.alarm.reset(wait)
		due = s.alarm.C
	}
	for {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-s.lease.Ended():
			return false, s.lease.Failure()
		case <-due:
			return false, nil
		case <-calls:
			s.reader.rest.notified()
			err := s.reader.rest.failure()
			return err == nil, err
		case _, open := <-wake:
			if open {
				s.pause = 0
				return false, nil
			}
			wake = nil
		case <-s.settled:
			if crowded {
				return false, nil
			}
		}
	}
}

func (s *snapshotSession) Settle(ctx context.Context, settlement relay.Settlement) error {
	return s.settle(ctx, settlement, nil)
}

// settle is Settle with a condition, which runs in the same transaction if that does more than move the cursor.
func (s *snapshotSession) settle(ctx context.Context, settlement relay.Settlement, condition func(context.Context, pgx.Tx) error) error {
	move := func() cursors.Position {
		s.mu.Lock()
		defer s.mu.Unlock()
		if settlement.Through != nil {
			s.cursor.settle(settlement.Through)
		}
		return s.cursor.position()
	}
	var more func(context.Context, pgx.Tx) error
	if holds.HasOutcomes(&settlement) {
		more = func(ctx context.Context, tx pgx.Tx) error {
			if condition != nil {
				if err := condition(ctx, tx); err != nil {
					return err
				}
			}
			return holds.Careful(ctx, tx, &settlement, func(ctx context.Context, tx pgx.Tx, settlement *relay.Settlement) error {
				return holds.Store(ctx, tx, s.source.destination, settlement)
			})
		}
	}
	s.sharing.settled(time.Now())
	if err := s.lease.Write(ctx, settlement.Delivered, move, more); err != nil {
		return err
	}
	select {
	case s.settled <- struct{}{}:
	default:
	}
	return nil
}

func (s *snapshotSession) Lanes(ctx context.Context, after string, limit int) (lanes []string, next string, err error) {
	err = s.lease.Query(func(conn *pgx.Conn) error {
		lanes, next, err = s.walk.Page(ctx, conn, s.source.destination, s.group, s.groups, after, limit)
		return err
	})
	return lanes, next, err
}

func (s *snapshotSession) Due(ctx context.Context, q relay.DueQuery) (lanes []relay.HeldLane, err error) {
	err = s.lease.Query(func(conn *pgx.Conn) error {
		lanes, err = holds.Due(ctx, conn, s.source.destination, s.group, s.groups, &q)
		return err
	})
	return lanes, err
}

func (s *snapshotSession) Held(ctx context.Context, lanes []string, limit int) (lists [][]relay.Delivery, err error) {
	err = s.lease.Query(func(conn *pgx.Conn) error {
		lists, err = holds.Held(ctx, conn, s.source.destination, lanes, limit)
		return err
	})
	return lists, err
}

func (s *snapshotSession) Controls(ctx context.Context) (relay.Controls, error) {
	return s.controls(func() (c relay.Controls, err error) {
		err = s.lease.Query(func(conn *pgx.Conn) error {
			c, err = controls.Read(ctx, conn, s.source.destination, s.groups)
			return err
		})
		return c, err
	})
}

func (s *snapshotSession) Recognize(ctx context.Context, identity []string) error {
	return s.lease.Recognize(ctx, s.source.owner, identity)
}

// Confirm renews the lease; it fails if another relay has it.
func (s *snapshotSession) Confirm(ctx context.Context) error {
	return s.lease.Write(ctx, 0, s.position, nil)
}

// Passed reports whether a message is before the cursor, by its transaction and id.
func (s *snapshotSession) Passed(ref uint64, position int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cursor.passed(ref, position)
}

func (s *snapshotSession) Whole() bool { return s.groups == 1 }

func (s *snapshotSession) Expires() time.Time { return s.lease.Expires() }

func (s *snapshotSession) Close(ctx context.Context) error {
	s.end()
	s.sharing.close()
	s.setApart(false)
	s.reader.hangUp()
	s.alarm.end()
	err := s.lease.Release(ctx, s.position)
	s.lease.Link.HangUp()
	s.source.released()
	return err
}
