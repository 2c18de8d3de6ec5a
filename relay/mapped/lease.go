package mapped

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/mapped/internal/existing"
	"github.com/pgoutbox/outbox/relay/mapped/internal/marking"
	"github.com/pgoutbox/outbox/relay/mapped/internal/pending"
	"github.com/pgoutbox/outbox/relay/mapped/internal/reading"
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
			"relay", s.source.owner, "table", s.table.Name)
	} else if err := s.takeBack(ctx, s.conn); err != nil {
		return nil, err
	}
	s.begin(s, s.renew)
	return s, nil
}

func (s *leaseSession) take(ctx context.Context, limit int) ([]relay.Delivery, error) {
	ds, rows, err := s.poll(ctx, limit, true)
	s.ledger.Add(ds, rows, s.table.Numbered())
	return ds, err
}

func (s *leaseSession) Settle(ctx context.Context, settlement relay.Settlement) error {
	return s.settle(ctx, settlement, func(sorted *pending.Sorted) *marking.Outcomes {
		o := sorted.Outcomes(s.holds, true)
		behind(sorted, o, s.holds)
		return o
	})
}

// renew extends the reservations of rows in flight when a third of their time has passed.
func (s *leaseSession) renew(ctx context.Context, conn *pgx.Conn) error {
	marks := append(tokens(append(s.ledger.All(), s.holds.Claimed()...)), s.later.All()...)
	if err := existing.RefuseHidden(ctx, conn, s.table.Name); err != nil || len(marks) == 0 {
		return err
	}
	c := marking.NewColumns(marks)
	rows, err := conn.Query(ctx, s.claims.renew, c.IDs, c.Tokens)
	if err != nil {
		return fmt.Errorf("renew reservations: %w", existing.Explain(err))
	}
	renewed := make(map[string]string)
	var id string
	var token int64
	_, err = pgx.ForEachRow(rows, []any{&id, &token}, func() error {
		renewed[id] = fmt.Sprint(token)
		return nil
	})
	if err != nil {
		return fmt.Errorf("renew reservations: %w", existing.Explain(err))
	}
	s.ledger.Renew(renewed)
	s.holds.Claim("", renewed)
	s.later.Renew(renewed)
	return nil
}

func tokens(entries []pending.Entry) []marking.Mark {
	marks := make([]marking.Mark, len(entries))
	for i, e := range entries {
		marks[i] = marking.Mark{ID: e.ID, Token: e.Token}
	}
	return marks
}

// behind makes rows wait as long as the head of their lane, so that other relays pass over them. It also gives up the
// rows that were claimed together with a head that has failed again. Rows behind a blocked one have no
// time of their own: the claim keeps them back (see reading.LockSQL) until the blocked row is gone.
func behind(sorted *pending.Sorted, o *marking.Outcomes, h *pending.Holds) {
	waits := make(map[string]*marking.Mark) // by lane
	ids := make(map[string]*marking.Mark)
	for i := range o.Waiting {
		ids[o.Waiting[i].ID] = &o.Waiting[i]
	}
	for i := range sorted.Hold {
		lane := sorted.Hold[i].Delivery.Lane()
		head := waits[lane]
		if head == nil {
			head = &marking.Mark{}
			if first := h.First(lane, 1); len(first) > 0 {
				wait := max(time.Until(first[0].Due), 0)
				head.Wait = &wait
			} else if m := ids[entryID(sorted.Entries, sorted.Hold[i].Delivery.Ref)]; m != nil {
				head.Wait = m.Wait
			}
			waits[lane] = head
		}
		if m := ids[entryID(sorted.Entries, sorted.Hold[i].Delivery.Ref)]; m != nil && m.Wait == nil && !m.Blocked {
			m.Wait = head.Wait
		}
	}
	for i := range sorted.HeldRetry {
		retry := &sorted.HeldRetry[i]
		head := pending.HoldMark(pending.Entry{}, retry)
		for _, other := range h.First(retry.Delivery.Lane(), h.Size()) {
			if other.Token != "" && other.Ref != retry.Delivery.Ref {
				o.Waiting = append(o.Waiting,
					marking.Mark{ID: other.ID, Token: other.Token, Attempts: other.Attempts, Wait: head.Wait})
			}
		}
	}
}

func entryID(entries []pending.Entry, ref uint64) string {
	if len(entries) == 0 || ref < entries[0].Ref || ref-entries[0].Ref >= uint64(len(entries)) {
		return ""
	}
	return entries[ref-entries[0].Ref].ID // ordinals follow one another
}

