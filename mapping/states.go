package mapping

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pgoutbox/outbox/schema"
)

// Waiting is the SQL condition, on the table as m, that a row was not delivered, is no dead letter, and is not claimed
// by a status.
func (m *Mapping) Waiting() string {
	column := "m." + schema.QuoteIdentifier(m.Done.Column)
	switch m.Done.How {
	case DoneTimestamp:
		return column + " IS NULL"
	case DoneBoolean:
		return "(" + column + " = false OR " + column + " IS NULL)"
	case DoneStatus:
		return column + " = " + schema.QuoteLiteral(m.Done.Waiting)
	}
	return "true"
}

// Unsettled is the same for a row that was not delivered and is no dead letter, whether or not it is claimed.
func (m *Mapping) Unsettled() string {
	if m.Claim.Status == "" {
		return m.Waiting()
	}
	return "(" + m.Waiting() + " OR m." + schema.QuoteIdentifier(m.Done.Column) + " = " + schema.QuoteLiteral(m.Claim.Status) + ")"
}

// Blocked is the SQL condition, on the table as m, that a row waits until an operator acts. It is "" if no column shows
// it: then the relay alone knows.
func (m *Mapping) Blocked() string {
	column := m.Failure.NextAttempt
	if column == "" {
		column = m.Claim.Until
	}
	if column == "" || m.Done.How == "" { // a strategy that marks no row writes no such column either
		return ""
	}
	return m.Unsettled() + " AND m." + schema.QuoteIdentifier(column) + " = 'infinity'"
}

// Freed is the SQL condition, on the table as m, that an operator has reset the attempts of a row that was blocked: its
// error or last attempt shows that it was tried, and its attempts are none. It is never NULL, and "" if no
// columns show it. Of a row that wasn't blocked it means nothing.
func (m *Mapping) Freed() string {
	tried := m.Failure.Error
	if tried == "" {
		tried = m.Failure.LastAttempt
	}
	if m.Failure.Attempts == "" || tried == "" {
		return ""
	}
	return fmt.Sprintf("coalesce(m.%s, 0) = 0 AND m.%s IS NOT NULL", schema.QuoteIdentifier(m.Failure.Attempts),
		schema.QuoteIdentifier(tried))
}

// Released is the SQL condition, on the table as m, that an operator has released a row that is blocked, which has been
// claimed until infinity: by its next attempt or by its attempts. It is "" if no column shows it.
func (m *Mapping) Released() string {
	var signs []string
	if m.Failure.NextAttempt != "" {
		signs = append(signs, "m."+schema.QuoteIdentifier(m.Failure.NextAttempt)+" IS DISTINCT FROM 'infinity'")
	}
	if freed := m.Freed(); freed != "" {
		signs = append(signs, freed)
	}
	if signs == nil {
		return ""
	}
	return fmt.Sprintf("m.%s = 'infinity' AND (%s)", schema.QuoteIdentifier(m.Claim.Until), strings.Join(signs, " OR "))
}

// NextAttempt is Failure.NextAttempt of the table as m, as MomentSQL has it, and NULL once an operator has reset the
// attempts.
func (m *Mapping) NextAttempt(t *Table) string {
	next := t.Column(m.Failure.NextAttempt).MomentSQL("m." + schema.QuoteIdentifier(m.Failure.NextAttempt))
	if freed := m.Freed(); freed != "" && !m.Claim.Counts { // a claim would count first
		return fmt.Sprintf("CASE WHEN NOT (%s) THEN %s END", freed, next)
	}
	return next
}

// Assignments give a row m of a table a state, in an UPDATE.
type Assignments []assignment

type assignment struct{ column, value string }

// Set assigns an expression to a column, unless the mapping has no name for it. A column that has an expression keeps
// it.
func (a *Assignments) Set(column, value string) {
	if column != "" && a.Value(column) == "" {
		*a = append(*a, assignment{column, value})
	}
}

// Value is the expression that a column gets; "" for none.
func (a Assignments) Value(column string) string {
	if i := slices.IndexFunc(a, func(s assignment) bool { return s.column == column }); i >= 0 {
		return a[i].value
	}
	return ""
}

// String is what follows SET.
func (a Assignments) String() string {
	var list []string
	for _, s := range a {
		list = append(list, schema.QuoteIdentifier(s.column)+" = "+s.value)
	}
	return strings.Join(list, ", ")
}

