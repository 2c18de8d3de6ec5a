package mapped

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/mapped/internal/existing"
	"github.com/pgoutbox/outbox/relay/mapped/internal/link"
	"github.com/pgoutbox/outbox/relay/mapped/internal/marking"
	"github.com/pgoutbox/outbox/relay/mapped/internal/pending"
)

// holdTransactions is how many lanes that were set aside can be tried again at the same time.
const holdTransactions = 2

// skipLockedSession shares the table with other relays: it locks rows FOR UPDATE SKIP LOCKED, publishes them, marks or
// deletes them, and then commits. Locks: no goroutine waits for a link while it holds mu.
//
// Several such transactions are open at the same time, so that one batch is read while others are published. A
// transaction commits when its whole batch is settled. So after a crash, some messages that were settled may come again
// too. While the broker doesn't answer, its transactions stay open, and vacuum waits for them.
type skipLockedSession struct {
	*session
	alone *marking.Statements // stores outcomes that the server has refused, of rows that are not locked

	broken    chan struct{} // closed when a connection has ended
	breakOnce sync.Once
	freed     chan struct{} // signalled when Settle has ended a transaction

	mu         sync.Mutex
	links      []*link.Link
	idle       []*link.Link
	open       []*transaction // those with batches, oldest first
	committing []*transaction // those that are being committed
	loads      map[string]*transaction
}

var _ strategy = (*skipLockedSession)(nil)

func newSkipLocked(x *session) relay.Session {
	cfg := &x.source.cfg
	s := &skipLockedSession{session: x, freed: make(chan struct{}, 1), broken: make(chan struct{})}
	s.strategy = s
	s.prepare()
	s.alone = marking.NewStatements(s.table, false, false, "", &s.source.receipts, cfg.Logger)
	s.listener = s.source.listen()
	s.pace = pace{cfg: cfg, broken: s.broken, heard: s.listener.heard}
	s.adopt(s.conn)
	return s
}

// transaction is an open transaction and the outcomes that are written in it before it commits.
type transaction struct {
	link        *link.Link
	first, last uint64 // ordinals of its batch
	rows        []existing.Row
	left        int // how many rows are not settled
	outcomes    marking.Outcomes
}

// adopt makes a link of a connection.
func (s *skipLockedSession) adopt(conn *pgx.Conn) {
	l := link.Keep(conn, s.source.cfg.Lease,
		func(ctx context.Context, conn *pgx.Conn) error { return existing.RefuseHidden(ctx, conn, s.table.Name) }, s.watch)
	s.mu.Lock()
	s.links, s.idle = append(s.links, l), append(s.idle, l)
	s.mu.Unlock()
	go func() {
		<-l.Ended()
		s.breakOnce.Do(func() { close(s.broken) })
	}()
}

// idleLink returns an idle link, and opens a new one if the limit allows. Otherwise it returns nil.
func (s *skipLockedSession) idleLink(ctx context.Context, forHolds bool) (*link.Link, error) {
	for {
		s.mu.Lock()
		mayHave := len(s.open) < s.source.cfg.Transactions
		if forHolds {
			mayHave = len(s.loads) < holdTransactions
		}
		n := len(s.idle)
		if !mayHave {
			s.mu.Unlock()
			return nil, nil
		}
		if n > 0 {
			l := s.idle[n-1]
			s.idle = s.idle[:n-1]
			s.mu.Unlock()
			return l, nil
		}
		s.mu.Unlock()
		conn, err := s.source.connect(ctx, &s.pooled)
		if err != nil {
			return nil, err
		}
		s.adopt(conn)
	}
}

func (s *skipLockedSession) giveBack(l *link.Link) {
	s.mu.Lock()
	s.idle = append(s.idle, l)
	s.mu.Unlock()
	select {
	case s.freed <- struct{}{}:
	default:
	}
}

// failure returns why the session has ended, or nil.
func (s *skipLockedSession) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.links {
		if err := l.Failure(); err != nil {
			return err
		}
	}
	return nil
}

