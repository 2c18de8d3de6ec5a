package relay

import (
	"fmt"
	"time"

	"github.com/pgoutbox/outbox/internal/await"
)

// simLease is how long a lease lasts.
var simLease = await.Expiry(800 * time.Millisecond)

// simSession is a session of the database. It may outlive its process: it is a pooler's, or half-open.
type simSession struct {
	ended bool
	until time.Time // when the server ends one that has outlived its process; zero: never
	alone bool      // its process is gone
}

// simWaiter is a relay that stands by: it looks at the row, waits for the lock, takes the lease. Other things happen
// between these steps.
type simWaiter struct {
	session           *simSession
	name              int
	waits, got, takes bool
}

// leased tells whether the lease hasn't expired.
func (d *simDestination) leased() bool { return d.now.Before(d.leaseUntil) }

// current is the relay whose lease it is and whose session lives; nil: none.
func (d *simDestination) current() *simRelay {
	for _, r := range d.relays {
		if r.epoch == d.epoch && !r.session.ended && !r.gone {
			return r
		}
	}
	return nil
}

// end ends a session, and with it its lock.
func (d *simDestination) end(s *simSession) {
	s.ended = true
	if d.lock == s {
		d.lock = nil
	}
}

// leave ends the process of a session. Most sessions end with it.
func (d *simDestination) leave(s *simSession) {
	if s.ended || s.alone {
		return
	}
	if !d.faults || d.rng.IntN(4) > 0 {
		d.end(s)
		return
	}
	s.alone = true
	if d.rng.IntN(4) > 0 {
		s.until = d.now.Add(simLease)
	}
	d.orphans = append(d.orphans, s)
	if d.lock == s {
		d.counts.Outliving++
		d.trace("the lock outlives its process")
	}
}

// leaveAll ends all processes that have relays.
func (d *simDestination) leaveAll() {
	for _, r := range d.relays {
		d.leave(r.session)
	}
	d.relays = nil
}

// tryLock takes the lock if it is free.
func (d *simDestination) tryLock(s *simSession) bool {
	if d.lock == nil {
		d.lock = s
	}
	return d.lock == s
}

func (d *simDestination) unlock(s *simSession) {
	if d.lock == s {
		d.lock = nil
	}
}

// tend renews what is to be renewed, ends silent sessions, and lets those who stand by go a step on.
func (d *simDestination) tend() error {
	for _, s := range d.orphans {
		if !s.until.IsZero() && !d.now.Before(s.until) {
			d.end(s)
		}
	}
	if late := d.faults && d.rng.IntN(2) == 0; !late { // else the next in line may be faster
		d.renew()
	}
	if err := d.queue(); err != nil {
		return err
	}
	d.renew()
	return nil
}

// renew is the owner's renewal. A lease that has expired is renewed if nobody has taken it.
func (d *simDestination) renew() {
	if r := d.current(); r != nil && !r.frozen && d.leaseUntil.Sub(d.now) < simLease*2/3 {
		d.prolong(r)
	}
}

// prolong is what each write of an owner does besides: the lease is renewed, and the lock had that wasn't free before.
func (d *simDestination) prolong(r *simRelay) {
	if !d.locked && !r.session.ended && d.tryLock(r.session) {
		d.locked = true
		d.counts.LockedLate++
		d.trace("relay %d has the lock late", r.epoch)
	}
	d.leaseUntil = d.now.Add(simLease)
}

// queue lets those who stand by do their next steps.
func (d *simDestination) queue() error {
	for len(d.line) < 2 {
		d.line = append(d.line, d.waiter())
	}
	d.rng.Shuffle(len(d.line), func(i, j int) { d.line[i], d.line[j] = d.line[j], d.line[i] })
	for i, w := range d.line {
		switch others := d.leased() && d.ownedBy != w.name; {
		case w.takes:
			took, err := d.take(w)
			if err != nil {
				return err
			}
			if took {
				d.line[i] = d.waiter()
			}
			w.takes, w.got = false, false
		case w.waits:
			if w.got = d.tryLock(w.session); w.got {
				w.takes, w.waits = true, false
			} else if d.rng.IntN(4) == 0 {
				w.waits = false
			}
		case !others:
			w.got, w.takes = d.tryLock(w.session), true
		case d.locked:
			w.waits = true
		}
	}
	return nil
}

