package marking

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay/mapped/internal/existing"
	"github.com/pgoutbox/outbox/schema"
)

// Statements are the SQL that marks rows of a table. Each statement takes arrays, so the number of statements doesn't
// grow with the number of rows.
type Statements struct {
	table    *existing.Table
	receipts *Receipts // nil: the mapping has no column for them
	logger   *slog.Logger

	Done    string // $1 ids, $2 tokens, with receipts $3 partitions
	Waiting string // $1 ids, $2 tokens, $3 attempts, $4 microseconds, $5 blocked, $6 errors; empty: nothing to write
	Dead    string // $1 ids, $2 tokens, $3 attempts, $4 reasons, $5 errors; empty: the table has no place for dead letters

	fence  string // condition that a row is still claimed by o.token; empty: the strategy has no claims
	locked bool   // the transaction has already locked the rows
	still  string // $1 ids, $2 tokens: those that still have to be marked
	undone string // $1 ids: those of rows that wait
}

// NewStatements builds the statements of a table. copied means that rows are never changed, so a dead letter is a copy.
// fence is a condition on the token o.token; it is empty if there are no claims. r has the partitions of delivered
// messages, if the table has a column for them.
//
// Rows that the transaction hasn't locked are locked first, except those that another transaction has locked. If a
// relay waited for a row while it has locked others, it would be one half of a deadlock, and the server might end the
// other half, a writer's transaction.
func NewStatements(t *existing.Table, copied, locked bool, fence string, r *Receipts, logger *slog.Logger) *Statements {
	s := &Statements{table: t, fence: fence, locked: locked, logger: logger}
	if t.Mapping.Done.Partition != "" && !copied {
		r.reset()
		s.receipts = r
	}
	if !copied {
		s.Done = s.doneSQL()
		s.Waiting = s.waitingSQL()
	}
	s.Dead = s.deadSQL(copied)
	s.undone = fmt.Sprintf("SELECT o.id FROM %s m JOIN unnest($1::text[]) o (id) ON %s = o.id::%s WHERE %s", t.Name, t.ID, t.IDType,
		t.Mapping.Unsettled())
	waits := t.Waiting
	if fence != "" {
		waits = "true"
	}
	s.still = fmt.Sprintf("SELECT o.id FROM %s m JOIN unnest($1::text[], $2::bigint[]) o (id, token) ON %s WHERE %s",
		t.Name, s.sameSQL(), waits)
	return s
}

func (s *Statements) doneSQL() string {
	t, m := s.table, &s.table.Mapping
	rows := "unnest($1::text[], $2::bigint[]) o (id, token)"
	if s.receipts != nil {
		rows = "unnest($1::text[], $2::bigint[], $3::text[]) o (id, token, partition)"
	}
	if m.Done.How == mapping.DoneDelete {
		return s.changeSQL(rows, nil, "true")
	}
	return s.changeSQL(rows, m.SetDelivered(t.Info), s.settledSQL())
}

// changeSQL is a statement that changes the rows m of the list o, or deletes them if nothing is set. took is the
// condition that a row has got its mark. The statement returns the ids of the rows that were there and could be locked,
// and of those that have got it: see unmarked.
func (s *Statements) changeSQL(list string, set mapping.Assignments, took string) string {
	t := s.table
	change := func(list, condition string) string {
		start := "UPDATE " + t.Name + " m SET " + set.String() + " FROM "
		if set == nil {
			start = "DELETE FROM " + t.Name + " m USING "
		}
		return "u AS (" + start + list + " WHERE " + condition + " RETURNING o.id, " + took + " AS took) SELECT "
	}
	const ids = ", (SELECT array_agg(u.id) FROM u WHERE u.took)"
	if s.locked {
		return "WITH " + change(list, s.sameSQL()) + "$1::text[]" + ids
	}
	return LockFirst(t, list, s.sameSQL()) + ", " + change("l o", t.ID+" = o.o_id") + "(SELECT array_agg(l.id) FROM l)" + ids
}

// settledSQL is the condition that a row m doesn't wait any more.
func (s *Statements) settledSQL() string {
	return "(" + s.table.Mapping.Unsettled() + ") IS NOT TRUE"
}

