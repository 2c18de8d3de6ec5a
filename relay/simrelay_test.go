package relay

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pgoutbox/outbox"
)

// simDestination is a broker with a cursor in the database and the relays that believe to own it.
type simDestination struct {
	*simulation
	name string
	cfg  coreConfig

	// in the database
	cursor int // settled prefix of table
	holds  map[string][]simHold
	dead   map[int64]bool

	// the lease: its row, who has its lock, and who waits for it
	epoch, ownedBy int
	leaseUntil     time.Time
	locked         bool        // as the row says of the owner
	lock           *simSession // nil: free
	line           []*simWaiter
	orphans        []*simSession
	names          int
	early          bool // it was taken before it had expired

	// the broker
	down     bool
	closed   map[string]bool // topics
	paused   map[pauseTarget]bool
	rate     float64
	poison   map[int64]int // message → how many more failures it causes; -1: always
	refused  map[int64]bool
	astray   map[int64]bool // messages whose key leads nowhere
	failures map[int64]int  // counted failures told to a core
	seen     map[int64]int  // acceptances
	seenBy   map[int64]int  // who had it accepted last, by epoch
	excused  map[int64]bool // was a dead letter once: may appear late

	relays   []*simRelay
	stopping bool
}

// simRelay is one running core with the actions that it has under way.
type simRelay struct {
	core    *core
	epoch   int
	skew    time.Duration // of its own clock, against the database's
	read    int           // next table index to read
	pending []simAction
	dirty   bool      // something happened since it was asked
	wake    time.Time // when it wants to be asked, by its own clock
	setBack bool      // its clock was
	session *simSession
	frozen  bool // it doesn't renew its lease
	gone    bool

	paused map[pauseTarget]bool // as it was told
	told   map[string]bool      // lanes with holds, as it has loaded them last
}

type simAction struct {
	name string
	do   func() error
}

func newSimDestination(s *simulation, i int) *simDestination {
	rng := s.rng
	policies := []Policy{DeadLetter, DeadLetter, DeadLetter, Block}
	batch := 1 + rng.IntN(8)
	d := &simDestination{
		simulation: s, name: fmt.Sprint("destination ", i+1),
		cfg: coreConfig{
			Stripes: 1 + rng.IntN(4), ReadMax: batch, CallMax: 1 + rng.IntN(8), CallBytes: 1 << 20,
			CallGather: rng.IntN(8), Gather: time.Duration(rng.IntN(10)) * time.Millisecond,
			MaxInFlight: batch * (2 + rng.IntN(4)), MaxInFlightBytes: 1 << 20, MaxHeldLanes: []int{3 + rng.IntN(20), 10_000}[rng.IntN(2)],
			LanesMax: 1 + rng.IntN(6), WalkMax: 1 + rng.IntN(6), MaxLoaded: 1 + rng.IntN(6), HeldMax: 1 + rng.IntN(4),
			HeldLanes:   1 + rng.IntN(4),
			MaxAttempts: 1 + rng.IntN(5),
			OnExhausted: policies[rng.IntN(len(policies))],
			Backoff:     Backoff{Initial: 100 * time.Millisecond, Max: 10 * time.Second},
			Outage:      Backoff{Initial: 100 * time.Millisecond, Max: time.Second},
			HoldAfter:   time.Duration(rng.IntN(1000)) * time.Millisecond,
			SettleDelay: time.Duration(rng.IntN(20)) * time.Millisecond, Resync: 5 * time.Second, Control: 5 * time.Second,
		},
		closed: map[string]bool{}, paused: map[pauseTarget]bool{}, holds: map[string][]simHold{}, dead: map[int64]bool{},
		poison: map[int64]int{}, refused: map[int64]bool{}, astray: map[int64]bool{},
		failures: map[int64]int{}, seen: map[int64]int{}, seenBy: map[int64]int{}, excused: map[int64]bool{},
	}
	if rng.IntN(4) == 0 {
		d.cfg.Select = func(m *outbox.Message) bool { return m.Position%4 != 0 }
	}
	return d
}

// wants tells whether the destination's filter lets a message through. What isn't a message is no matter of
// filters.
func (d *simDestination) wants(m *Delivery) bool {
	return m.Invalid != nil || d.cfg.Select == nil || d.cfg.Select(&m.Message)
}

// curse makes a message one that the broker has something against.
func (d *simDestination) curse(id int64) {
	switch d.rng.IntN(40) {
	case 0, 1:
		d.poison[id] = 1 + d.rng.IntN(8)
	case 2:
		d.poison[id] = -1
	case 3:
		d.refused[id] = true
	case 4:
		d.astray[id] = true
	}
}