// take takes the lease if it is free, or if the lock proves that the owner's session has ended.
func (d *simDestination) take(w *simWaiter) (bool, error) {
	early := d.leased() && d.ownedBy != w.name
	if early && !(d.locked && w.got) {
		d.unlock(w.session)
		return false, nil
	}
	if early {
		d.counts.Early++
		if r := d.current(); r != nil {
			return false, fmt.Errorf("%s: the lease was taken from relay %d, whose session lives", d.name, r.epoch)
		}
	} else {
		d.counts.Lapsed++
	}
	d.early = early
	d.own(w.session, w.name, w.got)
	return true, nil
}

// start is a process that takes the lease of its own name, or of a predecessor of that name: at once.
func (d *simDestination) start() {
	d.early = false
	s := &simSession{}
	d.own(s, d.ownedBy, d.tryLock(s))
}

// own begins a session of the lease, with a new epoch.
func (d *simDestination) own(s *simSession, name int, got bool) {
	d.epoch++
	d.ownedBy, d.locked, d.leaseUntil = name, got, d.now.Add(simLease)
	if !got {
		d.counts.Lockless++
	}
	r := &simRelay{core: newCore(d.cfg, d.rng.Float64), epoch: d.epoch, read: d.cursor, dirty: true, told: map[string]bool{}, session: s}
	if d.rng.IntN(4) == 0 {
		r.skew = time.Duration(d.rng.IntN(7200)-3600) * time.Second
	}
	d.relays = append(d.relays, r)
	d.trace("relay %d starts at %d, early %v, with the lock %v, its clock is off by %v", d.epoch, d.cursor, d.early, got, r.skew)
}

// release gives the lease back: the row first, the lock afterwards. Those who stand by may be between any two steps.
func (d *simDestination) release(r *simRelay) error {
	if r.epoch == d.epoch {
		d.leaseUntil, d.locked = time.Time{}, false
	}
	for range d.rng.IntN(3) {
		if err := d.queue(); err != nil {
			return err
		}
	}
	d.unlock(r.session)
	d.end(r.session)
	return nil
}

// change has the owner write on another connection. The row comes first, as the lock is free for a moment.
func (d *simDestination) change() error {
	r := d.current()
	if r == nil {
		return nil
	}
	d.counts.Changes++
	d.trace("relay %d changes its connection", r.epoch)
	d.locked = false
	old := r.session
	r.session = &simSession{}
	if err := d.queue(); err != nil {
		return err
	}
	d.end(old)
	if err := d.queue(); err != nil {
		return err
	}
	if r.epoch == d.epoch {
		d.locked = d.tryLock(r.session)
	}
	return nil
}

// cut ends the session of the owner. Its process goes on, and may publish; it learns of the loss when it settles.
func (d *simDestination) cut() {
	if r := d.current(); r != nil && len(d.relays) < 3 {
		d.counts.Cut++
		d.end(r.session)
		d.trace("the session of relay %d ends, its process goes on", r.epoch)
	}
}

// desert ends one that stands by, whatever it is about to do.
func (d *simDestination) desert() {
	if len(d.line) > 0 {
		i := d.rng.IntN(len(d.line))
		d.leave(d.line[i].session)
		d.line[i] = d.waiter()
	}
}

// waiter is a relay that begins to stand by.
func (d *simDestination) waiter() *simWaiter {
	d.names++
	return &simWaiter{session: &simSession{}, name: d.names}
}
