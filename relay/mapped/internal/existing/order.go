package existing

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/schema"
)

// orderBy chooses the order of rows, and what follows from it for uncommitted rows.
func (t *Table) orderBy() {
	m := &t.Mapping
	id := t.Info.Column(m.ID)
	by := m.Order
	if by == "" {
		by = m.ID
		if id.Kind != mapping.KindInteger && m.CreatedAt != "" {
			by = m.CreatedAt
		}
	}
	c := t.Info.Column(by)
	terms := []string{Column(by)}
	switch {
	case c.Disorder() == "":
		t.Along = AlongSequence
	case c.Kind == mapping.KindInteger, c.Kind == mapping.KindTime:
		t.Along = AlongTime
	}
	t.By = Column(by)
	if by != m.ID {
		terms = append(terms, t.ID)
	}
	if m.Priority != "" {
		terms = slices.Insert(terms, 0, Column(m.Priority)+" DESC NULLS LAST")
		t.Along = AlongNothing
	}
	if len(m.Types) > 0 {
		quoted := make([]string, len(m.Types))
		for i, name := range m.Types {
			quoted[i] = schema.QuoteLiteral(name)
		}
		terms = slices.Insert(terms, 0, "array_position(ARRAY["+strings.Join(quoted, ", ")+"]::text[], "+Column(m.EventType)+"::text)")
		t.Along = AlongNothing
	}
	t.Order = strings.Join(terms, ", ")
}

// The ends of a number of the order. A row without a time is the last, as it is in SQL.
const (
	firstBy = math.MinInt64 + 1
	lastBy  = math.MaxInt64 - 1
)

// BySQL is the order column as a whole number: an id, or microseconds since 2000. A time without a zone is counted as
// if it were in UTC: the order of such times is that of their clocks.
func (t *Table) BySQL() string {
	switch {
	case t.Along == AlongNothing:
		return "0::bigint"
	case t.Ordered().Kind == mapping.KindTime:
		return fmt.Sprintf("CASE WHEN isfinite(%[1]s) THEN ((extract(epoch FROM %[1]s) - 946684800) * 1000000)::bigint "+
			"WHEN %[1]s < '2000-01-01' THEN %[2]d::bigint ELSE %[3]d::bigint END", t.By, firstBy, lastBy)
	}
	return t.By + "::bigint"
}

// FromStart replaces FromSQL in a poll without a bound: the column of a row may be NULL.
const FromStart = "$1::bigint IS NOT NULL"

// FromSQL bounds the order column from below by $1. Rows at the bound itself are read again if several rows can have
// the same value. A bound of times is a finite one: see reading.Horizon.
func (t *Table) FromSQL() string {
	switch {
	case t.Along == AlongNothing:
		return FromStart
	case t.Ordered().Kind == mapping.KindTime:
		return fmt.Sprintf("%s >= '2000-01-01 00:00:00Z'::%s + $1::bigint * interval '1 microsecond'", t.By, t.Ordered().Base)
	}
	return fmt.Sprintf("%s > $1::bigint", t.By)
}
