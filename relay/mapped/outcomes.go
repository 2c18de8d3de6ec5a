package mapped

import (
	"slices"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/relay"
)

// outcomes is what a settlement changes in the table.
type outcomes struct {
	delivered []mark
	waiting   []mark // not delivered; another attempt follows
	dead      []mark
}

// mark is one row and its outcome.
type mark struct {
	id        string
	token     string
	identity  int64     // of the row that was read
	message   outbox.ID // message and partition are set only for a delivered row
	partition *string   // the partition that the broker has reported
	attempts  int
	wait      *time.Duration // until the next attempt; nil: no time of its own, or blocked
	blocked   bool
	reason    relay.Reason
	err       error
	again     time.Time // of a mark that was refused or undone: the earliest time of the next try
	undone    bool      // the row was there, and has not got the mark
}

func (o *outcomes) empty() bool { return len(o.delivered)+len(o.waiting)+len(o.dead) == 0 }

func (o *outcomes) all() []mark { return slices.Concat(o.delivered, o.waiting, o.dead) }

func (o *outcomes) each(f func(*mark)) {
	for _, list := range [][]mark{o.delivered, o.waiting, o.dead} {
		for i := range list {
			f(&list[i])
		}
	}
}

// among returns the marks whose ids are in the list, or, if listed is false, the other marks.
func (o *outcomes) among(ids []string, listed bool) outcomes {
	return outcomes{only(o.delivered, ids, listed), only(o.waiting, ids, listed), only(o.dead, ids, listed)}
}

func (o *outcomes) and(other outcomes) outcomes {
	return outcomes{slices.Concat(o.delivered, other.delivered), slices.Concat(o.waiting, other.waiting), slices.Concat(o.dead, other.dead)}
}

// singles splits o into outcomes of one mark each.
func (o *outcomes) singles() (singles []outcomes) {
	for _, m := range o.delivered {
		singles = append(singles, outcomes{delivered: []mark{m}})
	}
	for _, m := range o.waiting {
		singles = append(singles, outcomes{waiting: []mark{m}})
	}
	for _, m := range o.dead {
		singles = append(singles, outcomes{dead: []mark{m}})
	}
	return singles
}

// only returns the marks whose ids are in the list, or, if listed is false, the other marks.
func only(marks []mark, ids []string, listed bool) (some []mark) {
	list := make(map[string]bool, len(ids))
	for _, id := range ids {
		list[id] = true
	}
	for i := range marks {
		if list[marks[i].id] == listed {
			some = append(some, marks[i])
		}
	}
	return some
}

func idsOf(marks []mark) (ids []string) {
	for i := range marks {
		ids = append(ids, marks[i].id)
	}
	return ids
}
