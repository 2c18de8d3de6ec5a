package pending

import (
	"time"

	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/mapped/internal/marking"
)

// Sorted is a settlement by its rows: those of the settled prefix by their outcome, and the holds.
type Sorted struct {
	relay.Settlement
	Entries []Entry
	Hold    map[uint64]*relay.Hold
	dead    map[uint64]*relay.Dead
}

// Sort sorts the entries that a settlement settles by their outcomes.
func Sort(s relay.Settlement, entries []Entry) *Sorted {
	x := &Sorted{Settlement: s, Entries: entries}
	if len(s.Hold)+len(s.Dead) > 0 {
		x.Hold, x.dead = make(map[uint64]*relay.Hold), make(map[uint64]*relay.Dead)
		for i := range s.Hold {
			x.Hold[s.Hold[i].Delivery.Ref] = &s.Hold[i]
		}
		for i := range s.Dead {
			x.dead[s.Dead[i].Delivery.Ref] = &s.Dead[i]
		}
	}
	return x
}

// AddTo adds the outcomes of entries of the prefix to o. Held rows are no longer in flight. They need a mark only if
// they failed, or, with always, to remove their reservation.
func (x *Sorted) AddTo(o *marking.Outcomes, entries []Entry, always bool) {
	for _, e := range entries {
		if h := x.Hold[e.Ref]; h != nil {
			if always || h.Err != nil || !h.RetryAt.IsZero() || h.Blocked && !h.Delivery.Blocked {
				o.Waiting = append(o.Waiting, HoldMark(e, h))
			}
			continue
		}
		if d := x.dead[e.Ref]; d != nil {
			o.Dead = append(o.Dead, deadMark(e, d))
			continue
		}
		o.Delivered = append(o.Delivered, marking.Mark{ID: e.ID, Token: e.Token, Identity: e.Identity, Message: e.Message})
	}
}

// Outcomes returns those of a whole settlement, see AddTo.
func (x *Sorted) Outcomes(h *Holds, always bool) *marking.Outcomes {
	var o marking.Outcomes
	x.AddTo(&o, x.Entries, always)
	x.AddHeld(h, func(string) *marking.Outcomes { return &o })
	return &o
}

// AddHeld takes the outcomes of rows that had been set aside. It adds each to the outcomes that the function of
// returns for the row's lane; nil leaves the row out.
func (x *Sorted) AddHeld(h *Holds, of func(lane string) *marking.Outcomes) {
	find := func(d *relay.Delivery) (Hold, *marking.Outcomes) {
		if was, ok := h.find(d); ok {
			return was, of(d.Lane())
		}
		return Hold{}, nil
	}
	for _, d := range x.HeldDelivered {
		if was, o := find(d); o != nil {
			o.Delivered = append(o.Delivered, marking.Mark{ID: was.ID, Token: was.Token, Identity: was.Identity, Message: was.Message})
		}
	}
	for i := range x.HeldRetry {
		if was, o := find(x.HeldRetry[i].Delivery); o != nil {
			o.Waiting = append(o.Waiting, HoldMark(was.Entry, &x.HeldRetry[i]))
		}
	}
	for i := range x.HeldDead {
		if was, o := find(x.HeldDead[i].Delivery); o != nil {
			o.Dead = append(o.Dead, deadMark(was.Entry, &x.HeldDead[i]))
		}
	}
}

// HoldMark is the mark of a row that waits.
func HoldMark(e Entry, h *relay.Hold) marking.Mark {
	m := marking.Mark{ID: e.ID, Token: e.Token, Identity: e.Identity, Attempts: h.Delivery.Attempts, Blocked: h.Blocked, Err: h.Err}
	if !h.RetryAt.IsZero() {
		wait := max(time.Until(h.RetryAt), 0)
		if wait < never || h.Err != nil {
			m.Wait = &wait
		}
	}
	return m
}

// never is a wait that only a time without an end leads to, in the column for when a message may be delivered. It isn't
// written as the time of the next attempt: somebody may give the row another one.
const never = 200 * 365 * 24 * time.Hour

func deadMark(e Entry, d *relay.Dead) marking.Mark {
	return marking.Mark{ID: e.ID, Token: e.Token, Identity: e.Identity, Attempts: d.Delivery.Attempts, Reason: d.Reason, Err: d.Err}
}

// Remember records in holds what a settlement has stored.
func (x *Sorted) Remember(h *Holds) {
	for _, e := range x.Entries {
		if hold := x.Hold[e.Ref]; hold != nil {
			e.Token = "" // no relay has it while it waits
			h.Add(e, hold)
		}
	}
	h.Settle(&x.Settlement)
}
