package mapped

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/schema"
)

// orderBy chooses the order of rows, and what follows from it for uncommitted rows.
func (t *table) orderBy() {
	m := &t.mapping
	id := t.info.Column(m.ID)
	by := m.Order
	if by == "" {
		by = m.ID
		if id.Kind != mapping.KindInteger && m.CreatedAt != "" {
			by = m.CreatedAt
		}
	}
	c := t.info.Column(by)
	terms := []string{column(by)}
	switch {
	case c.Disorder() == "":
		t.along = alongSequence
	case c.Kind == mapping.KindInteger, c.Kind == mapping.KindTime:
		t.along = alongTime
	}
	t.by = column(by)
	if by != m.ID {
		terms = append(terms, t.id)
	}
	if m.Priority != "" {
		terms = slices.Insert(terms, 0, column(m.Priority)+" DESC NULLS LAST")
		t.along = alongNothing
	}
	if len(m.Types) > 0 {
		quoted := make([]string, len(m.Types))
		for i, name := range m.Types {
			quoted[i] = schema.QuoteLiteral(name)
		}
		terms = slices.Insert(terms, 0, "array_position(ARRAY["+strings.Join(quoted, ", ")+"]::text[], "+column(m.EventType)+"::text)")
		t.along = alongNothing
	}
	t.order = strings.Join(terms, ", ")
}

// The ends of a number of the order. A row without a time is the last, as it is in SQL.
const (
	firstBy = math.MinInt64 + 1
	lastBy  = math.MaxInt64 - 1
)

// bySQL is the order column as a whole number: an id, or microseconds since 2000. A time without a zone is counted as
// if it were in UTC: the order of such times is that of their clocks.
func (t *table) bySQL() string {
	switch {
	case t.along == alongNothing:
		return "0::bigint"
	case t.ordered().Kind == mapping.KindTime:
		return fmt.Sprintf("CASE WHEN isfinite(%[1]s) THEN ((extract(epoch FROM %[1]s) - 946684800) * 1000000)::bigint "+
			"WHEN %[1]s < '2000-01-01' THEN %[2]d::bigint ELSE %[3]d::bigint END", t.by, firstBy, lastBy)
	}
	return t.by + "::bigint"
}

// fromStart replaces fromSQL in a poll without a bound: the column of a row may be NULL.
const fromStart = "$1::bigint IS NOT NULL"

// fromSQL bounds the order column from below by $1. Rows at the bound itself are read again if several rows can have
// the same value. A bound of times is a finite one: see horizon.
func (t *table) fromSQL() string {
	switch {
	case t.along == alongNothing:
		return fromStart
	case t.ordered().Kind == mapping.KindTime:
		return fmt.Sprintf("%s >= '2000-01-01 00:00:00Z'::%s + $1::bigint * interval '1 microsecond'", t.by, t.ordered().Base)
	}
	return fmt.Sprintf("%s > $1::bigint", t.by)
}
