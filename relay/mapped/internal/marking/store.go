package marking

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/sqlstate"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/mapped/internal/existing"
	"github.com/pgoutbox/outbox/schema"
)

// Queue adds the statements that store o to a batch: one round trip, one transaction. When the batch is closed, left
// has what was not stored.
func (s *Statements) Queue(conn *pgx.Conn, b *pgx.Batch, o, left *Outcomes) error {
	add := func(marks []Mark, sql string, left *[]Mark, args ...any) {
		b.Queue(sql, args...).QueryRow(func(row pgx.Row) error {
			var there, marked []string
			if err := row.Scan(&there, &marked); err != nil {
				return err
			}
			*left = append(*left, unmarked(marks, there, marked)...)
			return nil
		})
	}
	if len(o.Delivered) > 0 && s.Done != "" {
		add(o.Delivered, s.Done, &left.Delivered, s.DoneArgs(o.Delivered)...)
		if s.table.Follows.Load() {
			b.Queue(s.undone, NewColumns(o.Delivered).IDs).Query(func(rows pgx.Rows) error {
				ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
				for _, m := range filter(filter(o.Delivered, ids, true), idsOf(left.Delivered), false) {
					m.undone = true
					left.Delivered = append(left.Delivered, m)
				}
				return err
			})
		}
	}
	if len(o.Waiting) > 0 && s.Waiting != "" {
		add(o.Waiting, s.Waiting, &left.Waiting, s.WaitingArgs(conn, o.Waiting)...)
	}
	if len(o.Dead) > 0 {
		if s.Dead == "" {
			return relay.Final(fmt.Errorf("%w (table %s, id %s: %w)", existing.ErrNoPlace, s.table.Name, o.Dead[0].ID, o.Dead[0].Err))
		}
		add(o.Dead, s.Dead, &left.Dead, s.DeadArgs(conn, o.Dead)...)
	}
	return nil
}

// DoneArgs are the arguments of the statement of deliveries.
func (s *Statements) DoneArgs(marks []Mark) []any {
	c := NewColumns(marks)
	if s.receipts == nil {
		return []any{c.IDs, s.tokens(c)}
	}
	return []any{c.IDs, s.tokens(c), s.receipts.Take(marks)}
}

// WaitingArgs are the arguments of the statement of rows that wait.
func (s *Statements) WaitingArgs(conn *pgx.Conn, marks []Mark) []any {
	c := NewColumns(marks)
	return []any{c.IDs, s.tokens(c), c.attempts, c.waits, c.Blocked, errorTexts(conn, marks)}
}

// DeadArgs are the arguments of the statement of dead letters.
func (s *Statements) DeadArgs(conn *pgx.Conn, marks []Mark) []any {
	c := NewColumns(marks)
	return []any{c.IDs, s.tokens(c), c.attempts, c.reasons, errorTexts(conn, marks)}
}

// unmarked returns the marks that rows have not got: of rows that were not there, or that another transaction has
// locked, and of those that were there, which something has undone.
func unmarked(marks []Mark, there, marked []string) (left []Mark) {
	if len(marked) == len(marks) {
		return nil
	}
	left = filter(marks, marked, false)
	undone := make(map[string]bool, len(there))
	for _, id := range there {
		undone[id] = true
	}
	for i := range left {
		left[i].undone = undone[left[i].ID]
	}
	return left
}

// Store stores o in one transaction, and before it what is left from earlier calls. Rows that another transaction has
// locked are left for later. Rows that another program has marked are done.
//
// If the server refuses a row, all rows are stored one by one, and the refused ones are left for later too. Otherwise
// the session would end, and every later session would publish everything again and fail at the same row.
func (s *Statements) Store(ctx context.Context, conn *pgx.Conn, o *Outcomes, later *Later) error {
	o = later.merge(o)
	var again []string
	for _, m := range o.all() {
		if !m.again.IsZero() {
			again = append(again, m.ID)
		}
	}
	fresh, alone := o.filter(again, false), o.filter(again, true)
	left, err := s.write(ctx, conn, &fresh)
	if IsRefusal(err, &fresh) {
		left, alone, err = Outcomes{}, fresh.plus(alone), nil
	}
	if err != nil {
		return err
	}
	locked, refused, err := s.StoreEach(ctx, conn, &alone)
	if err != nil {
		return err
	}
	refused = refused.plus(s.Postpone(&left))
	left = left.plus(locked)
	if all := left.all(); len(all) > 0 {
		c := NewColumns(all)
		rows, err := conn.Query(ctx, s.still, c.IDs, s.tokens(c))
		if err != nil {
			return fmt.Errorf("look for rows that are locked: %w", existing.Explain(err))
		}
		ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return fmt.Errorf("look for rows that are locked: %w", existing.Explain(err))
		}
		if gone := len(all) - len(ids); gone > 0 && s.fence != "" {
			s.logger.Warn("messages were marked or taken over by another program", "table", s.table.Name, "messages", gone)
		}
		left = left.filter(ids, true)
	}
	later.Set(o, refused.plus(left))
	return nil
}