// LockFirst begins a statement with l: the rows m of a list o that fulfil a condition and that no other transaction has
// locked.
func LockFirst(t *existing.Table, list, condition string) string {
	return fmt.Sprintf("WITH l AS MATERIALIZED (SELECT %s AS o_id, o.* FROM %s JOIN %s m ON %s FOR UPDATE OF m SKIP LOCKED) ",
		t.ID, list, t.Name, condition)
}

// sameSQL is the condition that m is the row o, and is still ours. A claim tells the row from another that has got its
// id since; without claims the token is the row's identity.
func (s *Statements) sameSQL() string {
	same := fmt.Sprintf("%s = o.id::%s", s.table.ID, s.table.IDType)
	if s.fence != "" {
		return same + " AND " + s.fence
	}
	return same + " AND " + s.table.IdentitySQL() + " = o.token"
}

// tokens is what sameSQL compares with.
func (s *Statements) tokens(c *Columns) []*int64 {
	if s.fence != "" {
		return c.Tokens
	}
	return c.Identity
}

func (s *Statements) waitingSQL() string {
	set := s.table.Mapping.SetWaiting(s.table.Info)
	if set == nil {
		return ""
	}
	return s.changeSQL("unnest($1::text[], $2::bigint[], $3::integer[], $4::bigint[], $5::boolean[], $6::text[]) o (id, token, "+
		"attempts, wait, blocked, error)", set, "true")
}

func (s *Statements) deadSQL(copied bool) string {
	t, m := s.table, &s.table.Mapping
	const outcome = `unnest($1::text[], $2::bigint[], $3::integer[], $4::text[], $5::text[]) o (id, token, attempts, reason, error)`
	switch {
	case m.Failure.FailedValue != "":
		return s.changeSQL(outcome, m.SetDead(t.Info), s.settledSQL())
	case t.Dead == nil:
		return ""
	}
	// The description of the last attempt in the dead letter replaces the row's own.
	values, columns := make(map[string]string), ""
	for i, c := range t.Info.Columns {
		if t.Dead.Column(c.Name) != nil || slices.Contains([]string{m.ID, m.MessageID, m.Payload}, c.Name) {
			values[c.Name] = fmt.Sprintf("l.c%d", i)
			columns += fmt.Sprintf(", %s AS c%d", existing.Column(c.Name), i)
		}
	}
	for name, value := range map[string]string{"reason": "l.reason",
		"error": t.Dead.CutError("error"), "attempts": "l.attempts", "dead_at": "now()",
		m.Failure.Error: t.Dead.CutError(m.Failure.Error), m.Failure.Attempts: "l.attempts"} {
		values[name] = strings.Replace(value, "o.error", "l.error", 1)
	}
	var names, from []string
	for _, c := range t.Dead.Columns {
		if value, ok := values[c.Name]; ok && !c.Generated {
			names, from = append(names, schema.QuoteIdentifier(c.Name)), append(from, value)
		}
	}
	list := fmt.Sprintf("SELECT o.*, %s AS o_id%s FROM %s JOIN %s m ON %s", t.ID, columns, outcome, t.Name, s.sameSQL())
	end := "SELECT (SELECT array_agg(l.id) FROM l), (SELECT array_agg(l.id) FROM l WHERE " + t.KeptSQL("n") + " = 0)"
	if !copied {
		list += " FOR UPDATE OF m SKIP LOCKED"
		end = fmt.Sprintf(", u AS (DELETE FROM %s m USING l WHERE %s = l.o_id AND %s = 0 RETURNING l.id) "+
			"SELECT (SELECT array_agg(l.id) FROM l), (SELECT array_agg(u.id) FROM u)", t.Name, t.ID, t.KeptSQL("n"))
	}
	return fmt.Sprintf("WITH l AS MATERIALIZED (%s), n AS MATERIALIZED (SELECT l.* FROM l WHERE %s), k AS (\n"+
		"INSERT INTO %s (%s) OVERRIDING SYSTEM VALUE SELECT %s FROM n l RETURNING 1) %s",
		list, t.NotDeadYet(func(name string) string { return values[name] }),
		t.Dead.TableName(), strings.Join(names, ", "), strings.Join(from, ", "), end)
}
