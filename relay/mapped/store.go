package mapped

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/sqlstate"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/schema"
)

// queue adds the statements that store o to a batch: one round trip, one transaction. When the batch is closed, left
// has what was not stored.
func (s *statements) queue(conn *pgx.Conn, b *pgx.Batch, o, left *outcomes) error {
	add := func(marks []mark, sql string, left *[]mark, args ...any) {
		b.Queue(sql, args...).QueryRow(func(row pgx.Row) error {
			var there, marked []string
			if err := row.Scan(&there, &marked); err != nil {
				return err
			}
			*left = append(*left, unmarked(marks, there, marked)...)
			return nil
		})
	}
	if len(o.delivered) > 0 && s.done != "" {
		add(o.delivered, s.done, &left.delivered, s.doneArgs(o.delivered)...)
		if s.table.follows.Load() {
			b.Queue(s.undone, newColumns(o.delivered).ids).Query(func(rows pgx.Rows) error {
				ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
				for _, m := range only(only(o.delivered, ids, true), idsOf(left.delivered), false) {
					m.undone = true
					left.delivered = append(left.delivered, m)
				}
				return err
			})
		}
	}
	if len(o.waiting) > 0 && s.waiting != "" {
		add(o.waiting, s.waiting, &left.waiting, s.waitingArgs(conn, o.waiting)...)
	}
	if len(o.dead) > 0 {
		if s.dead == "" {
			return relay.Final(fmt.Errorf("%w (table %s, id %s: %w)", errNoPlace, s.table.name, o.dead[0].id, o.dead[0].err))
		}
		add(o.dead, s.dead, &left.dead, s.deadArgs(conn, o.dead)...)
	}
	return nil
}

func (s *statements) doneArgs(marks []mark) []any {
	c := newColumns(marks)
	if s.receipts == nil {
		return []any{c.ids, s.told(c)}
	}
	return []any{c.ids, s.told(c), s.receipts.take(marks)}
}

func (s *statements) waitingArgs(conn *pgx.Conn, marks []mark) []any {
	c := newColumns(marks)
	return []any{c.ids, s.told(c), c.attempts, c.waits, c.blocked, notes(conn, marks)}
}

func (s *statements) deadArgs(conn *pgx.Conn, marks []mark) []any {
	c := newColumns(marks)
	return []any{c.ids, s.told(c), c.attempts, c.reasons, notes(conn, marks)}
}

// unmarked returns the marks that rows have not got: of rows that were not there, or that another transaction has
// locked, and of those that were there, which something has undone.
func unmarked(marks []mark, there, marked []string) (left []mark) {
	if len(marked) == len(marks) {
		return nil
	}
	left = only(marks, marked, false)
	undone := make(map[string]bool, len(there))
	for _, id := range there {
		undone[id] = true
	}
	for i := range left {
		left[i].undone = undone[left[i].id]
	}
	return left
}

// store stores o in one transaction, and before it what is left from earlier calls. Rows that another transaction has
// locked are left for later. Rows that another program has marked are done.
//
// If the server refuses a row, all rows are stored one by one, and the refused ones are left for later too. Otherwise
// the session would end, and every later session would publish everything again and fail at the same row.
func (s *statements) store(ctx context.Context, conn *pgx.Conn, o *outcomes, later *later) error {
	o = later.with(o)
	var again []string
	for _, m := range o.all() {
		if !m.again.IsZero() {
			again = append(again, m.id)
		}
	}
	fresh, alone := o.among(again, false), o.among(again, true)
	left, err := s.write(ctx, conn, &fresh)
	if refuses(err, &fresh) {
		left, alone, err = outcomes{}, fresh.and(alone), nil
	}
	if err != nil {
		return err
	}
	locked, refused, err := s.singly(ctx, conn, &alone)
	if err != nil {
		return err
	}
	refused = refused.and(s.postpone(&left))
	left = left.and(locked)
	if all := left.all(); len(all) > 0 {
		c := newColumns(all)
		rows, err := conn.Query(ctx, s.still, c.ids, s.told(c))
		if err != nil {
			return fmt.Errorf("look for rows that are locked: %w", explain(err))
		}
		ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return fmt.Errorf("look for rows that are locked: %w", explain(err))
		}
		if gone := len(all) - len(ids); gone > 0 && s.fence != "" {
			s.logger.Warn("messages were marked or taken over by another program", "table", s.table.name, "messages", gone)
		}
		left = left.among(ids, true)
	}
	later.set(o, refused.and(left))
	return nil
}