// Controls ends the session when it has rows locked that a pause keeps from being published: the transactions would
// stay open for as long as it lasts. The next session reads nothing. At the first look calls may be on their way.
func (s *skipLockedSession) Controls(ctx context.Context) (relay.Controls, error) {
	before := s.controls
	c, err := s.session.Controls(ctx)
	if err != nil || !whole(before) || !whole(c) {
		return c, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.open) > 0 {
		return c, relay.ErrLeaseLost
	}
	return c, nil
}

// whole reports whether a whole destination is paused.
func whole(c relay.Controls) bool {
	return slices.ContainsFunc(c.Pauses, func(p relay.Pause) bool { return p.Topic == "" && p.Lane == "" })
}

func (s *skipLockedSession) take(ctx context.Context, limit int) ([]relay.Delivery, error) {
	l, err := s.takeForBatch(ctx)
	if l == nil || err != nil {
		return nil, err
	}
	return s.claim(ctx, l, s.reader.Page.Rows(limit))
}

// do runs f on an idle link, if there is one.
func (s *skipLockedSession) do(ctx context.Context, f func(*pgx.Conn) error) error {
	l, err := s.idleLink(ctx, true)
	if l == nil || err != nil {
		return err
	}
	if err := l.Do(f); err != nil {
		return err
	}
	s.giveBack(l)
	return nil
}

// takeForBatch waits until another transaction may be opened.
func (s *skipLockedSession) takeForBatch(ctx context.Context) (*link.Link, error) {
	if s.full = s.source.errHolds(s.holds.Size()); s.full != nil {
		s.pace.polled(false, false)
		return nil, nil
	}
	if l, err := s.idleLink(ctx, false); l != nil || err != nil {
		return l, err
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.broken:
	case <-s.freed:
	}
	return nil, nil
}

