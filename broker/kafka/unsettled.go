package kafka

import (
	"slices"
	"sync"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/relay"
)

// unsettled knows every message that a session has read and not settled, and which of them a transaction has published.
// The records of transactions are made from it. Its lock is a leaf.
type unsettled struct {
	mu       sync.Mutex
	messages map[name]*message
	pages    []page
	lanes    map[string][]name // of the holds that were read

	// heirs were published by transactions before this session, and this session hasn't read them yet.
	heirs map[name]*message
}

// name identifies a message while it is unsettled. Writers choose the ids, so two rows may have the same id.
type name struct {
	id       outbox.ID
	position int64
}

func nameOf(m *outbox.Message) name { return name{m.ID, m.Position} }

// message is one that was read and not settled.
type message struct {
	ref  uint64
	lane string // if it is a hold, else ""
	part *part  // the transaction that has published it, possibly; nil: none
}

// page is a batch that was read, without its settled prefix.
type page []relay.Delivery

// part is the messages that one transaction has published.
type part struct {
	attempt uint64 // the transaction's number
	entries []entry
	left    int // entries that are not settled
	unknown bool
}

// entry is a message in the record of a transaction.
type entry struct {
	name
	ref  uint64
	lane string
}

func newUnsettled() *unsettled {
	u := &unsettled{}
	u.reset()
	return u
}

// reset forgets a session.
func (u *unsettled) reset() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.messages, u.heirs, u.lanes = map[name]*message{}, map[name]*message{}, map[string][]name{}
	u.pages = nil
}

// read notes a batch that a session has returned.
func (u *unsettled) read(batch []relay.Delivery) {
	if len(batch) == 0 {
		return
	}
	all := make([]message, len(batch))
	u.mu.Lock()
	defer u.mu.Unlock()
	u.pages = append(u.pages, batch)
	for i := range batch {
		all[i].ref = batch[i].Ref
		u.add(nameOf(&batch[i].Message), &all[i])
	}
}

// add makes m known, unless a transaction has it already.
func (u *unsettled) add(n name, m *message) {
	if heir := u.heirs[n]; heir != nil {
		delete(u.heirs, n)
		m = heir
	}
	u.messages[n] = m
}

// held notes the holds of a lane that were read; they replace those read before.
func (u *unsettled) held(lane string, holds []relay.Delivery) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.forget(lane)
	names := make([]name, len(holds))
	for i := range holds {
		names[i] = nameOf(&holds[i].Message)
		if u.messages[names[i]] == nil {
			u.add(names[i], &message{ref: holds[i].Ref, lane: lane})
		}
	}
	u.lanes[lane] = names
}

// forget drops the holds of a lane that no transaction has published.
func (u *unsettled) forget(lane string) {
	for _, n := range u.lanes[lane] {
		if m := u.messages[n]; m != nil && m.part == nil {
			delete(u.messages, n)
		}
	}
	delete(u.lanes, lane)
}

// produced reports whether a committed transaction has published m.
func (u *unsettled) produced(m *outbox.Message) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	messages := u.messages[nameOf(m)]
	return messages != nil && messages.part != nil && !messages.part.unknown
}

// take makes the part of a new transaction. ok is false if the session has not read one of the messages.
func (u *unsettled) take(attempt uint64, batch []*outbox.Message, which []int32) (_ *part, ok bool) {
	p := &part{attempt: attempt, entries: make([]entry, len(which)), left: len(which), unknown: true}
	u.mu.Lock()
	defer u.mu.Unlock()
	for k, i := range which {
		n := nameOf(batch[i])
		m := u.messages[n]
		if m == nil {
			u.drop(p)
			return nil, false
		}
		m.part = p
		p.entries[k] = entry{n, m.ref, m.lane}
	}
	return p, true
}

// giveBack undoes take for a transaction that was not committed.
func (u *unsettled) giveBack(p *part) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.drop(p)
}