func (d *simDestination) trace(format string, args ...any) {
	if d.log != nil {
		d.simulation.trace("%s: %s", d.name, fmt.Sprintf(format, args...))
	}
}

// clock is what a relay takes for the time.
func (d *simDestination) clock(r *simRelay) time.Time { return d.now.Add(r.skew) }

// owner is the relay that was the last to begin; nil: none runs.
func (d *simDestination) owner() *simRelay {
	if len(d.relays) == 0 {
		return nil
	}
	return d.relays[len(d.relays)-1]
}

// close closes a topic, or opens it again.
func (d *simDestination) close(topic string) {
	d.closed[topic] = !d.closed[topic]
	if d.closed[topic] {
		d.counts.Closed++
	}
	d.trace("topic %s closed: %v", topic, d.closed[topic])
}

// jump sets a relay's clock forward or back, by up to an hour.
func (d *simDestination) jump() {
	if len(d.relays) == 0 {
		return
	}
	r := d.relays[d.rng.IntN(len(d.relays))]
	by := time.Duration(d.rng.IntN(7200)-3600) * time.Second
	if d.rng.IntN(2) == 0 {
		by /= 3600
	}
	r.skew += by
	r.dirty, r.setBack = true, r.setBack || by < 0
	d.counts.Jumps++
	d.trace("the clock of relay %d jumps by %v", r.epoch, by)
}

// ask queues what a core wants, if it may want something: something happened, or its time has come. Now
// and then it is asked for nothing.
func (d *simDestination) ask(r *simRelay) error {
	now := d.clock(r)
	if !r.dirty && (r.wake.IsZero() || now.Before(r.wake)) && d.rng.IntN(8) > 0 {
		return nil
	}
	return d.perform(r, now, r.core.next(now))
}

// perform queues what was asked for when it was now by the relay's clock.
func (d *simDestination) perform(r *simRelay, now time.Time, n ready) error {
	r.dirty, r.wake = false, n.Wake
	if r.core.crowded() {
		d.counts.Crowded++
	}
	if started := n.Read + len(n.Publish); started == 0 && !n.Controls && n.Settle == nil && n.Held == nil && n.Lanes == nil &&
		n.Due == nil && !n.Drained && !n.Wake.IsZero() && !n.Wake.After(now) && !r.setBack {
		return fmt.Errorf("%s: relay %d has nothing to do and wants to be asked at once: %s", d.name, r.epoch, d.describe())
	}
	if n.Read > 0 {
		r.pending = append(r.pending, simAction{"read", func() error { return d.doRead(r, n.Read) }})
	}
	for _, k := range n.Publish {
		for _, it := range k.items {
			if topic, lane := it.d.Topic, it.d.Lane(); r.paused[pauseTarget{}] || r.paused[pauseTarget{topic: topic}] ||
				r.paused[pauseTarget{lane: lane}] || r.paused[pauseTarget{topic, lane}] {
				return fmt.Errorf("%s: relay %d publishes message %d, which is paused", d.name, r.epoch, it.d.Position)
			}
			if !it.held && it.keyed() && r.told[it.d.Lane()] {
				return fmt.Errorf("%s: relay %d publishes message %d before holds of its key that it knows", d.name, r.epoch, it.d.Position)
			}
		}
		if d.log != nil {
			d.trace("relay %d publishes%v", r.epoch, story{k})
		}
		r.pending = append(r.pending, simAction{"publish", func() error { return d.doPublish(r, now, k) }})
	}
	if n.Settle != nil {
		r.pending = append(r.pending, simAction{"settle", func() error { return d.doSettle(r, n.Settle) }})
	}
	if n.Controls {
		r.pending = append(r.pending, simAction{"controls", func() error { return d.doControls(r) }})
	}
	if q := n.Lanes; q != nil {
		r.pending = append(r.pending, simAction{"lanes", func() error { return d.doLanes(r, q) }})
	}
	if q := n.Due; q != nil {
		r.pending = append(r.pending, simAction{"due", func() error { return d.doDue(r, q) }})
	}
	if q := n.Held; q != nil {
		r.pending = append(r.pending, simAction{"held", func() error { return d.doHeld(r, q) }})
	}
	return nil
}

// act completes one of the actions that are under way, whichever.
func (d *simDestination) act() (bool, error) {
	n := 0
	for _, r := range d.relays {
		n += len(r.pending)
	}
	if n == 0 {
		return false, nil
	}
	n = d.rng.IntN(n)
	for _, r := range d.relays {
		if n < len(r.pending) {
			return true, d.complete(r, n)
		}
		n -= len(r.pending)
	}
	panic("unreachable")
}