// claim begins a transaction with the next rows.
func (s *skipLockedSession) claim(ctx context.Context, l *link.Link, size int) ([]relay.Delivery, error) {
	var ds []relay.Delivery
	var rows []existing.Row
	started := time.Now()
	err := l.Do(func(conn *pgx.Conn) (err error) {
		s.reader.Conn = conn
		ctx, cancel := s.source.claiming(ctx)
		defer cancel()
		if len(s.later.All()) > 0 {
			if err := s.alone.Store(ctx, conn, &marking.Outcomes{}, &s.later); err != nil {
				return err
			}
			if s.full = s.errFull(); s.full != nil {
				return nil
			}
		}
		ds, rows, err = s.reader.Poll(ctx, size, s.pids(), s.omit, "BEGIN")
		if err == nil && len(ds) == 0 {
			_, err = conn.Exec(ctx, "ROLLBACK")
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	s.pace.polled(len(ds) > 0 || s.reader.News, len(ds) == size)
	if len(ds) == 0 {
		s.giveBack(l)
		return nil, nil
	}
	if time.Since(started) > s.source.cfg.Lease/3 { // the link counts from when a statement was sent
		ctx, cancel := s.source.lasting(ctx)
		defer cancel()
		if err := l.Do(func(conn *pgx.Conn) error { return link.Ping(ctx, conn) }); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ledger.Add(ds, rows, s.table.Numbered())
	s.open = append(s.open, &transaction{link: l, first: ds[0].Ref, last: ds[len(ds)-1].Ref, rows: rows, left: len(ds)})
	return ds, nil
}

func (s *skipLockedSession) pids() (pids []uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.links {
		pids = append(pids, dial.PID(l.Conn))
	}
	return pids
}

// omit lists the rows behind from that wait for another attempt or are to be marked, and those that our own
// transactions have locked: they would count as hidden.
func (s *skipLockedSession) omit(from int64) (ids []string) {
	s.mu.Lock()
	for _, t := range slices.Concat(s.open, s.committing) {
		for i := range t.rows {
			if t.rows[i].By >= from {
				ids = append(ids, t.rows[i].ID)
			}
		}
	}
	s.mu.Unlock()
	return s.later.AppendIDs(s.holds.Above(from, ids))
}

// Settle records the outcomes of rows, and commits the transactions whose rows are all settled. Several may commit, one
// after the other, in the order in which they were read.
func (s *skipLockedSession) Settle(ctx context.Context, settlement relay.Settlement) error {
	if err := s.failure(); err != nil {
		return err
	}
	sorted := pending.Sort(settlement, s.ledger.Through(settlement.Through))
	s.settleHeld(sorted)
	s.remember(sorted)

	s.mu.Lock()
	entries := sorted.Entries
	var over []*transaction
	for len(entries) > 0 {
		t := s.open[0]
		n := 0
		for n < len(entries) && entries[n].Ref <= t.last {
			n++
		}
		sorted.AddTo(&t.outcomes, entries[:n], false)
		t.left -= n
		entries = entries[n:]
		if t.left > 0 {
			break
		}
		over = append(over, t)
		s.open = s.open[1:]
	}
	for lane, t := range s.loads {
		if t.left <= 0 {
			over = append(over, t)
			delete(s.loads, lane)
		}
	}
	s.committing = over
	s.mu.Unlock()
	for _, t := range over {
		if err := s.commit(ctx, t); err != nil {
			return err
		}
	}
	s.mu.Lock()
	s.committing = nil
	s.mu.Unlock()
	return nil
}

// settleHeld adds the outcomes of rows that were tried again to the transactions of their lanes. A failure ends the
// transaction of its lane: the engine forgets what it has loaded behind.
func (s *skipLockedSession) settleHeld(sorted *pending.Sorted) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sorted.AddHeld(s.holds, func(lane string) *marking.Outcomes {
		t := s.loads[lane]
		if t == nil {
			return nil
		}
		t.left--
		return &t.outcomes
	})
	for i := range sorted.HeldRetry {
		if t := s.loads[sorted.HeldRetry[i].Delivery.Lane()]; t != nil {
			t.left = 0
		}
	}
}

// commit writes the transaction's outcomes and ends it.
func (s *skipLockedSession) commit(ctx context.Context, t *transaction) error {
	if err := t.link.Do(func(conn *pgx.Conn) error { return s.end(ctx, conn, &t.outcomes) }); err != nil {
		return err
	}
	s.giveBack(t.link)
	return nil
}

// end stores o and commits. Rows that the server refuses are left for later and become free, so that no transaction
// stays open for them. Constraints are made immediate: one that is checked at the commit would undo everything.
func (s *skipLockedSession) end(ctx context.Context, conn *pgx.Conn, o *marking.Outcomes) error {
	b := &pgx.Batch{}
	b.Queue("SAVEPOINT outbox_attempt")
	if len(o.Dead) > 0 { // the server may refuse a rule when it prepares the statement, before the batch begins
		if err := marking.Send(ctx, conn, b); err != nil {
			return err
		}
		b = &pgx.Batch{}
	}
	var left marking.Outcomes
	if err := s.statements.Queue(conn, b, o, &left); err != nil {
		return err
	}
	b.Queue("SET CONSTRAINTS ALL IMMEDIATE")
	b.Queue("COMMIT")
	err := marking.Send(ctx, conn, b)
	if err == nil {
		s.later.Set(o, s.statements.Postpone(&left))
		return nil
	}
	if !marking.IsRefusal(err, o) {
		return err
	}
	if err := conn.PgConn().Exec(ctx, "ROLLBACK TO SAVEPOINT outbox_attempt; SET CONSTRAINTS ALL IMMEDIATE").Close(); err != nil {
		return fmt.Errorf("mark rows: %w", err)
	}
	_, refused, err := s.statements.StoreEach(ctx, conn, o)
	if err != nil {
		return err
	}
	refused.Waiting = nil // they wait in memory; their outcome is stored later
	s.later.Set(o, refused)
	if _, err := conn.Exec(ctx, "COMMIT"); err != nil {
		return fmt.Errorf("mark rows: %w", existing.Explain(err))
	}
	return nil
}

// held locks the first rows of a lane in a transaction of their own, up to the first that another transaction has
// locked.
func (s *skipLockedSession) held(ctx context.Context, lane string, limit int) ([]relay.Delivery, error) {
	if err := s.unload(ctx, lane); err != nil {
		return nil, err
	}
	list := s.holds.First(lane, limit)
	if len(list) == 0 {
		return nil, nil
	}
	if list = s.unlocked(list); len(list) == 0 {
		return s.holds.NotYet(lane, time.Now().Add(soon)), nil
	}
	l, err := s.idleLink(ctx, true)
	if err != nil {
		return nil, err
	}
	if l == nil {
		return s.holds.NotYet(lane, time.Now().Add(soon)), nil
	}
	var held []relay.Delivery
	locked := 0 // how many are: looked at once, because a row may become due at any moment
	err = l.Do(func(conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, "BEGIN"); err != nil {
			return fmt.Errorf("lock rows: %w", err)
		}
		ds, rows, err := pending.Reread(ctx, conn, s.table, list, "FOR UPDATE OF m SKIP LOCKED")
		if err != nil {
			return err
		}
		waits, err := pending.Untaken(ctx, conn, s.table, list, rows, s.table.Waiting)
		if err != nil {
			return err
		}
		all, missing := s.holds.Restore(lane, list, ds, rows, waits)
		s.holds.Forget(lane, missing)
		locked = due(all)
		if held = all[:locked]; locked == 0 {
			held = all[:min(len(all), 1)] // returned for the time at which it is due
			_, err = conn.Exec(ctx, "ROLLBACK")
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if locked == 0 {
		s.giveBack(l)
		if len(held) == 0 && len(s.holds.First(lane, 1)) > 0 {
			return s.holds.NotYet(lane, time.Now().Add(soon)), nil
		}
		return held, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.loads == nil {
		s.loads = make(map[string]*transaction)
	}
	s.loads[lane] = &transaction{link: l, left: len(held)}
	return held, nil
}

// due returns how many of a lane's rows the engine will publish at once, or settle in another way.
func due(held []relay.Delivery) int {
	now := time.Now()
	for i := range held {
		d := &held[i]
		if d.Blocked || d.RetryAt.After(now) || d.Invalid == nil && d.DeliverAt.After(now) {
			return i
		}
	}
	return len(held)
}

// unload ends the transaction of a lane when the engine asks for more of that lane.
func (s *skipLockedSession) unload(ctx context.Context, lane string) error {
	s.mu.Lock()
	t := s.loads[lane]
	delete(s.loads, lane)
	s.mu.Unlock()
	if t == nil {
		return s.failure()
	}
	return s.commit(ctx, t)
}

// unlocked returns the first rows of list, up to one that an open batch of our own has locked.
func (s *skipLockedSession) unlocked(list []pending.Hold) []pending.Hold {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range list {
		for _, t := range s.open {
			if list[i].Ref >= t.first && list[i].Ref <= t.last {
				return list[:i]
			}
		}
	}
	return list
}

// Expires is when the server would give up the first of the transactions with rows. Nothing rests on the other
// connections.
func (s *skipLockedSession) Expires() time.Time {
	if s.failure() != nil {
		return time.Time{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	first := time.Now().Add(s.source.cfg.Lease)
	for _, t := range slices.Concat(s.open, s.committing, slices.Collect(maps.Values(s.loads))) {
		if at := t.link.Expires(); at.Before(first) {
			first = at
		}
	}
	return first
}

// Close commits what is settled and rolls back the rest.
func (s *skipLockedSession) Close(ctx context.Context) error {
	s.mu.Lock()
	marked := make(map[*link.Link]*transaction)
	for _, t := range slices.Concat(s.open, slices.Collect(maps.Values(s.loads))) {
		marked[t.link] = t
	}
	links := s.links
	s.mu.Unlock()
	s.listener.close()
	var errs []error
	for _, l := range links {
		t := marked[l]
		errs = append(errs, l.Close(func(conn *pgx.Conn) error {
			if t == nil || t.outcomes.Empty() {
				return nil // the server rolls back when the connection closes
			}
			return s.end(ctx, conn, &t.outcomes)
		}))
	}
	s.source.account.Begin(nil)
	s.source.active.Store(false)
	return errors.Join(errs...)
}
