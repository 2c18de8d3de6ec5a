package mapped

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/relay"
)

// leaseSession shares the table with other relays. One statement reserves rows for a time, another marks or deletes
// them when they are delivered.
//
// The relay renews its reservations while it lives. Every mark names the reservation that it rests on. So a relay that
// was away for too long marks no row that another relay has taken over.
//
// A relay that restarts takes back at once what it had reserved: by its name if the mapping has a column for the owner;
// else, by a status, if it finds itself the only relay of the table. Otherwise the rows wait until their reservation
// ends.
type leaseSession struct {
	*session
	claims *claims
}

var _ strategy = (*leaseSession)(nil)

func newLease(ctx context.Context, x *session) (relay.Session, error) {
	s := &leaseSession{x, x.prepare()}
	s.locks()
	if s.pooled != nil {
		// The locks that tell whether a relay lives belong to a server session, which a pooler doesn't give us.
		s.source.cfg.Logger.Warn("a pooler in transaction mode stands before the server: rows that this relay had reserved before it "+
			"restarted wait until their reservation ends",
			"relay", s.source.owner, "table", s.table.name)
	} else if err := s.takeBack(ctx, s.conn); err != nil {
		return nil, err
	}
	s.begin(s, s.renew)
	return s, nil
}

func (s *leaseSession) take(ctx context.Context, limit int) ([]relay.Delivery, error) {
	ds, rows, err := s.poll(ctx, limit, true)
	s.ledger.add(ds, rows, s.table.numbered())
	return ds, err
}

func (s *leaseSession) Settle(ctx context.Context, settlement relay.Settlement) error {
	return s.settle(ctx, settlement, func(x *settled) *outcomes {
		o := x.outcomes(s.holds, true)
		behind(x, o, s.holds)
		return o
	})
}

// renew extends the reservations of rows in flight when a third of their time has passed.
func (s *leaseSession) renew(ctx context.Context, conn *pgx.Conn) error {
	marks := append(tokens(append(s.ledger.all(), s.holds.claimed()...)), s.later.all()...)
	if err := seen(ctx, conn, s.table.name); err != nil || len(marks) == 0 {
		return err
	}
	c := newColumns(marks)
	rows, err := conn.Query(ctx, s.claims.renew, c.ids, c.tokens)
	if err != nil {
		return fmt.Errorf("renew reservations: %w", explain(err))
	}
	renewed := make(map[string]string)
	var id string
	var token int64
	_, err = pgx.ForEachRow(rows, []any{&id, &token}, func() error {
		renewed[id] = fmt.Sprint(token)
		return nil
	})
	if err != nil {
		return fmt.Errorf("renew reservations: %w", explain(err))
	}
	s.ledger.renew(renewed)
	s.holds.claim("", renewed)
	s.later.renew(renewed)
	return nil
}

func tokens(entries []entry) []mark {
	marks := make([]mark, len(entries))
	for i, e := range entries {
		marks[i] = mark{id: e.id, token: e.token}
	}
	return marks
}

// behind makes rows wait as long as the head of their lane, so that other relays pass over them. It also gives up the
// rows that were claimed together with a head that has failed again. Rows behind one that is blocked don't wait on
// their own: the claim keeps them back behind it (see claimSQL), and they are free when it is gone, whoever has removed
// it.
func behind(x *settled, o *outcomes, h *holds) {
	waits := make(map[string]*mark) // by lane
	ids := make(map[string]*mark)
	for i := range o.waiting {
		ids[o.waiting[i].id] = &o.waiting[i]
	}
	for i := range x.Hold {
		lane := x.Hold[i].Delivery.Lane()
		head := waits[lane]
		if head == nil {
			head = &mark{}
			if first := h.first(lane, 1); len(first) > 0 {
				wait := max(time.Until(first[0].due), 0)
				head.wait = &wait
			} else if m := ids[entryID(x.entries, x.Hold[i].Delivery.Ref)]; m != nil {
				head.wait = m.wait
			}
			waits[lane] = head
		}
		if m := ids[entryID(x.entries, x.Hold[i].Delivery.Ref)]; m != nil && m.wait == nil && !m.blocked {
			m.wait = head.wait
		}
	}
	for i := range x.HeldRetry {
		retry := &x.HeldRetry[i]
		head := holdMark(entry{}, retry)
		for _, other := range h.first(retry.Delivery.Lane(), h.size()) {
			if other.token != "" && other.ref != retry.Delivery.Ref {
				o.waiting = append(o.waiting,
					mark{id: other.id, token: other.token, attempts: other.attempts, wait: head.wait})
			}
		}
	}
}

func entryID(entries []entry, ref uint64) string {
	if len(entries) == 0 || ref < entries[0].ref || ref-entries[0].ref >= uint64(len(entries)) {
		return ""
	}
	return entries[ref-entries[0].ref].id // ordinals follow one another
}

