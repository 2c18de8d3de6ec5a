package pending

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/mapped/internal/existing"
)

// Holds remembers which messages of which lane wait for a later attempt. Rows stay in their table, unmarked, and are
// read again when they are due. Messages that came by the log are kept in memory, because their rows may be gone. Safe
// for concurrent use.
type Holds struct {
	Whole   bool
	changed func() // called after each change, without mu

	mu     sync.Mutex
	lanes  map[string]*heldLane
	routes map[relay.Route]relay.Route // one copy of each
	count  int
}

type heldLane struct {
	shard int
	keyed bool
	list  []Hold
	later time.Time // its first row can't be read before
}

// Hold is a row that was set aside.
type Hold struct {
	Entry
	route    relay.Route
	position int64
	Attempts int
	Due      time.Time // zero: it waits behind its head
	Blocked  bool
	Freed    bool            // it was blocked, and an operator has released it
	kept     *relay.Delivery // the message, if it is kept in memory
	since    time.Time       // when it was set aside
	written  time.Time       // when it was written, or from when on it may be delivered; zero: unknown
	delayed  bool            // it has not failed: it is paused, or for later
	err      error           // of its last attempt
	failedAt time.Time
}

// NewHolds returns no holds. changed may be nil if none are added.
func NewHolds(changed func()) *Holds {
	return &Holds{lanes: make(map[string]*heldLane), routes: make(map[relay.Route]relay.Route), changed: changed}
}

// change begins a change, which ends with what it returns.
func (h *Holds) change() (end func()) {
	h.mu.Lock()
	return func() {
		h.mu.Unlock()
		h.changed()
	}
}

// Size is the number of rows.
func (h *Holds) Size() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.count
}

// Add sets a row aside, behind the others of its lane.
func (h *Holds) Add(e Entry, x *relay.Hold) {
	defer h.change()()
	d := x.Delivery
	name := d.Lane()
	l := h.lanes[name]
	if l == nil {
		l = &heldLane{shard: d.Shard, keyed: d.OrderingKey() != ""}
		h.lanes[strings.Clone(name)] = l // a part of a row's memory would keep all of it
	}
	added := Hold{Entry: e, route: h.route(d), position: d.Position, Attempts: d.Attempts, Due: x.RetryAt, Blocked: x.Blocked,
		since: time.Now(), written: d.CreatedAt}
	if d.DeliverAt.After(added.written) {
		added.written = d.DeliverAt
	}
	added.failed(x)
	if h.Whole {
		message := *d
		added.kept = &message
	}
	l.list = append(l.list, added)
	h.count++
}

// failed notes why a row waits.
func (x *Hold) failed(why *relay.Hold) {
	if x.delayed = why.Err == nil && !why.Blocked && !why.RetryAt.IsZero(); why.Err != nil {
		x.err, x.failedAt = why.Err, time.Now()
	}
}

// account sums up what waits.
func (h *Holds) account() (a mapping.Account) {
	h.mu.Lock()
	defer h.mu.Unlock()
	earlier := func(t *time.Time, than time.Time) {
		if t.IsZero() || !than.IsZero() && than.Before(*t) {
			*t = than
		}
	}
	var failedAt, now = time.Time{}, time.Now()
	a.Held, a.Lanes = int64(h.count), int64(len(h.lanes))
	for _, l := range h.lanes {
		head := &l.list[0]
		switch {
		case head.Blocked:
			a.Blocked++
			earlier(&a.BlockedSince, head.since)
		case head.err != nil:
			earlier(&a.FailingSince, head.since)
		}
		if head.Due.After(now) {
			earlier(&a.NextRetry, head.Due)
		}
		if head.err != nil && head.failedAt.After(failedAt) {
			failedAt, a.LastError = head.failedAt, head.err.Error()
		}
		if head.delayed && head.Due.After(now) {
			continue
		}
		for i := range l.list {
			earlier(&a.Oldest, l.list[i].written)
			if !head.Blocked {
				earlier(&a.Waiting, l.list[i].written)
			}
		}
	}
	return a
}

func (h *Holds) route(d *relay.Delivery) relay.Route {
	route := relay.Route{Topic: d.Topic, AggregateType: d.AggregateType, EventType: d.EventType}
	kept, ok := h.routes[route]
	if !ok {
		kept = relay.Route{
			Topic: strings.Clone(d.Topic), AggregateType: strings.Clone(d.AggregateType), EventType: strings.Clone(d.EventType),
		}
		h.routes[kept] = kept
	}
	return kept
}