func (u *unsettled) drop(p *part) {
	for i := range p.entries {
		if m := u.messages[p.entries[i].name]; m != nil && m.part == p {
			m.part = nil
		}
	}
}

// keep confirms take for a transaction that was committed.
func (u *unsettled) keep(p *part) {
	u.mu.Lock()
	defer u.mu.Unlock()
	p.unknown = false
}

// inherit takes over what earlier transactions have published.
func (u *unsettled) inherit(p *part) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for i := range p.entries {
		e := &p.entries[i]
		m := &message{ref: e.ref, lane: e.lane, part: p}
		if messages := u.messages[e.name]; messages != nil {
			messages.part = p
		} else {
			u.heirs[e.name] = m
		}
	}
}

// live returns the parts that are not settled completely.
func (u *unsettled) live(parts []*part) []*part {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.DeleteFunc(parts, func(p *part) bool { return p.left == 0 })
}

// amend returns s without the holds and dead letters that a transaction has published: these messages are delivered.
// The engine doesn't know that, because the transaction's outcome was unknown. unknown means that it still is.
func (u *unsettled) amend(s relay.Settlement) (_ relay.Settlement, unknown bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	published := func(d *relay.Delivery) bool {
		m := u.messages[nameOf(&d.Message)]
		if m == nil || m.part == nil {
			return false
		}
		unknown = unknown || m.part.unknown
		return true
	}
	hold := func(h relay.Hold) bool { return published(h.Delivery) }
	dead := func(d relay.Dead) bool { return published(d.Delivery) }
	delivered := func(d *relay.Delivery) {
		s.Delivered++
		s.HeldDelivered = append(slices.Clip(s.HeldDelivered), d)
	}
	if slices.ContainsFunc(s.Hold, hold) || slices.ContainsFunc(s.Dead, dead) {
		before := len(s.Hold) + len(s.Dead)
		s.Hold = slices.DeleteFunc(slices.Clone(s.Hold), hold)
		s.Dead = slices.DeleteFunc(slices.Clone(s.Dead), dead)
		s.Delivered += before - len(s.Hold) - len(s.Dead)
	}
	if slices.ContainsFunc(s.HeldRetry, hold) {
		all := s.HeldRetry
		s.HeldRetry = nil
		for _, h := range all {
			if hold(h) {
				delivered(h.Delivery)
			} else {
				s.HeldRetry = append(s.HeldRetry, h)
			}
		}
	}
	if slices.ContainsFunc(s.HeldDead, dead) {
		all := s.HeldDead
		s.HeldDead = nil
		for _, d := range all {
			if dead(d) {
				delivered(d.Delivery)
			} else {
				s.HeldDead = append(s.HeldDead, d)
			}
		}
	}
	return s, unknown
}

// settled forgets what a settlement has settled.
func (u *unsettled) settled(s *relay.Settlement) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for s.Through != nil && len(u.pages) > 0 {
		n, last := u.pages[0].through(s.Through)
		for i := range u.pages[0][:n] {
			u.settle(&u.pages[0][i])
		}
		u.pages[0] = u.pages[0][n:]
		if len(u.pages[0]) == 0 {
			u.pages = slices.Delete(u.pages, 0, 1)
		}
		if last {
			break
		}
	}
	for _, d := range s.HeldDelivered {
		u.settle(d)
	}
	for _, d := range s.HeldDead {
		u.settle(d.Delivery)
	}
	for _, h := range s.HeldRetry {
		u.forget(h.Delivery.Lane())
	}
}

// through is how many deliveries of the page come up to and including d, and whether d is among them.
func (p page) through(d *relay.Delivery) (int, bool) {
	for i := range p {
		if &p[i] == d {
			return i + 1, true
		}
	}
	return len(p), false
}

func (u *unsettled) settle(d *relay.Delivery) {
	n := nameOf(&d.Message)
	m := u.messages[n]
	if m == nil {
		return
	}
	delete(u.messages, n)
	if m.part != nil {
		m.part.left--
	}
}
