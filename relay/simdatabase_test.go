package relay

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// simHold is a row of outbox.holds. A zero retryAt waits behind the head of its lane.
type simHold struct {
	d       Delivery
	retryAt time.Time // by the database's clock
	blocked bool
}

// dueAt is when the hold is due by a relay's clock.
func (h simHold) dueAt(r *simRelay) time.Time {
	if h.retryAt.IsZero() {
		return time.Time{}
	}
	return h.retryAt.Add(r.skew)
}

// stored is a relay's time as the database has it.
func stored(r *simRelay, at time.Time) time.Time {
	if at.IsZero() {
		return at
	}
	return at.Add(-r.skew)
}

// apply makes one transaction of a settlement, and checks what it does to the cursor.
func (d *simDestination) apply(r *simRelay, st *Settlement) error {
	delivered, err := d.move(st)
	if err != nil {
		return fmt.Errorf("%s: %w", d.name, err)
	}
	// Each message counts when it is settled, so a crash makes none count twice.
	for _, m := range st.HeldDelivered {
		if !m.Replayed || d.wants(m) {
			delivered++
		}
	}
	if st.Delivered != delivered {
		return fmt.Errorf("%s: a settlement of %d delivered messages counts %d", d.name, delivered, st.Delivered)
	}
	for _, h := range st.Hold {
		d.counts.Held++
		d.holdBehind(simHold{d: *h.Delivery, retryAt: stored(r, h.RetryAt), blocked: h.Blocked})
		d.trace("held %d until %v", h.Delivery.Position, h.RetryAt)
	}
	for _, m := range st.Dead {
		if err := d.die(m); err != nil {
			return err
		}
	}
	for _, m := range st.HeldDelivered {
		if err := d.unhold(m); err != nil {
			return err
		}
	}
	for _, h := range st.HeldRetry {
		list := d.holds[h.Delivery.Lane()]
		i := slices.IndexFunc(list, func(x simHold) bool { return x.d.Position == h.Delivery.Position })
		if i < 0 {
			return fmt.Errorf("%s: retry of %d, which is not held", d.name, h.Delivery.Position)
		}
		list[i].retryAt, list[i].blocked, list[i].d.Attempts = stored(r, h.RetryAt), h.Blocked, h.Delivery.Attempts
	}
	for _, m := range st.HeldDead {
		if err := d.unhold(m.Delivery); err != nil {
			return err
		}
		if err := d.die(m); err != nil {
			return err
		}
	}
	return nil
}

// move moves the cursor, and returns how many delivered messages it passes.
func (d *simDestination) move(st *Settlement) (delivered int, err error) {
	if st.Through == nil {
		if len(st.Hold)+len(st.Dead) > 0 {
			return 0, errors.New("messages set aside without moving the cursor past them")
		}
		return 0, nil
	}
	through := int(st.Through.Position)
	if through <= d.cursor {
		return 0, fmt.Errorf("cursor moves back from %d to %d", d.cursor, through)
	}
	aside := map[int64]bool{}
	for _, h := range st.Hold {
		aside[h.Delivery.Position] = true
	}
	for _, m := range st.Dead {
		aside[m.Delivery.Position] = true
	}
	for _, m := range d.table[d.cursor:through] {
		switch {
		case !d.wants(m):
			d.counts.Deselect++
		case aside[m.Position]:
		case d.seen[m.Position] == 0:
			return 0, fmt.Errorf("cursor passes message %d, which is neither delivered nor set aside", m.Position)
		default:
			delivered++
		}
	}
	d.cursor = through
	d.trace("cursor at %d", through)
	return delivered, nil
}

// holdBehind stores a hold. One that is to wait behind others and has none before it is due at once.
func (d *simDestination) holdBehind(h simHold) {
	list := d.holds[h.d.Lane()]
	if h.retryAt.IsZero() && !h.blocked && (len(list) == 0 || list[0].d.Position > h.d.Position) {
		h.retryAt = d.now
	}
	d.hold(h)
}