// find returns the hold of a delivery, if there is one.
func (h *Holds) find(d *relay.Delivery) (Hold, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l, i := h.locate(d); l != nil {
		return l.list[i], true
	}
	return Hold{}, false
}

func (h *Holds) locate(d *relay.Delivery) (*heldLane, int) {
	l := h.lanes[d.Lane()]
	if l == nil {
		return nil, 0
	}
	for i := range l.list {
		if l.list[i].Ref == d.Ref {
			return l, i
		}
	}
	return nil, 0
}

// remove forgets a row that no longer waits.
func (h *Holds) remove(d *relay.Delivery) {
	defer h.change()()
	l, i := h.locate(d)
	if l == nil {
		return
	}
	h.count--
	if i == 0 {
		l.list = l.list[1:]
	} else {
		l.list = append(l.list[:i:i], l.list[i+1:]...)
	}
	if len(l.list) == 0 {
		delete(h.lanes, d.Lane())
	}
}

// retry notes another attempt of a head.
func (h *Holds) retry(x *relay.Hold) {
	defer h.change()()
	if l, i := h.locate(x.Delivery); l != nil {
		l.list[i].Attempts, l.list[i].Due, l.list[i].Blocked, l.list[i].Freed = x.Delivery.Attempts, x.RetryAt, x.Blocked, false
		l.list[i].failed(x)
		for i := range l.list {
			l.list[i].Token = "" // the rows behind it are claimed again together with it
		}
	}
}

// Settle applies the outcomes of held messages that were tried again.
func (h *Holds) Settle(s *relay.Settlement) {
	for _, d := range s.HeldDelivered {
		h.remove(d)
	}
	for i := range s.HeldRetry {
		h.retry(&s.HeldRetry[i])
	}
	for i := range s.HeldDead {
		h.remove(s.HeldDead[i].Delivery)
	}
}

// Above returns the ids of rows behind from.
func (h *Holds) Above(from int64, ids []string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.lanes {
		for i := range l.list {
			if l.list[i].By >= from {
				ids = append(ids, l.list[i].ID)
			}
		}
	}
	return ids
}

// Names lists the lanes of keys after a lane, at most limit. next is the last of them if there are more.
func (h *Holds) Names(after string, limit int) (lanes []string, next string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, l := range h.lanes {
		if l.keyed && name > after {
			lanes = append(lanes, name)
		}
	}
	slices.Sort(lanes)
	if len(lanes) <= limit {
		return lanes, ""
	}
	return lanes[:limit], lanes[limit-1]
}

// Due lists lanes by the times of their heads.
func (h *Holds) Due(now time.Time, q *relay.DueQuery) []relay.HeldLane {
	h.mu.Lock()
	defer h.mu.Unlock()
	var due []relay.HeldLane
	first := make(map[relay.Route]relay.HeldLane) // of probes, and of what is due later
	for name, l := range h.lanes {
		head := &l.list[0]
		if head.Blocked || q.Omits(name, head.route) {
			continue
		}
		x := relay.HeldLane{Lane: name, Shard: l.shard, Due: head.Due, Route: head.route}
		if l.later.After(x.Due) {
			x.Due = l.later
		}
		if !x.Due.After(now) && !slices.Contains(q.Probes, head.route) {
			due = append(due, x)
		} else if best, ok := first[head.route]; !ok || x.Due.Before(best.Due) {
			first[head.route] = x
		}
	}
	slices.SortFunc(due, func(a, b relay.HeldLane) int { return a.Due.Compare(b.Due) })
	due = due[:min(q.Limit, len(due))]
	for _, x := range first {
		due = append(due, x)
	}
	return due
}

// NotYet notes that a lane's first row can't be read before due, and returns what tells the relay so.
func (h *Holds) NotYet(lane string, due time.Time) []relay.Delivery {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.lanes[lane]; l != nil {
		l.later = due
	}
	return relay.NotYet(due, false)
}

// Blocked returns the heads that wait for an operator.
func (h *Holds) Blocked() (heads []Hold) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.lanes {
		if l.list[0].Blocked {
			heads = append(heads, l.list[0])
		}
	}
	return heads
}