// moment is the time of a delivery. The transaction may have begun before the message was published.
const moment = "clock_timestamp()"

// SetDone marks a row as delivered, where it isn't deleted.
func (m *Mapping) SetDone() (set Assignments) {
	switch m.Done.How {
	case DoneTimestamp:
		set.Set(m.Done.Column, moment)
	case DoneBoolean:
		set.Set(m.Done.Column, "true")
	case DoneStatus:
		set.Set(m.Done.Column, schema.QuoteLiteral(m.Done.Value))
	}
	set.Set(m.Done.Flag, "true")
	set.Set(m.Done.At, moment)
	set.Set(m.Done.UpdatedAt, moment)
	return set
}

// SetDelivered is SetDone for a relay. Where the mapping has a column for the partition, o.partition is the broker's,
// or NULL.
func (m *Mapping) SetDelivered(t *Table) Assignments {
	set := m.SetDone()
	set.Set(m.Done.AckAt, moment)
	set.Set(m.Claim.Owner, "NULL")
	if p := t.Column(m.Done.Partition); p != nil {
		set.Set(p.Name, "coalesce(o.partition::"+p.Type+", m."+schema.QuoteIdentifier(p.Name)+")")
	}
	return set
}

// SetWaiting marks a row that waits for another attempt: of the outcome o it takes attempts, error, blocked, and wait,
// which are microseconds, or NULL if the row has no time of its own.
func (m *Mapping) SetWaiting(t *Table) (set Assignments) {
	next := "CASE WHEN o.blocked THEN 'infinity'::timestamptz WHEN o.wait IS NOT NULL THEN now() + o.wait * interval '1 microsecond'"
	const otherwise = " ELSE now()" // the row waits behind another
	set.Set(m.Failure.Attempts, "o.attempts")
	set.Set(m.Failure.Error, "coalesce("+t.CutError(m.Failure.Error)+", m."+schema.QuoteIdentifier(m.Failure.Error)+")")
	set.Set(m.Failure.LastAttempt, "now()")
	if c := t.Column(m.Failure.NextAttempt); c != nil && c.NotNull {
		set.Set(c.Name, next+otherwise+" END")
	}
	set.Set(m.Failure.NextAttempt, next+" END")
	set.Set(m.Done.Flag, "false")
	set.Set(m.Done.AckAt, "now()")
	set.Set(m.Done.UpdatedAt, "now()")
	set.Set(m.Claim.Until, next+otherwise+" END")
	if m.Claim.Status != "" {
		set.Set(m.Done.Column, schema.QuoteLiteral(m.Done.Waiting))
	}
	set.Set(m.Claim.Owner, "NULL")
	return set
}

// SetDead marks a dead letter by its status: of the outcome o it takes attempts and error.
func (m *Mapping) SetDead(t *Table) (set Assignments) {
	set.Set(m.Done.Column, schema.QuoteLiteral(m.Failure.FailedValue))
	set.Set(m.Failure.Attempts, "o.attempts")
	set.Set(m.Failure.Error, t.CutError(m.Failure.Error))
	set.Set(m.Failure.LastAttempt, "now()")
	set.Set(m.Done.AckAt, "now()")
	set.Set(m.Done.UpdatedAt, "now()")
	set.Set(m.Claim.Owner, "NULL")
	return set
}

// SetUntried marks a row as one that was never attempted, except for its status. It leaves out columns that the table
// has no more.
func (m *Mapping) SetUntried(t *Table) (set Assignments) {
	for _, s := range []assignment{{m.Failure.Error, "''"}, {m.Failure.NextAttempt, moment}, {m.Claim.Until, moment},
		{m.Claim.Owner, "''"}} {
		if c := t.Column(s.column); c != nil && !c.NotNull {
			s.value = "NULL"
		}
		set.Set(s.column, s.value)
	}
	set.Set(m.Failure.Attempts, "0")
	set.Set(m.Done.Flag, "false")
	set.Set(m.Done.UpdatedAt, moment)
	return slices.DeleteFunc(set, func(s assignment) bool { return t.Column(s.column) == nil })
}

// CutError is the error of an outcome o, cut to the length of its column. A cast cuts a text that is too long, an
// assignment refuses it.
func (t *Table) CutError(column string) string {
	if c := t.Column(column); c != nil {
		return "o.error::" + c.Type
	}
	return "o.error"
}