// held claims the first due rows of a lane, up to the first that another relay has taken or another transaction has
// locked.
func (s *leaseSession) held(ctx context.Context, lane string, limit int) (held []relay.Delivery, err error) {
	if err := s.storeLater(ctx); err != nil {
		return nil, err
	}
	now := time.Now()
	for {
		list := s.holds.First(lane, limit)
		if len(list) == 0 {
			return nil, s.failure()
		}
		if list[0].Blocked || list[0].Due.After(now) {
			return relay.NotYet(list[0].Due, list[0].Blocked), nil
		}
		n := 1
		for n < len(list) && !list[n].Blocked && !list[n].Due.After(now) {
			n++
		}
		err := s.link.Do(func(conn *pgx.Conn) (err error) {
			held, err = s.claimAgain(ctx, conn, lane, list[:n])
			return err
		})
		if err != nil || len(held) > 0 {
			return held, err
		}
		if left := s.holds.First(lane, 1); len(left) > 0 && left[0].Ref == list[0].Ref {
			return s.holds.NotYet(lane, now.Add(5*soon)), nil
		}
	}
}

func (s *leaseSession) claimAgain(ctx context.Context, conn *pgx.Conn, lane string, list []pending.Hold) ([]relay.Delivery, error) {
	ours := make(map[string]string) // reservations that could not be removed from rows that then had to wait
	for _, m := range s.later.All() {
		ours[m.ID] = m.Token
	}
	marks, freed := make([]marking.Mark, len(list)), make([]bool, len(list))
	for i := range list {
		marks[i], freed[i] = marking.Mark{ID: list[i].ID, Token: cmp.Or(list[i].Token, ours[list[i].ID])}, list[i].Freed
	}
	c := marking.NewColumns(marks)
	ds, rows, err := s.table.Query(ctx, conn, nil, new(reading.Scan).Read, s.claims.again, c.IDs, c.Tokens, freed, pending.Identities(list))
	if err != nil {
		return nil, fmt.Errorf("claim rows again: %w", existing.Explain(err))
	}
	var taken marking.Outcomes
	claimed := make(map[string]string, len(rows))
	for i := range rows {
		taken.Waiting = append(taken.Waiting, marking.Mark{ID: rows[i].ID})
		claimed[rows[i].ID] = rows[i].Token
	}
	s.later.Set(&taken, marking.Outcomes{})
	waits, err := pending.Untaken(ctx, conn, s.table, list, rows, s.claims.waits)
	if err != nil {
		return nil, err
	}
	held, missing := s.holds.Restore(lane, list, ds, rows, waits)
	s.holds.Claim(lane, claimed)
	s.holds.Forget(lane, missing)
	return held, nil
}

// Close gives up the rows that are reserved and not settled.
func (s *leaseSession) Close(ctx context.Context) error {
	return s.close(func(conn *pgx.Conn) error {
		if err := s.statements.Store(ctx, conn, &marking.Outcomes{}, &s.later); err != nil {
			return err
		}
		entries := append(s.ledger.All(), s.holds.Claimed()...)
		if len(entries) == 0 {
			return nil
		}
		c := marking.NewColumns(tokens(entries))
		if _, err := conn.Exec(ctx, s.claims.release, c.IDs, c.Tokens); err != nil {
			return fmt.Errorf("give reservations up: %w", err)
		}
		return nil
	})
}

// takeBack gives up the reservations of the relay's earlier run.
func (s *leaseSession) takeBack(ctx context.Context, conn *pgx.Conn) error {
	if err := s.source.awaitLock(ctx, conn, s.table.NameLock(s.source.owner), "another relay of this name lives"); err != nil {
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
			return fmt.Errorf("take reservations back: %w", existing.Explain(err))
		}
		if n := tag.RowsAffected(); n > 0 {
			s.source.cfg.Logger.Info("reservations taken back", "relay", s.source.owner, "table", s.table.Name, "messages", n)
		}
	}
	if alone {
		_, err = conn.Exec(ctx, "SELECT pg_advisory_lock_shared("+s.table.Presence()+"), pg_advisory_unlock("+s.table.Presence()+")")
	} else {
		err = s.source.awaitPresence(ctx, conn, s.table.Presence())
	}
	if err != nil {
		return fmt.Errorf("take the lock of presence: %w", err)
	}
	return nil
}

// alone reports whether no other relay reads the table with this strategy. No other can begin to until the lock is
// released.
func (s *leaseSession) alone(ctx context.Context, conn *pgx.Conn) (alone bool, err error) {
	err = conn.QueryRow(ctx, "SELECT pg_try_advisory_lock("+s.table.Presence()+")").Scan(&alone)
	if err != nil {
		return false, fmt.Errorf("take the lock of presence: %w", err)
	}
	return alone, nil
}