// Held claims the first due rows of a lane, up to the first that another relay has taken or another transaction has
// locked.
func (s *leaseSession) Held(ctx context.Context, lane string, limit int) (held []relay.Delivery, err error) {
	if err := s.storeLater(ctx); err != nil {
		return nil, err
	}
	now := time.Now()
	for {
		list := s.holds.first(lane, limit)
		if len(list) == 0 {
			return nil, s.failure()
		}
		if list[0].blocked || list[0].due.After(now) {
			return relay.NotYet(list[0].due, list[0].blocked), nil
		}
		n := 1
		for n < len(list) && !list[n].blocked && !list[n].due.After(now) {
			n++
		}
		err := s.link.do(func(conn *pgx.Conn) (err error) {
			held, err = s.claimAgain(ctx, conn, lane, list[:n])
			return err
		})
		if err != nil || len(held) > 0 {
			return held, err
		}
		if left := s.holds.first(lane, 1); len(left) > 0 && left[0].ref == list[0].ref {
			return s.holds.notYet(lane, now.Add(5*soon)), nil
		}
	}
}

func (s *leaseSession) claimAgain(ctx context.Context, conn *pgx.Conn, lane string, list []hold) ([]relay.Delivery, error) {
	ours := make(map[string]string) // reservations that could not be removed from rows that then had to wait
	for _, m := range s.later.all() {
		ours[m.id] = m.token
	}
	marks, freed := make([]mark, len(list)), make([]bool, len(list))
	for i := range list {
		marks[i], freed[i] = mark{id: list[i].id, token: cmp.Or(list[i].token, ours[list[i].id])}, list[i].freed
	}
	c := newColumns(marks)
	ds, rows, err := s.table.query(ctx, conn, nil, new(sight).read, s.claims.again, c.ids, c.tokens, freed, identities(list))
	if err != nil {
		return nil, fmt.Errorf("claim rows again: %w", explain(err))
	}
	var taken outcomes
	claimed := make(map[string]string, len(rows))
	for i := range rows {
		taken.waiting = append(taken.waiting, mark{id: rows[i].id})
		claimed[rows[i].id] = rows[i].token
	}
	s.later.set(&taken, outcomes{})
	waits, err := untaken(ctx, conn, s.table, list, rows, s.claims.waits)
	if err != nil {
		return nil, err
	}
	held, missing := s.holds.restore(lane, list, ds, rows, waits)
	s.holds.claim(lane, claimed)
	s.holds.gone(lane, missing)
	return held, nil
}

// Close gives up the rows that are reserved and not settled.
func (s *leaseSession) Close(ctx context.Context) error {
	return s.close(func(conn *pgx.Conn) error {
		if err := s.statements.store(ctx, conn, &outcomes{}, &s.later); err != nil {
			return err
		}
		entries := append(s.ledger.all(), s.holds.claimed()...)
		if len(entries) == 0 {
			return nil
		}
		c := newColumns(tokens(entries))
		if _, err := conn.Exec(ctx, s.claims.release, c.ids, c.tokens); err != nil {
			return fmt.Errorf("give reservations up: %w", err)
		}
		return nil
	})
}

// takeBack gives up the reservations of the relay's earlier run.
func (s *leaseSession) takeBack(ctx context.Context, conn *pgx.Conn) error {
	if err := s.source.awaitLock(ctx, conn, s.table.nameLock(s.source.owner), "another relay of this name lives"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, dial.PrepareWithin)
	defer cancel()
	alone, err := s.alone(ctx, conn)
	if err != nil {
		return err
	}
	sql := s.claims.mine
	if sql == "" && alone {
		sql = s.claims.all
	}
	if sql != "" {
		tag, err := conn.Exec(ctx, sql)
		if err != nil {
			return fmt.Errorf("take reservations back: %w", explain(err))
		}
		if n := tag.RowsAffected(); n > 0 {
			s.source.cfg.Logger.Info("reservations taken back", "relay", s.source.owner, "table", s.table.name, "messages", n)
		}
	}
	if alone {
		_, err = conn.Exec(ctx, "SELECT pg_advisory_lock_shared("+s.table.presence()+"), pg_advisory_unlock("+s.table.presence()+")")
	} else {
		err = s.source.awaitPresence(ctx, conn, s.table.presence())
	}
	if err != nil {
		return fmt.Errorf("take the lock of presence: %w", err)
	}
	return nil
}

// alone reports whether no other relay reads the table with this strategy. No other can begin to until the lock is
// released.
func (s *leaseSession) alone(ctx context.Context, conn *pgx.Conn) (alone bool, err error) {
	err = conn.QueryRow(ctx, "SELECT pg_try_advisory_lock("+s.table.presence()+")").Scan(&alone)
	if err != nil {
		return false, fmt.Errorf("take the lock of presence: %w", err)
	}
	return alone, nil
}