// Unblock lets the lane of a row continue.
func (h *Holds) Unblock(ref uint64) {
	defer h.change()()
	for _, l := range h.lanes {
		if l.list[0].Ref == ref {
			l.list[0].Blocked, l.list[0].Freed, l.list[0].Due = false, true, time.Time{}
		}
	}
}

// block notes that a row waits for an operator.
func (h *Holds) block(lane string, ref uint64) {
	defer h.change()()
	if l := h.lanes[lane]; l != nil {
		for i := range l.list {
			if l.list[i].Ref == ref {
				l.list[i].Blocked, l.list[i].Due = true, time.Time{}
			}
		}
	}
}

// First returns the first rows of a lane, at most limit.
func (h *Holds) First(lane string, limit int) []Hold {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.lanes[lane]
	if l == nil {
		return nil
	}
	return append([]Hold(nil), l.list[:min(limit, len(l.list))]...)
}

// Forget forgets those rows of a lane that were deleted, or done by another program.
func (h *Holds) Forget(lane string, refs map[uint64]bool) {
	defer h.change()()
	l := h.lanes[lane]
	if l == nil {
		return
	}
	kept := l.list[:0:0]
	for _, x := range l.list {
		if !refs[x.Ref] {
			kept = append(kept, x)
		}
	}
	h.count -= len(l.list) - len(kept)
	if l.list = kept; len(kept) == 0 {
		delete(h.lanes, lane)
	}
}

// Restore adds to a lane's rows that were read again what the holds remember of them. It keeps the lane's order,
// and ends at the first row that waits and could not be taken. lost has the rows that no longer wait.
func (h *Holds) Restore(lane string, list []Hold, ds []relay.Delivery,
	rows []existing.Row, waits map[string]bool) (held []relay.Delivery, lost map[uint64]bool) {
	byID, identities := make(map[string]*relay.Delivery, len(ds)), make(map[string]int64, len(ds))
	for i := range ds {
		byID[rows[i].ID], identities[rows[i].ID] = &ds[i], rows[i].Identity
	}
	for _, x := range list {
		d := byID[x.ID]
		if d != nil && identities[x.ID] != x.Identity {
			d = nil // another row has its id
		} else if d == nil && waits[x.ID] {
			break
		}
		if d == nil {
			if lost == nil {
				lost = make(map[uint64]bool)
			}
			lost[x.Ref] = true
			continue
		}
		d.Ref, d.Position, d.Shard = x.Ref, x.position, h.shard(lane, d.Shard)
		if d.Blocked && !x.Blocked && !x.Freed { // another relay, or an operator, has blocked it
			x.Blocked = true
			h.block(lane, x.Ref)
		}
		if d.RetryAt, d.Blocked = x.Due, x.Blocked; !x.Freed { // to reset the attempts is what releases a row
			d.Attempts = max(x.Attempts, d.Attempts)
		}
		held = append(held, *d)
	}
	return held, lost
}

// Messages returns the first messages of a lane, at most limit, whose content is kept in memory.
func (h *Holds) Messages(lane string, limit int) (held []relay.Delivery) {
	for _, x := range h.First(lane, limit) {
		d := *x.kept
		d.Attempts, d.RetryAt, d.Blocked = x.Attempts, x.Due, x.Blocked
		held = append(held, d)
	}
	return held
}

// Claimed returns the rows that are claimed, to be tried again now.
func (h *Holds) Claimed() (all []Entry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.lanes {
		for i := range l.list {
			if l.list[i].Token != "" {
				all = append(all, l.list[i].Entry)
			}
		}
	}
	return all
}

// Claim notes, by their ids, the tokens of a lane's rows, or of all rows if lane is empty. An empty token means that
// the row is no longer claimed.
func (h *Holds) Claim(lane string, tokens map[string]string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, l := range h.lanes {
		if lane != "" && name != lane {
			continue
		}
		for i := range l.list {
			if token, ok := tokens[l.list[i].ID]; ok {
				l.list[i].Token = token
			}
		}
	}
}

// shard returns the shard of a lane, or other if the lane has no holds.
func (h *Holds) shard(lane string, other int) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.lanes[lane]; l != nil {
		return l.shard
	}
	return other
}
