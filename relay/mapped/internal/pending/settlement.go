package pending

import (
	"time"

	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/mapped/internal/marking"
)

// Sorted is a settlement by its rows: those of the settled prefix by their outcome, and the holds.
type Sorted struct {
	relay.Settlement
	Entries   []Entry
	HoldByRef map[uint64]*relay.Hold
	deadByRef map[uint64]*relay.Dead
}

// Sort sorts the entries that a settlement settles by their outcomes.
func Sort(settlement relay.Settlement, entries []Entry) *Sorted {
	s := &Sorted{Settlement: settlement, Entries: entries}
	if len(settlement.Hold)+len(settlement.Dead) > 0 {
		s.HoldByRef, s.deadByRef = make(map[uint64]*relay.Hold), make(map[uint64]*relay.Dead)
		for i := range settlement.Hold {
			s.HoldByRef[settlement.Hold[i].Delivery.Ref] = &settlement.Hold[i]
		}
		for i := range settlement.Dead {
			s.deadByRef[settlement.Dead[i].Delivery.Ref] = &settlement.Dead[i]
		}
	}
	return s
}

// AddTo adds the outcomes of entries of the prefix to o. Held rows are no longer in flight. They need a mark only if
// they failed, or, with always, to remove their reservation.
func (s *Sorted) AddTo(o *marking.Outcomes, entries []Entry, always bool) {
	for _, e := range entries {
		if h := s.HoldByRef[e.Ref]; h != nil {
			if always || h.Err != nil || !h.RetryAt.IsZero() || h.Blocked && !h.Delivery.Blocked {
				o.Waiting = append(o.Waiting, HoldMark(e, h))
			}
			continue
		}
		if d := s.deadByRef[e.Ref]; d != nil {
			o.Dead = append(o.Dead, deadMark(e, d))
			continue
		}
		o.Delivered = append(o.Delivered, marking.Mark{ID: e.ID, Token: e.Token, Identity: e.Identity, Message: e.Message})
	}
}

// Outcomes returns those of a whole settlement, see AddTo.
func (s *Sorted) Outcomes(h *Holds, always bool) *marking.Outcomes {
	var o marking.Outcomes
	s.AddTo(&o, s.Entries, always)
	s.AddHeld(h, func(string) *marking.Outcomes { return &o })
	return &o
}

// AddHeld takes the outcomes of rows that had been set aside. It adds each to the outcomes that forLane returns; nil
// leaves the row out.
func (s *Sorted) AddHeld(h *Holds, forLane func(lane string) *marking.Outcomes) {
	find := func(d *relay.Delivery) (Hold, *marking.Outcomes) {
		if was, ok := h.find(d); ok {
			return was, forLane(d.Lane())
		}
		return Hold{}, nil
	}
	for _, d := range s.HeldDelivered {
		if was, o := find(d); o != nil {
			o.Delivered = append(o.Delivered, marking.Mark{ID: was.ID, Token: was.Token, Identity: was.Identity, Message: was.Message})
		}
	}
	for i := range s.HeldRetry {
		if was, o := find(s.HeldRetry[i].Delivery); o != nil {
			o.Waiting = append(o.Waiting, HoldMark(was.Entry, &s.HeldRetry[i]))
		}
	}
	for i := range s.HeldDead {
		if was, o := find(s.HeldDead[i].Delivery); o != nil {
			o.Dead = append(o.Dead, deadMark(was.Entry, &s.HeldDead[i]))
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
func (s *Sorted) Remember(h *Holds) {
	for _, e := range s.Entries {
		if hold := s.HoldByRef[e.Ref]; hold != nil {
			e.Token = "" // no relay has it while it waits
			h.Add(e, hold)
		}
	}
	h.Settle(&s.Settlement)
}
