// Package marking writes into a table's rows what has become of their messages: delivered, waiting, dead.
package marking

import (
	"slices"
	"strconv"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/relay"
)

// Outcomes is what a settlement changes in the table.
type Outcomes struct {
	Delivered []Mark
	Waiting   []Mark // not delivered; another attempt follows
	Dead      []Mark
}

// Mark is one row and its outcome.
type Mark struct {
	ID        string
	Token     string
	Identity  int64     // of the row that was read
	Message   outbox.ID // Message and partition are set only for a delivered row
	partition *string   // the partition that the broker has reported
	Attempts  int
	Wait      *time.Duration // until the next attempt; nil: no time of its own, or blocked
	Blocked   bool
	Reason    relay.Reason
	Err       error
	again     time.Time // of a mark that was refused or undone: the earliest time of the next try
	undone    bool      // the row was there, and has not got the mark
}

// Empty reports whether nothing changes.
func (o *Outcomes) Empty() bool { return len(o.Delivered)+len(o.Waiting)+len(o.Dead) == 0 }

func (o *Outcomes) all() []Mark { return slices.Concat(o.Delivered, o.Waiting, o.Dead) }

func (o *Outcomes) each(f func(*Mark)) {
	for _, list := range [][]Mark{o.Delivered, o.Waiting, o.Dead} {
		for i := range list {
			f(&list[i])
		}
	}
}

// filter returns the marks whose ids are in the list, or, if listed is false, the other marks.
func (o *Outcomes) filter(ids []string, listed bool) Outcomes {
	return Outcomes{filter(o.Delivered, ids, listed), filter(o.Waiting, ids, listed), filter(o.Dead, ids, listed)}
}

func (o *Outcomes) plus(other Outcomes) Outcomes {
	return Outcomes{slices.Concat(o.Delivered, other.Delivered), slices.Concat(o.Waiting, other.Waiting), slices.Concat(o.Dead, other.Dead)}
}

// singles splits o into outcomes of one mark each.
func (o *Outcomes) singles() (singles []Outcomes) {
	for _, m := range o.Delivered {
		singles = append(singles, Outcomes{Delivered: []Mark{m}})
	}
	for _, m := range o.Waiting {
		singles = append(singles, Outcomes{Waiting: []Mark{m}})
	}
	for _, m := range o.Dead {
		singles = append(singles, Outcomes{Dead: []Mark{m}})
	}
	return singles
}

// filter returns the marks whose ids are in the list, or, if listed is false, the other marks.
func filter(marks []Mark, ids []string, listed bool) (some []Mark) {
	list := make(map[string]bool, len(ids))
	for _, id := range ids {
		list[id] = true
	}
	for i := range marks {
		if list[marks[i].ID] == listed {
			some = append(some, marks[i])
		}
	}
	return some
}

func idsOf(marks []Mark) (ids []string) {
	for i := range marks {
		ids = append(ids, marks[i].ID)
	}
	return ids
}

// Columns are outcomes as the statements unnest them.
type Columns struct {
	IDs      []string
	Tokens   []*int64 // of claims
	Identity []*int64 // of rows
	attempts []int32
	waits    []*int64
	Blocked  []bool
	reasons  []string
}

// NewColumns returns the columns of marks.
func NewColumns(marks []Mark) *Columns {
	c := &Columns{}
	for i := range marks {
		m := &marks[i]
		c.IDs = append(c.IDs, m.ID)
		var token *int64
		if n, err := strconv.ParseInt(m.Token, 10, 64); err == nil {
			token = &n
		}
		c.Tokens, c.Identity = append(c.Tokens, token), append(c.Identity, &m.Identity)
		c.attempts = append(c.attempts, int32(min(m.Attempts, 1<<15-1))) // the column may be a smallint
		var wait *int64
		if m.Wait != nil {
			us := m.Wait.Microseconds()
			wait = &us
		}
		c.waits = append(c.waits, wait)
		c.Blocked = append(c.Blocked, m.Blocked)
		c.reasons = append(c.reasons, string(m.Reason))
	}
	return c
}