func (d *simDestination) complete(r *simRelay, i int) error {
	a := r.pending[i]
	r.pending = slices.Delete(r.pending, i, i+1)
	r.dirty = true
	return a.do()
}

// shutDown ends the relay in good order, with nothing else going wrong: what was delivered is settled then,
// so the next one repeats nothing.
func (d *simDestination) shutDown() error {
	r := d.current()
	d.relays = slices.DeleteFunc(d.relays, func(other *simRelay) bool { return other == r })
	d.leaveAll()
	d.relays = []*simRelay{r}
	d.faults, d.stopping = false, false
	outage := d.down || r.core.outage.failures > 0 || d.paused[pauseTarget{}] || r.paused[pauseTarget{}]
	d.trace("relay %d is told to stop", r.epoch)
	r.core.drain()
	for range 2000 {
		now := d.clock(r)
		n := r.core.next(now)
		if err := d.perform(r, now, n); err != nil {
			return err
		}
		if n.Drained {
			d.counts.Stops++
			for _, m := range d.table[d.cursor:] {
				if d.seenBy[m.Position] == r.epoch && !outage {
					return fmt.Errorf("%s: message %d was delivered and not settled by a relay that ended in good order",
						d.name, m.Position)
				}
			}
			d.faults, d.relays = true, nil
			return d.release(r)
		}
		if len(r.pending) == 0 {
			d.now = d.now.Add(time.Duration(1+d.rng.IntN(20)) * time.Millisecond)
			continue
		}
		if err := d.complete(r, d.rng.IntN(len(r.pending))); err != nil {
			return err
		}
		outage = outage || r.core.outage.failures > 0 || r.paused[pauseTarget{}] // a call that was broken before
	}
	return fmt.Errorf("%s: the drain does not end: %s", d.name, d.describe())
}

// story prints a call, when somebody reads.
type story struct{ call *call }

func (s story) String() string {
	var b strings.Builder
	for _, it := range s.call.items {
		fmt.Fprintf(&b, " %s:%d", it.d.Lane(), it.d.Position)
	}
	return b.String()
}

func (d *simDestination) doRead(r *simRelay, limit int) error {
	n := min(limit, len(d.table)-r.read)
	if n > 0 && d.rng.IntN(3) == 0 {
		n = 1 + d.rng.IntN(n)
	}
	batch := Batch{Deliveries: make([]Delivery, n)}
	for i := range n {
		batch.Deliveries[i] = *d.table[r.read+i]
		batch.Deliveries[i].Attempts = 0
	}
	batch.More = n > 0 && d.rng.IntN(2) == 0
	r.read += n
	if n == 0 {
		d.idle(r)
	} else {
		d.trace("relay %d reads %d…%d", r.epoch, r.read-n+1, r.read)
	}
	if limit := d.cfg.MaxInFlight; r.core.unsettled > limit {
		return fmt.Errorf("%s: %d messages in flight, the bound is %d", d.name, r.core.unsettled, limit)
	}
	r.core.onRead(d.clock(r), batch)
	return nil
}

// idle is the pause that a source makes when there is nothing. Without it, steps would pass and no time.
func (d *simDestination) idle(r *simRelay) {
	d.now = d.now.Add(time.Duration(d.rng.IntN(50)) * time.Millisecond)
	d.sleep(r)
}

// sleep passes the time until a relay has something to do, in the end, when nothing else happens: after a
// clock was set back, that may be an hour.
func (d *simDestination) sleep(r *simRelay) {
	due := r.wake.Add(-r.skew)
	switch {
	case d.faults || len(r.pending) > 0:
	case !r.wake.IsZero() && due.After(d.now):
		d.now = due
	case r.setBack:
		d.now = d.now.Add(time.Minute)
	}
}