func (d *simDestination) hold(h simHold) {
	lane := h.d.Lane()
	list := d.holds[lane]
	for i := range list {
		if list[i].d.Position == h.d.Position {
			return // ON CONFLICT DO NOTHING
		}
	}
	list = append(list, h)
	slices.SortFunc(list, func(a, b simHold) int { return int(a.d.Position - b.d.Position) })
	d.holds[lane] = list
}

func (d *simDestination) unhold(m *Delivery) error {
	lane := m.Lane()
	list := d.holds[lane]
	i := slices.IndexFunc(list, func(h simHold) bool { return h.d.Position == m.Position })
	if i < 0 {
		return fmt.Errorf("%s: message %d is not held", d.name, m.Position)
	}
	list = slices.Delete(list, i, i+1)
	if len(list) == 0 {
		delete(d.holds, lane)
	} else {
		d.holds[lane] = list
	}
	return nil
}

func (d *simDestination) die(m Dead) error {
	id := m.Delivery.Position
	d.counts.Dead++
	d.trace("dead %d: %s", id, m.Reason)
	if m.Reason == ReasonExhausted && d.failures[id] < d.cfg.MaxAttempts {
		return fmt.Errorf("%s: message %d died of %d failures, %d are allowed", d.name, id, d.failures[id], d.cfg.MaxAttempts)
	}
	if d.cfg.OnExhausted != DeadLetter {
		return fmt.Errorf("%s: message %d died under the policy %q", d.name, id, d.cfg.OnExhausted)
	}
	d.dead[id], d.excused[id] = true, true
	return nil
}

// operate is an operator who unblocks a lane or sends a dead letter again.
func (d *simDestination) operate() {
	for _, lane := range sortedKeys(d.holds) {
		if h := d.holds[lane]; h[0].blocked {
			delete(d.refused, h[0].d.Position)
			delete(d.poison, h[0].d.Position)
			delete(d.astray, h[0].d.Position)
			h[0].blocked, h[0].retryAt, h[0].d.Invalid = false, d.now, nil
			d.counts.Requeued++
			d.trace("operator unblocks %s", lane)
			return
		}
	}
	for _, id := range sortedKeys(d.dead) {
		m := *d.table[id-1]
		if m.Invalid != nil {
			continue
		}
		delete(d.refused, id)
		delete(d.poison, id)
		delete(d.astray, id)
		delete(d.dead, id)
		d.hold(simHold{d: m, retryAt: d.now})
		d.counts.Requeued++
		d.trace("operator requeues %d", id)
		return
	}
}

// replay is an operator who sends what the cursor has passed of a key once more.
func (d *simDestination) replay() {
	if d.cursor == 0 {
		return
	}
	from := d.rng.IntN(d.cursor)
	lane := d.lanes[from]
	for i := from; i < d.cursor; i++ {
		m := *d.table[i]
		if d.lanes[i] != lane || m.Invalid != nil || d.dead[m.Position] {
			continue
		}
		m.Replayed = true
		d.holdBehind(simHold{d: m})
		d.counts.Replayed++
		d.trace("operator replays %s:%d", lane, m.Position)
	}
}

// finished tells whether everything that is committed is delivered or dead.
func (d *simDestination) finished() bool { return d.cursor == len(d.table) && len(d.holds) == 0 }

// finishedApart is finished, but for lanes whose next message goes to a topic that is closed, or that a clock that
// jumped has set aside for later.
func (d *simDestination) finishedApart() bool {
	for _, list := range d.holds {
		if !d.closed[list[0].d.Topic] && !list[0].retryAt.After(d.now) {
			return false
		}
	}
	return d.cursor == len(d.table)
}

func (d *simDestination) verdict() error {
	for _, m := range d.table {
		if d.wants(m) && d.seen[m.Position] == 0 && !d.dead[m.Position] {
			return fmt.Errorf("%s: message %d is lost", d.name, m.Position)
		}
	}
	return nil
}