func (s *statements) write(ctx context.Context, conn *pgx.Conn, o *outcomes) (left outcomes, err error) {
	b := &pgx.Batch{}
	if err := s.queue(conn, b, o, &left); err != nil {
		return left, err
	}
	err = send(ctx, conn, b)
	if err != nil && len(o.dead) > 0 && s.table.dead != nil {
		err = s.table.explainDead(err)
	}
	return left, err
}

// postpone takes out of left the marks that were undone, and logs the first of them.
func (s *statements) postpone(left *outcomes) (undone outcomes) {
	took := func(marks []mark) (some, others []mark) {
		for _, m := range marks {
			if !m.undone {
				others = append(others, m)
				continue
			}
			if m.again.IsZero() && undone.empty() && some == nil {
				s.logger.Error("nothing more is read: the message is sent again when the relay restarts", "table", s.table.name, "id", m.id,
					"error", s.table.errUndone())
			}
			m.again = time.Now().Add(againAfter)
			some = append(some, m)
		}
		return some, others
	}
	undone.delivered, left.delivered = took(left.delivered)
	undone.waiting, left.waiting = took(left.waiting)
	undone.dead, left.dead = took(left.dead)
	return undone
}

// againAfter is the pause before a refused mark is tried again: a person has to repair something first. Tests shorten
// it.
var againAfter = 5 * time.Second

// singly stores each mark by itself; in a transaction, under a savepoint. refused has the marks that the server
// refuses, and those that it has refused recently.
func (s *statements) singly(ctx context.Context, conn *pgx.Conn, o *outcomes) (left, refused outcomes, err error) {
	for _, one := range o.singles() {
		m := one.all()[0]
		if time.Now().Before(m.again) {
			refused = refused.and(one)
			continue
		}
		var locked outcomes
		err := s.table.attempt(ctx, conn, func() (err error) {
			locked, err = s.write(ctx, conn, &one)
			return err
		})
		switch {
		case err == nil:
			refused = refused.and(s.postpone(&locked))
			left = left.and(locked)
		case !refuses(err, &one):
			return left, refused, err
		default:
			if m.again.IsZero() {
				s.logger.Error("the database refuses to mark a row: the row waits and the others continue; repair what "+
					"the error names, otherwise the message is sent again when the relay restarts",
					"table", s.table.name, "id", m.id, "delivered", len(one.delivered) > 0, "error", err)
			}
			again := time.Now().Add(againAfter)
			one.each(func(m *mark) { m.again = again })
			refused = refused.and(one)
		}
	}
	return left, refused, nil
}

// refuses reports whether an error of storing o is the server's answer about a row: about its values, a constraint, an
// error raised by a trigger of the table's owner, or, of a dead letter, that it can't be kept.
func refuses(err error, o *outcomes) bool {
	code := sqlstate.Of(err)
	return schema.IsDataError(err) || strings.HasPrefix(code, "P0") || len(o.dead) > 0 && (code == "42501" || code == "0A000")
}

// send runs a batch, whose statements are one transaction.
func send(ctx context.Context, conn *pgx.Conn, b *pgx.Batch) error {
	if b.Len() == 0 {
		return nil
	}
	if err := conn.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("mark rows: %w", explain(err))
	}
	return nil
}

func notes(conn *pgx.Conn, marks []mark) (all []*string) {
	for i := range marks {
		all = append(all, schema.Note(conn, marks[i].err))
	}
	return all
}