// doPublish is a broker that keeps the contract: per key, nothing is accepted behind a failure. asked is
// when the relay wanted the call, by its clock.
func (d *simDestination) doPublish(r *simRelay, asked time.Time, k *call) error {
	errs := make([]error, len(k.Batch))
	broken := map[string]bool{}
	cut := len(k.Batch)
	if d.faults && d.rng.IntN(20) == 0 {
		cut = d.rng.IntN(len(k.Batch) + 1) // the connection breaks here
	}
	panics := k.Batch[0].Position%8 == 0    // then what comes behind a failure is skipped, see Relay.publish
	lost := d.faults && d.rng.IntN(30) == 0 // the answers are lost, the messages are not
	failed := false
	for i, m := range k.Batch {
		id, lane := m.Position, k.items[i].d.Lane()
		switch {
		case broken[lane], panics && failed:
			errs[i] = outbox.ErrSkipped
		case d.down || i >= cut:
			errs[i] = outbox.Unavailable(errors.New("nobody answers"))
			broken[lane] = true
		case d.closed[m.Topic], d.astray[id]:
			d.failures[id]++
			errs[i] = outbox.TopicUnavailable(errors.New("no such topic"))
			broken[lane] = true
		case d.refused[id]:
			d.failures[id]++
			errs[i] = outbox.Permanent(errors.New("refused"))
			broken[lane] = true
		case d.poison[id] != 0:
			if d.poison[id] > 0 {
				d.poison[id]--
			}
			d.failures[id]++
			errs[i] = errors.New("poison")
			broken[lane] = true
		default:
			if err := d.accept(asked, k.items[i].d); err != nil {
				return err
			}
			d.seenBy[id] = r.epoch
			if lost {
				errs[i] = outbox.Unavailable(errors.New("answer lost"))
			}
		}
		failed = failed || errs[i] != nil
	}
	if !failed {
		errs = nil
	}
	if d.log != nil {
		d.trace("relay %d published%v: %v", r.epoch, story{k}, errs)
	}
	r.core.onPublished(d.clock(r), k, errs)
	return nil
}

// accept checks the promises at the moment when a consumer would see the message.
func (d *simDestination) accept(asked time.Time, m *Delivery) error {
	id := m.Position
	switch {
	case m.Invalid != nil:
		return fmt.Errorf("%s: message %d is not a message and was published", d.name, id)
	case !d.wants(d.table[id-1]):
		return fmt.Errorf("%s: message %d was published and is not wanted", d.name, id)
	case m.DeliverAt.After(asked):
		return fmt.Errorf("%s: message %d was published %v early, by the relay's own clock", d.name, id, m.DeliverAt.Sub(asked))
	}
	d.seen[id]++
	if d.seen[id] > 1 {
		d.counts.Duplicates++
		return nil
	}
	d.counts.Delivered++
	lane := d.lanes[id-1]
	for i, earlier := range d.lanes[:id-1] {
		if e := int64(i + 1); earlier == lane && d.seen[e] == 0 && !d.excused[e] && d.wants(d.table[i]) {
			return fmt.Errorf("%s, key %s: message %d was accepted before message %d", d.name, lane, id, e)
		}
	}
	return nil
}

func (d *simDestination) doSettle(r *simRelay, st *Settlement) error {
	if r.session.ended && d.rng.IntN(2) == 0 {
		d.trace("relay %d learns that its session has ended", r.epoch)
		r.gone = true
		return nil
	}
	// What a session that has ended leaves under way may come late. The epoch alone decides.
	if r.epoch != d.epoch {
		d.trace("relay %d is fenced", r.epoch)
		r.gone = true
		return nil
	}
	if d.faults && d.rng.IntN(40) == 0 {
		// The outcome of the commit is unknown: it happened or not, and the session is over.
		applied := d.rng.IntN(2) == 0
		if applied {
			if err := d.apply(r, st); err != nil {
				return err
			}
		}
		d.trace("relay %d loses its session in a commit (applied: %v)", r.epoch, applied)
		r.gone = true
		d.leave(r.session)
		if d.rng.IntN(2) == 0 {
			d.start()
		}
		return nil
	}
	if err := d.apply(r, st); err != nil {
		return err
	}
	d.prolong(r)
	r.core.onSettled(d.clock(r))
	return nil
}

// Times in the database are told as waits: what a relay reads is due by its own clock after as long as by
// the database's.

func (d *simDestination) doLanes(r *simRelay, q *lanesQuery) error {
	if r.epoch != d.epoch && d.rng.IntN(2) == 0 {
		r.gone = true
		return nil
	}
	var list []string
	var next string
	passed := 0
	for _, lane := range sortedKeys(d.holds) {
		if lane <= q.After {
			continue
		}
		if passed++; passed > q.Limit {
			break
		}
		next = lane
		head := &d.holds[lane][0]
		if head.retryAt.IsZero() && !head.blocked {
			head.retryAt = d.now
			d.counts.Healed++
		}
		if head.d.OrderingKey() != "" {
			list = append(list, lane)
		}
	}
	if passed < q.Limit {
		next = ""
	}
	r.core.onLanes(d.clock(r), list, next)
	return nil
}

