package mapped

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/brokers"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/controls"
	"github.com/pgoutbox/outbox/relay/mapped/internal/existing"
	"github.com/pgoutbox/outbox/relay/mapped/internal/link"
	"github.com/pgoutbox/outbox/relay/mapped/internal/marking"
	"github.com/pgoutbox/outbox/relay/mapped/internal/pending"
	"github.com/pgoutbox/outbox/relay/mapped/internal/reading"
	"github.com/pgoutbox/outbox/schema"
)

// strategy is one way of reading a table. Each strategy embeds a session, which does the rest.
type strategy interface {
	relay.Session

	// take reads the next messages, about limit; none if there are none at present.
	take(ctx context.Context, limit int) ([]relay.Delivery, error)

	// held reads the first holds of a lane: see relay.Session.Held.
	held(ctx context.Context, lane string, limit int) ([]relay.Delivery, error)

	// do runs f on a connection that is otherwise idle. It may skip f when no connection is idle.
	do(ctx context.Context, f func(*pgx.Conn) error) error

	// failure returns why the session has ended, or nil.
	failure() error
}

// soon is the pause before a lane is tried again whose rows can't be read yet.
const soon = 20 * time.Millisecond

// session is what the strategies share. Next runs in one goroutine, the other methods in another; they share the ledger
// and the holds.
type session struct {
	strategy   strategy
	source     *Source
	table      *existing.Table
	pooled     error // why server sessions are not ours, if a pooler is in between
	conn       *pgx.Conn
	listener   *listener
	link       *link.Link // conn, once it is kept alive; the session lasts as long as it
	statements *marking.Statements
	later      marking.Later // what is still to be stored
	ledger     pending.Ledger
	holds      *pending.Holds
	own        []uint32       // the server processes that hold our locks
	controls   relay.Controls // as they were read last
	released   time.Time      // when we looked last whether blocked rows were released
	free       existing.FreeLists

	// Only Next uses the rest.
	reading *pgx.Conn
	reader  *reading.Reader
	pace    pace
	last    *existing.Page   // that was read
	rest    []relay.Delivery // of last: not returned yet
	full    error            // why no more, or not all, is read
}

// begin keeps the session's connection alive by keep, for the strategy that embeds it.
func (s *session) begin(of strategy, keep func(ctx context.Context, conn *pgx.Conn) error) {
	s.strategy = of
	s.link = link.Keep(s.conn, s.source.cfg.Lease, keep, s.watch)
	s.listener = s.source.listen()
	s.pace = pace{cfg: &s.source.cfg, broken: s.link.Ended(), heard: s.listener.heard}
}

// watch ends the session when the table has changed.
func (s *session) watch(ctx context.Context, q schema.Querier) error {
	return s.table.CheckLayout(ctx, q, s.source.strategy == mapping.Replication)
}

// prepare makes the statements by which a strategy that marks rows reads and marks them, for sessions and for Probe. It
// returns those of reservations, nil for a strategy without.
func (s *session) prepare() (c *claims) {
	src, least := s.source, reading.MinPage
	scan, fence, logger := reading.ReadSQL, "", src.cfg.Logger
	switch src.strategy {
	case mapping.SkipLocked:
		scan, least = reading.LockSQL, reading.MinLockedPage
	case mapping.Lease:
		c = newClaims(s.table, src.owner, src.cfg.Lease)
		scan, fence, least = c.take, c.fence, reading.MinClaimedPage
		logger = logger.With("relay", src.owner)
	}
	s.statements = marking.NewStatements(s.table, false, src.strategy == mapping.SkipLocked, fence, &src.receipts, logger)
	s.reader = reading.NewReader(s.reading, s.table, scan, reading.PageSize{Least: least, PageBytes: src.cfg.PageBytes}, &s.free)
	s.reader.Claims = src.strategy != mapping.Advisory
	return c
}

// locks notes the processes of the session's own connections.
func (s *session) locks() { s.own = []uint32{dial.PID(s.conn), dial.PID(s.reading)} }

func (s *session) Next(ctx context.Context, limit int) (relay.Batch, error) {
	for len(s.rest) == 0 {
		if err := s.pace.await(ctx); err != nil {
			return relay.Batch{}, err
		}
		if err := s.strategy.failure(); err != nil {
			return relay.Batch{}, err
		}
		var err error
		if s.rest, err = s.strategy.take(ctx, limit); err != nil || len(s.rest) == 0 && s.full != nil {
			return relay.Batch{Full: s.full}, err
		}
		s.last = existing.NewPage(s.rest)
	}
	b := s.last.Cut(&s.rest, limit, &s.free)
	b.Full = s.full
	return b, nil
}

// Held reads one lane after the other.
func (s *session) Held(ctx context.Context, lanes []string, limit int) (lists [][]relay.Delivery, err error) {
	for _, lane := range lanes {
		list, err := s.strategy.held(ctx, lane, limit)
		if err != nil {
			return nil, err
		}
		lists = append(lists, list)
	}
	return lists, nil
}

// Lanes lists the lanes with messages that wait in this relay. Rows that another relay has taken since are noticed when
// they are due.
func (s *session) Lanes(_ context.Context, after string, limit int) ([]string, string, error) {
	lanes, next := s.holds.Names(after, limit)
	return lanes, next, s.strategy.failure()
}

