package mapped

import (
	"time"

	"github.com/pgoutbox/outbox/relay"
)

// settled is a settlement split up: the rows of the settled prefix by their outcome, and the holds.
type settled struct {
	relay.Settlement
	entries []entry
	hold    map[uint64]*relay.Hold
	dead    map[uint64]*relay.Dead
}

func split(s relay.Settlement, entries []entry) *settled {
	x := &settled{Settlement: s, entries: entries}
	if len(s.Hold)+len(s.Dead) > 0 {
		x.hold, x.dead = make(map[uint64]*relay.Hold), make(map[uint64]*relay.Dead)
		for i := range s.Hold {
			x.hold[s.Hold[i].Delivery.Ref] = &s.Hold[i]
		}
		for i := range s.Dead {
			x.dead[s.Dead[i].Delivery.Ref] = &s.Dead[i]
		}
	}
	return x
}

// of sorts entries of the prefix into o. Held rows are no longer in flight. They need a mark only if they failed, or,
// with always, to remove their reservation.
func (x *settled) of(o *outcomes, entries []entry, always bool) {
	for _, e := range entries {
		if h := x.hold[e.ref]; h != nil {
			if always || h.Err != nil || !h.RetryAt.IsZero() || h.Blocked && !h.Delivery.Blocked {
				o.waiting = append(o.waiting, holdMark(e, h))
			}
			continue
		}
		if d := x.dead[e.ref]; d != nil {
			o.dead = append(o.dead, deadMark(e, d))
			continue
		}
		o.delivered = append(o.delivered, mark{id: e.id, token: e.token, identity: e.identity, message: e.message})
	}
}

// outcomes sorts a whole settlement, see of.
func (x *settled) outcomes(h *holds, always bool) *outcomes {
	var o outcomes
	x.of(&o, x.entries, always)
	x.held(h, func(string) *outcomes { return &o })
	return &o
}

// held takes the outcomes of rows that had been set aside. It adds each to the outcomes that the function of
// returns for the row's lane; nil leaves the row out.
func (x *settled) held(h *holds, of func(lane string) *outcomes) {
	find := func(d *relay.Delivery) (hold, *outcomes) {
		if was, ok := h.find(d); ok {
			return was, of(d.Lane())
		}
		return hold{}, nil
	}
	for _, d := range x.HeldDelivered {
		if was, o := find(d); o != nil {
			o.delivered = append(o.delivered, mark{id: was.id, token: was.token, identity: was.identity, message: was.message})
		}
	}
	for i := range x.HeldRetry {
		if was, o := find(x.HeldRetry[i].Delivery); o != nil {
			o.waiting = append(o.waiting, holdMark(was.entry, &x.HeldRetry[i]))
		}
	}
	for i := range x.HeldDead {
		if was, o := find(x.HeldDead[i].Delivery); o != nil {
			o.dead = append(o.dead, deadMark(was.entry, &x.HeldDead[i]))
		}
	}
}

func holdMark(e entry, h *relay.Hold) mark {
	m := mark{id: e.id, token: e.token, identity: e.identity, attempts: h.Delivery.Attempts, blocked: h.Blocked, err: h.Err}
	if !h.RetryAt.IsZero() {
		wait := max(time.Until(h.RetryAt), 0)
		if wait < never || h.Err != nil {
			m.wait = &wait
		}
	}
	return m
}

// never is a wait that only a time without an end leads to, in the column for when a message may be delivered. It isn't
// written as the time of the next attempt: somebody may give the row another one.
const never = 200 * 365 * 24 * time.Hour

func deadMark(e entry, d *relay.Dead) mark {
	return mark{id: e.id, token: e.token, identity: e.identity, attempts: d.Delivery.Attempts, reason: d.Reason, err: d.Err}
}

// remember records in holds what a settlement has stored.
func (x *settled) remember(h *holds) {
	for _, e := range x.entries {
		if hold := x.hold[e.ref]; hold != nil {
			e.token = "" // no relay has it while it waits
			h.add(e, hold)
		}
	}
	h.tried(&x.Settlement)
}