func (s *Statements) write(ctx context.Context, conn *pgx.Conn, o *Outcomes) (left Outcomes, err error) {
	b := &pgx.Batch{}
	if err := s.Queue(conn, b, o, &left); err != nil {
		return left, err
	}
	err = Send(ctx, conn, b)
	if err != nil && len(o.Dead) > 0 && s.table.Dead != nil {
		err = s.table.ExplainDead(err)
	}
	return left, err
}

// Postpone takes out of left the marks that were undone, and logs the first of them.
func (s *Statements) Postpone(left *Outcomes) (undone Outcomes) {
	took := func(marks []Mark) (some, others []Mark) {
		for _, m := range marks {
			if !m.undone {
				others = append(others, m)
				continue
			}
			if m.again.IsZero() && undone.Empty() && some == nil {
				s.logger.Error("nothing more is read: the message is sent again when the relay restarts", "table", s.table.Name, "id", m.ID,
					"error", s.table.ErrUndone())
			}
			m.again = time.Now().Add(AgainAfter)
			some = append(some, m)
		}
		return some, others
	}
	undone.Delivered, left.Delivered = took(left.Delivered)
	undone.Waiting, left.Waiting = took(left.Waiting)
	undone.Dead, left.Dead = took(left.Dead)
	return undone
}

// AgainAfter is the pause before a refused mark is tried again: a person has to repair something first. Tests shorten
// it.
var AgainAfter = 5 * time.Second

// StoreEach stores each mark by itself; in a transaction, under a savepoint. refused has the marks that the server
// refuses, and those that it has refused recently.
func (s *Statements) StoreEach(ctx context.Context, conn *pgx.Conn, o *Outcomes) (left, refused Outcomes, err error) {
	for _, one := range o.singles() {
		m := one.all()[0]
		if time.Now().Before(m.again) {
			refused = refused.plus(one)
			continue
		}
		var locked Outcomes
		err := s.table.Attempt(ctx, conn, func() (err error) {
			locked, err = s.write(ctx, conn, &one)
			return err
		})
		switch {
		case err == nil:
			refused = refused.plus(s.Postpone(&locked))
			left = left.plus(locked)
		case !IsRefusal(err, &one):
			return left, refused, err
		default:
			if m.again.IsZero() {
				s.logger.Error("the database refuses to mark a row: the row waits and the others continue; repair what "+
					"the error names, otherwise the message is sent again when the relay restarts",
					"table", s.table.Name, "id", m.ID, "delivered", len(one.Delivered) > 0, "error", err)
			}
			again := time.Now().Add(AgainAfter)
			one.each(func(m *Mark) { m.again = again })
			refused = refused.plus(one)
		}
	}
	return left, refused, nil
}

// IsRefusal reports whether an error of storing o is the server's answer about a row: about its values, a constraint,
// an error raised by a trigger of the table's owner, or, of a dead letter, that it can't be kept.
func IsRefusal(err error, o *Outcomes) bool {
	code := sqlstate.Of(err)
	return schema.IsDataError(err) || strings.HasPrefix(code, "P0") || len(o.Dead) > 0 && (code == "42501" || code == "0A000")
}

// Send runs a batch, whose statements are one transaction.
func Send(ctx context.Context, conn *pgx.Conn, b *pgx.Batch) error {
	if b.Len() == 0 {
		return nil
	}
	if err := conn.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("mark rows: %w", existing.Explain(err))
	}
	return nil
}

func errorTexts(conn *pgx.Conn, marks []Mark) (all []*string) {
	for i := range marks {
		all = append(all, schema.Note(conn, marks[i].Err))
	}
	return all
}