// Due first looks which blocked rows operators have released, about once a second.
func (s *session) Due(ctx context.Context, q relay.DueQuery) ([]relay.HeldLane, error) {
	if blocked := s.holds.Blocked(); len(blocked) > 0 && time.Since(s.released) > time.Second {
		err := s.strategy.do(ctx, func(conn *pgx.Conn) error {
			refs, err := pending.Released(ctx, conn, s.table, blocked)
			for _, ref := range refs {
				s.holds.Unblock(ref)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		s.released = time.Now()
	}
	return s.holds.Due(time.Now(), &q), s.strategy.failure()
}

// Controls returns nothing where operators have no place to ask: without a name, or without our schema.
func (s *session) Controls(ctx context.Context) (relay.Controls, error) {
	if !s.table.Controlled || s.source.cfg.Destination == "" {
		return relay.Controls{}, nil
	}
	err := s.strategy.do(ctx, func(conn *pgx.Conn) (err error) {
		s.controls, err = controls.Read(ctx, conn, s.source.cfg.Destination, s.source.cfg.Groups)
		return err
	})
	return s.controls, err
}

// Recognize uses a connection of its own: every other one may be in a transaction. Without a name, or without our
// schema, there is no place to record the broker.
func (s *session) Recognize(ctx context.Context, identity []string) error {
	if !s.table.Recorded || s.source.cfg.Destination == "" {
		return nil
	}
	var pooled error
	conn, err := s.source.connect(ctx, &pooled)
	if err != nil {
		return err
	}
	defer dial.HangUp(conn)
	return brokers.Recognize(ctx, conn, s.source.cfg.Destination, s.source.owner, identity)
}

// The following methods serve the strategies that use one link.

func (s *session) do(_ context.Context, f func(*pgx.Conn) error) error { return s.link.Do(f) }

func (s *session) failure() error { return s.link.Failure() }

// Expires is until when the server certainly keeps the session's locks.
func (s *session) Expires() time.Time { return s.link.Expires() }

// poll reads the next rows that are not yet known. lasting means that the statement changes rows and must not be
// interrupted: otherwise it would be unknown which rows it has taken.
func (s *session) poll(ctx context.Context, limit int, lasting bool) ([]relay.Delivery, []existing.Row, error) {
	if err := s.storeLater(ctx); err != nil {
		return nil, nil, err
	}
	if s.full = s.errFull(); s.full != nil {
		s.pace.polled(false, false)
		return nil, nil, nil
	}
	if lasting {
		var cancel context.CancelFunc
		ctx, cancel = s.source.claiming(ctx)
		defer cancel()
	}
	size := s.reader.Page.Rows(limit)
	ds, rows, err := s.reader.Poll(ctx, size, s.own, s.omit, "")
	if err == nil {
		s.pace.polled(len(ds) > 0 || s.reader.News, len(ds) == size)
	}
	return ds, rows, err
}

// errFull says why nothing more is read; nil if more may be.
func (s *session) errFull() error {
	if s.later.Undone() {
		return s.table.ErrUndone()
	}
	return s.source.errHolds(s.holds.Size() + len(s.later.All()))
}

// omit lists the rows behind from that are in flight, wait for another attempt, or are to be marked.
func (s *session) omit(from int64) []string {
	return s.later.AppendIDs(s.holds.Above(from, s.ledger.Above(from, nil)))
}

// storeLater marks rows that were locked when they should have been marked.
func (s *session) storeLater(ctx context.Context) error {
	if len(s.later.All()) == 0 {
		return nil
	}
	ctx, cancel := s.source.lasting(ctx)
	defer cancel()
	return s.link.Do(func(conn *pgx.Conn) error { return s.statements.Store(ctx, conn, &marking.Outcomes{}, &s.later) })
}

// settle stores the outcomes that sort makes of a settlement.
func (s *session) settle(ctx context.Context, settlement relay.Settlement, sort func(*pending.Sorted) *marking.Outcomes) error {
	return s.link.Do(func(conn *pgx.Conn) error {
		// This split happens inside do; otherwise the tokens of claims could be renewed in between.
		sorted := pending.Sort(settlement, s.ledger.Through(settlement.Through))
		if err := s.statements.Store(ctx, conn, sort(sorted), &s.later); err != nil {
			return err
		}
		s.remember(sorted)
		return nil
	})
}

// remember records what is stored. Rows that are set aside enter the holds before they leave the ledger, because Next
// must know of them at any time.
func (s *session) remember(sorted *pending.Sorted) {
	sorted.Remember(s.holds)
	s.ledger.Settle(len(sorted.Entries))
	s.source.noteSettled(&sorted.Settlement)
}

// reload reads the first rows of a lane again. gone, if not nil, gets those that are no longer in the table.
func (s *session) reload(ctx context.Context, lane string, limit int, gone func(refs map[uint64]bool)) (held []relay.Delivery, err error) {
	for {
		list := s.holds.First(lane, limit)
		if len(list) == 0 {
			return nil, s.link.Failure()
		}
		err := s.link.Do(func(conn *pgx.Conn) error {
			ds, rows, err := pending.Reread(ctx, conn, s.table, list, "")
			if err != nil {
				return err
			}
			var missing map[uint64]bool
			held, missing = s.holds.Restore(lane, list, ds, rows, nil)
			if gone != nil {
				gone(missing)
			}
			s.holds.Forget(lane, missing)
			return nil
		})
		if err != nil || len(held) > 0 {
			return held, err
		}
	}
}

// close runs farewell on the link and lets another session begin.
func (s *session) close(farewell func(*pgx.Conn) error) error {
	s.listener.close()
	dial.HangUp(s.reading)
	err := s.link.Close(farewell)
	s.source.account.Begin(nil)
	s.source.active.Store(false)
	return err
}