// doDue lists heads by the index over those that have a time of their own.
func (d *simDestination) doDue(r *simRelay, q *DueQuery) error {
	var due, later []HeldLane
	listed := map[Route]bool{}
	heads := sortedKeys(d.holds)
	slices.SortStableFunc(heads, func(a, b string) int { return d.holds[a][0].retryAt.Compare(d.holds[b][0].retryAt) })
	for _, lane := range heads {
		head := d.holds[lane][0]
		h := HeldLane{Lane: lane, Shard: head.d.Shard, Due: head.dueAt(r), Route: routeOf(&head.d.Message)}
		if h.Due.IsZero() || head.blocked || q.Omits(lane, h.Route) {
			continue
		}
		probe := slices.Contains(q.Probes, h.Route)
		switch {
		case (probe || head.retryAt.After(d.now)) && listed[h.Route]:
		case head.retryAt.After(d.now):
			later = append(later, h)
			listed[h.Route] = true
		case probe || len(due) < q.Limit:
			due = append(due, h)
			listed[h.Route] = listed[h.Route] || probe
		}
	}
	r.core.onDue(d.clock(r), append(due, later...))
	return nil
}

// doControls tells a relay what operators ask for, without an end or with one.
func (d *simDestination) doControls(r *simRelay) error {
	controls := Controls{Rate: d.rate}
	r.paused = maps.Clone(d.paused)
	byName := func(a, b pauseTarget) int { return cmp.Or(cmp.Compare(a.topic, b.topic), cmp.Compare(a.lane, b.lane)) }
	for _, t := range slices.SortedFunc(maps.Keys(d.paused), byName) {
		p := Pause{Topic: t.topic, Lane: t.lane}
		if d.rng.IntN(4) == 0 {
			p.Until = d.clock(r).Add(100 * time.Hour) // longer than all jumps of its clock
		}
		controls.Pauses = append(controls.Pauses, p)
	}
	r.core.onControls(d.clock(r), controls)
	return nil
}

// control is an operator who pauses a destination, a topic, a key or both, or ends a pause, or changes the rate.
func (d *simDestination) control() {
	if d.rng.IntN(4) == 0 {
		d.rate = []float64{0, 5, 20, 500}[d.rng.IntN(4)]
		d.counts.Throttled++
		d.trace("at most %v messages a second", d.rate)
		return
	}
	t := pauseTarget{topic: simTopics[d.rng.IntN(len(simTopics))], lane: d.lanes[d.rng.IntN(len(d.lanes))]}
	switch d.rng.IntN(5) {
	case 0:
		t = pauseTarget{}
	case 1, 2:
		t.lane = ""
	case 3:
		t.topic = ""
	}
	if d.paused[t] {
		delete(d.paused, t)
	} else {
		d.paused[t] = true
		d.counts.Paused++
	}
	d.trace("paused %+v: %v", t, d.paused[t])
}

func (d *simDestination) doHeld(r *simRelay, q *heldQuery) error {
	lists := make([][]Delivery, len(q.Lanes))
	for n, lane := range q.Lanes {
		for i, h := range d.holds[lane] {
			if i == q.Limit {
				break
			}
			m := h.d
			m.RetryAt, m.Blocked = h.dueAt(r), h.blocked
			lists[n] = append(lists[n], m)
		}
		r.told[lane] = len(lists[n]) > 0
	}
	r.core.onHeld(d.clock(r), q.Lanes, lists)
	return nil
}

func (d *simDestination) describe() string {
	if len(d.relays) == 0 {
		return "no relay runs"
	}
	c := d.owner().core
	now := d.clock(d.owner())
	var b strings.Builder
	fmt.Fprintf(&b, "cursor at %d of %d, %d lanes held; unsettled %d, reading %v, working %v, %d lanes stored, to be listed in %v, "+
		"outage %+v\n", d.cursor, len(d.table), len(d.holds), c.unsettled, c.reading, c.working, c.stored.size(),
		c.listAt.Sub(now), c.outage)
	for _, name := range sortedKeys(c.lanes) {
		l := c.lanes[name]
		fmt.Fprintf(&b, "lane %s: mode %d queue %d pending %d flying %d due in %v barrier %v\n", name, l.mode,
			len(l.queue), len(c.pending[c.stored.key(name)]), l.flying, l.due.Sub(now), l.barrier != nil)
	}
	for _, lane := range sortedKeys(d.holds) {
		h := d.holds[lane]
		fmt.Fprintf(&b, "holds %s: %d, head %d due in %v blocked %v\n", lane, len(h), h[0].d.Position,
			h[0].retryAt.Sub(d.now), h[0].blocked)
	}
	return b.String()
}
