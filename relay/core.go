package relay

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pgoutbox/outbox"
)

// core decides; it performs nothing. Events go in through the on… methods, next returns the actions that
// are due, and the runner performs them and reports back. It has no I/O, no clock (every method is told
// the time) and no goroutines, so a test can drive it through any schedule.
//
// A message passes through: a page (as read, in order) → the queue of its stripe → a call → settled with
// the contiguous prefix of its page. Stripes split the shards: at most one call is in flight per stripe,
// so calls never share a key. A lane exists as an object only while its key is out of the ordinary: its
// head waits for a retry, a dead letter of it is not yet settled, or it has holds in the database.
type core struct {
	cfg  coreConfig
	rand func() float64 // uniform in [0, 1)

	pages     []*page // unsettled, in the order in which they were read
	free      []*page
	unsettled int // messages in pages that are not settled
	bytes     int // their size
	prefix    prefix

	stripes []stripe
	lanes   map[string]*lane
	loaded  int // holds in memory

	dirty    bool      // a lane changed since the last scan
	lanesDue time.Time // when the next waiting lane is due
	toLoad   []*lane   // held lanes that are due, longest first

	outage outage

	reading  bool
	working  bool // a settlement or a query about holds is under way: one at a time
	settling *settlement
	synced   bool      // the held lanes are known
	syncAt   time.Time // when to look for changed holds again
	crowded  bool      // more held lanes than may be remembered: read nothing new

	settleAt  time.Time // when what is settleable must be settled; zero if nothing is
	delivered int
	held      heldOutcomes

	draining bool
	stopped  error // the policy "stop" has fired
}

type coreConfig struct {
	Stripes          int
	ReadMax          int // messages in a page
	CallMax          int // messages in a call
	CallBytes        int
	MaxInFlight      int
	MaxInFlightBytes int
	MaxHeldLanes     int
	MaxLoaded        int // holds in memory
	HeldMax          int // holds of one lane loaded at once

	MaxAttempts int
	OnExhausted Policy
	Backoff     Backoff
	Outage      Backoff
	HoldAfter   time.Duration
	SettleDelay time.Duration
	Resync      time.Duration

	Select func(*outbox.Message) bool
}

// ready is what the core wants done now. The runner starts everything in it and answers each part with
// its on… method.
type ready struct {
	Read    int // at most this many messages; 0: don't
	Publish []*call
	Settle  *Settlement
	Lanes   int // list held lanes, at most this many; 0: don't
	Held    *heldQuery

	// Wake is when next must be called again if nothing else happens; zero: never.
	Wake time.Time
	// Drained says that everything that can be settled is. Only after drain.
	Drained bool
	// Err is the reason why the policy "stop" ends this relay, once everything before is settled.
	Err error
}

// call is one Publish. Batch is what the broker gets; items stand at the same indexes.
type call struct {
	Batch []*outbox.Message

	stripe int
	items  []*item
	probe  bool
}

type heldQuery struct {
	Lane  string
	Limit int
}

type page struct {
	batch   Batch
	items   []item
	settled int // items before this index are settled
}

type itemState uint8

const (
	queued itemState = iota
	inFlight
	done   // delivered, or not selected
	toHold // becomes a hold when the prefix reaches it
	toDead // becomes a dead letter when the prefix reaches it
)

// item is one delivery and what became of it.
type item struct {
	d     *Delivery
	lane  *lane // while a call carries it on behalf of a lane
	state itemState
	held  bool // comes from the holds, not from a page

	err     error
	reason  Reason
	retryAt time.Time
	blocked bool
}

// prefix is the end of the contiguous run of items whose outcome is decided.
type prefix struct {
	page, item int
}

type stripe struct {
	queue    []*item
	inFlight *call
	lanes    []*lane // lanes of this stripe that have something to publish
}

type laneMode uint8

const (
	// laneRetry: the head waits in memory until due.
	laneRetry laneMode = iota
	// laneBarrier: a dead letter of this lane is not settled yet. What follows must wait: were the lease
	// lost now, the next owner would publish that message, after ours.
	laneBarrier
	// laneHeld: the lane has holds in the database; whatever comes is held behind them.
	laneHeld
)

type lane struct {
	name    string
	stripe  int
	mode    laneMode
	queue   []*item // to be published, in order
	pending []*item // laneHeld: toHold, not settled yet, in order
	barrier *item
	due     time.Time
	blocked bool // laneHeld: waits for an operator
	flying  int  // items in the stripe's call
}

// outage is the state of a destination where nobody answers.
type outage struct {
	failures int // 0: no outage
	until    time.Time
	probing  bool
	cause    error
}

// forbids reports whether nothing may be published: only after the pause, and then one call at a time.
func (o *outage) forbids(now time.Time) bool {
	return o.failures > 0 && (o.probing || now.Before(o.until))
}

type heldOutcomes struct {
	delivered []*Delivery
	retry     []Hold
	dead      []Dead
	barriers  []*lane
	count     int
}

func (h *heldOutcomes) empty() bool { return h.count == 0 }

// settlement remembers what a Settlement under way will have done.
type settlement struct {
	to       prefix
	barriers []*lane
}

func newCore(cfg coreConfig, rand func() float64) *core {
	return &core{
		cfg:     cfg,
		rand:    rand,
		stripes: make([]stripe, cfg.Stripes),
		lanes:   make(map[string]*lane),
	}
}

// onRead takes a batch that the session returned. An empty one only allows the next read.
func (c *core) onRead(now time.Time, b Batch) {
	c.reading = false
	if len(b.Deliveries) == 0 {
		if b.Recycle != nil {
			b.Recycle()
		}
		return
	}
	p := c.newPage(b)
	c.pages = append(c.pages, p)
	c.unsettled += len(p.items)
	for i := range p.items {
		it := &p.items[i]
		c.bytes += size(it.d)
		if c.cfg.Select != nil && it.d.Invalid == nil && !c.cfg.Select(&it.d.Message) {
			it.state = done
			continue
		}
		s := &c.stripes[it.d.Shard%len(c.stripes)]
		s.queue = append(s.queue, it)
	}
	c.advance(now)
}

func (c *core) newPage(b Batch) *page {
	var p *page
	if n := len(c.free); n > 0 {
		p, c.free = c.free[n-1], c.free[:n-1]
	} else {
		p = &page{}
	}
	p.batch, p.settled = b, 0
	p.items = slices.Grow(p.items[:0], len(b.Deliveries))[:len(b.Deliveries)]
	for i := range p.items {
		p.items[i] = item{d: &b.Deliveries[i]}
	}
	return p
}

// onPublished takes the outcome of a call: nil, or an error per message.
func (c *core) onPublished(now time.Time, k *call, errs []error) {
	c.stripes[k.stripe].inFlight = nil
	if errs == nil {
		for _, it := range k.items {
			c.deliver(it)
		}
		c.land(k)
		c.judge(now, k, true, nil)
		c.advance(now)
		return
	}
	failed, answered, unanswered := c.outcomes(k, errs)
	c.giveBack(k)
	c.land(k)
	c.judge(now, k, answered, unanswered)
	for _, it := range failed {
		c.fail(now, it)
	}
	c.advance(now)
}

// outcomes marks delivered items as done and the others as queued again. It returns those whose failure
// counts, which are the first of their lanes: what a broker says of a message behind a failed one is not
// believed, but for its acceptance.
func (c *core) outcomes(k *call, errs []error) (failed []*item, answered bool, unanswered error) {
	broken := make(map[string]bool)
	for i, it := range k.items {
		err := errs[i]
		if err == nil {
			answered = true
			c.deliver(it)
			continue
		}
		it.state = queued
		name := it.d.Lane()
		unavailable := outbox.IsUnavailable(err)
		if unavailable && unanswered == nil {
			unanswered = err
		}
		if broken[name] {
			continue
		}
		broken[name] = true
		if unavailable || errors.Is(err, outbox.ErrSkipped) {
			continue
		}
		answered = true
		it.d.Attempts++
		it.err = err
		c.openLane(it)
		failed = append(failed, it)
	}
	return failed, answered, unanswered
}

// giveBack returns what was not delivered to the front of its lane or queue, in order.
func (c *core) giveBack(k *call) {
	s := &c.stripes[k.stripe]
	var back []*item
	for _, it := range slices.Backward(k.items) {
		if it.state != queued {
			continue
		}
		if l := c.laneOf(it); l != nil {
			l.queue = slices.Insert(l.queue, 0, it)
		} else {
			back = append(back, it)
		}
	}
	if len(back) > 0 {
		slices.Reverse(back)
		s.queue = append(back, s.queue...)
	}
}

// land takes a call's items off their lanes and closes the lanes that have nothing left to do.
func (c *core) land(k *call) {
	for _, it := range k.items {
		l := it.lane
		if l == nil {
			continue
		}
		it.lane = nil
		l.flying--
		c.dirty = true
		c.closeIfDone(l)
	}
}

// judge moves the outage on. A call without any answer begins or prolongs it; any answer ends it.
func (c *core) judge(now time.Time, k *call, answered bool, unanswered error) {
	o := &c.outage
	if k.probe {
		o.probing = false
	}
	switch {
	case unanswered == nil:
		if answered {
			*o = outage{}
		}
	case o.failures == 0 || k.probe:
		o.failures++
		if answered {
			o.failures = 1
		}
		o.cause = unanswered
		o.until = now.Add(c.cfg.Outage.delay(o.failures, c.rand()))
	}
}

// deliver records that the broker has it.
func (c *core) deliver(it *item) {
	it.state = done
	if it.held {
		c.loaded--
		c.held.delivered = append(c.held.delivered, it.d)
		c.held.count++
	}
	c.delivered++
}

// fail decides what a counted failure leads to: a retry, a hold, or the policy for exhausted messages.
// it is the head of its lane, with err and d.Attempts set.
func (c *core) fail(now time.Time, it *item) {
	switch {
	case it.d.Invalid != nil:
		c.exhaust(it, ReasonInvalid)
	case outbox.IsPermanent(it.err):
		c.exhaust(it, ReasonRefused)
	case it.d.Attempts >= c.cfg.MaxAttempts:
		c.exhaust(it, ReasonExhausted)
	default:
		c.retry(now, it, now.Add(c.cfg.Backoff.delay(it.d.Attempts, c.rand())))
	}
}

// retry lets the head of a lane wait until due: in memory if that is soon, else as a hold.
func (c *core) retry(now time.Time, it *item, due time.Time) {
	c.dirty = true
	l := c.lanes[it.d.Lane()]
	switch {
	case it.held:
		c.retryHeld(l, it, due, false)
	case due.Sub(now) > c.cfg.HoldAfter:
		c.hold(l, due, false)
	default:
		l.due = due
	}
}

// retryHeld records a failed attempt of a hold. What is loaded of the lane is dropped: it is in the
// database and is loaded again when the head is due.
func (c *core) retryHeld(l *lane, it *item, due time.Time, blocked bool) {
	c.held.retry = append(c.held.retry, Hold{Delivery: it.d, RetryAt: due, Blocked: blocked, Err: it.err})
	c.held.count++
	l.due, l.blocked = due, blocked
	c.loaded -= len(l.queue)
	l.queue = nil
	c.dirty = true
}

// exhaust applies the destination's policy to the head of a lane, which will not be tried again.
func (c *core) exhaust(it *item, reason Reason) {
	c.dirty = true
	it.reason = reason
	l := c.lanes[it.d.Lane()]
	switch {
	case c.cfg.OnExhausted == Stop:
		// It stays where it is: nothing is published any more.
		if c.stopped == nil {
			c.stopped = fmt.Errorf("message %s (topic %q, key %q) can't be delivered after %d attempts and the policy is %q: %w",
				it.d.ID, it.d.Topic, it.d.OrderingKey(), it.d.Attempts, Stop, it.err)
		}
	case c.cfg.OnExhausted == Block && it.held:
		c.retryHeld(l, it, time.Time{}, true)
	case c.cfg.OnExhausted == Block:
		c.hold(l, time.Time{}, true)
	case it.held:
		l.queue = slices.Delete(l.queue, 0, 1)
		l.barrier = it
		c.loaded--
		c.held.dead = append(c.held.dead, Dead{Delivery: it.d, Reason: reason, Err: it.err})
		c.held.barriers = append(c.held.barriers, l)
		c.held.count++
	default:
		l.queue = slices.Delete(l.queue, 0, 1)
		l.mode, l.barrier = laneBarrier, it
		it.state = toDead
	}
}

// hold turns a lane's waiting items into holds: the head with its due time, the rest behind it.
func (c *core) hold(l *lane, due time.Time, blocked bool) {
	c.dirty = true
	for i, it := range l.queue {
		it.state = toHold
		it.retryAt, it.blocked = time.Time{}, false
		if i == 0 {
			it.retryAt, it.blocked = due, blocked
		}
	}
	l.pending = append(l.pending, l.queue...)
	l.queue = nil
	l.mode, l.due, l.blocked = laneHeld, due, blocked
}

// laneOf returns the lane that it has to go through, or nil.
func (c *core) laneOf(it *item) *lane {
	if len(c.lanes) == 0 {
		return nil
	}
	return c.lanes[it.d.Lane()]
}

func (c *core) openLane(it *item) *lane {
	name := it.d.Lane()
	l := c.lanes[name]
	if l == nil {
		// The delivery's memory is recycled with its page; a lane can outlive it.
		l = &lane{name: strings.Clone(name), stripe: it.d.Shard % len(c.stripes)}
		c.lanes[l.name] = l
		c.dirty = true
	}
	return l
}

// closeIfDone forgets a lane that has nothing left to do.
func (c *core) closeIfDone(l *lane) {
	if l.mode == laneRetry && len(l.queue) == 0 && l.flying == 0 {
		delete(c.lanes, l.name)
	}
}

// onSettled takes the success of the last Settle. A failure ends the session instead, and the core
// with it.
func (c *core) onSettled(now time.Time) {
	s := c.settling
	c.settling, c.working = nil, false
	for _, l := range s.barriers {
		c.lift(l)
	}
	c.settlePages(s.to)
	c.advance(now)
}

// settlePages forgets everything before to.
func (c *core) settlePages(to prefix) {
	for i := 0; i <= to.page && i < len(c.pages); i++ {
		p := c.pages[i]
		end := len(p.items)
		if i == to.page {
			end = to.item
		}
		for j := p.settled; j < end; j++ {
			it := &p.items[j]
			c.bytes -= size(it.d)
			switch it.state {
			case toHold:
				c.settledHold(it)
			case toDead:
				if l := c.lanes[it.d.Lane()]; l != nil && l.barrier == it {
					c.lift(l)
				}
			}
		}
		c.unsettled -= end - p.settled
		p.settled = end
	}
	n := 0
	for n < len(c.pages) && c.pages[n].settled == len(c.pages[n].items) {
		n++
	}
	if n == 0 {
		return
	}
	for _, p := range c.pages[:n] {
		if p.batch.Recycle != nil {
			p.batch.Recycle()
		}
		p.batch = Batch{}
		c.free = append(c.free, p)
	}
	c.pages = slices.Delete(c.pages, 0, n)
	c.prefix.page -= n
}

// settledHold drops a hold from memory: it is in the database now.
func (c *core) settledHold(it *item) {
	l := c.lanes[it.d.Lane()]
	if len(l.pending) > 0 && l.pending[0] == it {
		l.pending = l.pending[1:]
	}
	c.dirty = true
}

// lift ends a barrier: its dead letter is settled, the lane goes on.
func (c *core) lift(l *lane) {
	l.barrier = nil
	c.dirty = true
	if l.mode == laneBarrier {
		l.mode, l.due = laneRetry, time.Time{}
		c.closeIfDone(l)
	}
}

// onLanes takes the list of lanes that have holds. It was read while nothing was being settled, so a
// lane that is not in it has no hold but those that wait in memory.
func (c *core) onLanes(now time.Time, list []HeldLane) {
	c.working = false
	c.synced = true
	c.syncAt = now.Add(c.cfg.Resync)
	c.crowded = len(list) >= c.cfg.MaxHeldLanes
	c.dirty = true
	present := make(map[string]bool, len(list))
	for _, h := range list {
		present[h.Lane] = true
		l := c.lanes[h.Lane]
		switch {
		case l == nil:
			if c.carries(h) {
				continue // its call decides first; the next list shows the lane again
			}
			l = &lane{name: h.Lane, stripe: h.Shard % len(c.stripes), mode: laneHeld, due: h.Due, blocked: h.Blocked}
			c.lanes[h.Lane] = l
		case l.mode == laneHeld && len(l.queue) == 0 && l.flying == 0:
			l.due, l.blocked = h.Due, h.Blocked
		}
	}
	for _, l := range c.lanes {
		gone := !present[l.name] && !c.crowded && !headPending(l)
		if gone && l.mode == laneHeld && len(l.queue) == 0 && l.flying == 0 && l.barrier == nil {
			c.release(l)
		}
	}
	c.advance(now)
}

// carries reports whether a message of the lane is in flight.
func (c *core) carries(h HeldLane) bool {
	k := c.stripes[h.Shard%len(c.stripes)].inFlight
	return k != nil && slices.ContainsFunc(k.items, func(it *item) bool { return it.d.Lane() == h.Lane })
}

// headPending reports whether the head of a held lane still waits in memory with a time of its own.
func headPending(l *lane) bool {
	return len(l.pending) > 0 && (!l.pending[0].retryAt.IsZero() || l.pending[0].blocked)
}

// onHeld takes the first holds of a lane. None means that the lane has no hold any more.
func (c *core) onHeld(now time.Time, name string, list []Delivery) {
	c.working, c.dirty = false, true
	l := c.lanes[name]
	if len(list) == 0 {
		c.release(l)
		c.advance(now)
		return
	}
	if list[0].Blocked {
		l.blocked = true
		return
	}
	if list[0].RetryAt.After(now) {
		l.due = list[0].RetryAt
		return
	}
	items := make([]item, len(list))
	for i := range list {
		d := &list[i]
		if i > 0 && (d.Blocked || d.RetryAt.After(now)) {
			break // an earlier message was sent again behind the back of this former head
		}
		if d.Invalid == nil && d.DeliverAt.After(now) {
			// What stands behind a delayed message waits with it.
			if i == 0 {
				l.due = d.DeliverAt
			}
			break
		}
		items[i] = item{d: d, held: true}
		l.queue = append(l.queue, &items[i])
		c.loaded++
	}
	c.advance(now)
}

// release makes a held lane ordinary again. Items that were to be held, but are not settled as holds,
// go out now: they are the oldest of their key.
func (c *core) release(l *lane) {
	for _, it := range l.pending {
		it.state = queued
	}
	if len(l.pending) > 0 {
		// The prefix may have run over them. No settlement is under way, so nothing is lost by going back.
		c.rewind()
	}
	l.mode, l.due, l.blocked = laneRetry, time.Time{}, false
	l.queue, l.pending = l.pending, nil
	c.dirty = true
	c.closeIfDone(l)
}

// rewind recomputes the prefix from the settled items.
func (c *core) rewind() { c.prefix = c.settledTo() }

func (c *core) settledTo() prefix {
	for i, p := range c.pages {
		if p.settled < len(p.items) {
			return prefix{page: i, item: p.settled}
		}
	}
	return prefix{page: len(c.pages)}
}

// advance moves the prefix over everything decided and sets the time to settle it.
func (c *core) advance(now time.Time) {
	for c.prefix.page < len(c.pages) {
		p := c.pages[c.prefix.page]
		for c.prefix.item < len(p.items) && p.items[c.prefix.item].state >= done {
			if p.items[c.prefix.item].state != done {
				c.settleAt = now // holds and dead letters are not kept waiting
			}
			c.prefix.item++
		}
		if c.prefix.item < len(p.items) {
			break
		}
		c.prefix = prefix{page: c.prefix.page + 1}
	}
	if !c.held.empty() {
		c.settleAt = now
	}
	if c.settleAt.IsZero() && c.prefix != c.settledTo() {
		c.settleAt = now.Add(c.cfg.SettleDelay)
	}
}

// drain stops reading. What is in flight is awaited and settled; retries and holds are left to the next
// session.
func (c *core) drain() { c.draining = true }

// next returns what is to be started now.
func (c *core) next(now time.Time) ready {
	var r ready
	c.relieve()
	c.scan(now)
	c.publish(now, &r)
	c.scan(now)
	c.maintain(now, &r)
	if c.mayRead() {
		c.reading = true
		r.Read = min(c.cfg.ReadMax, c.cfg.MaxInFlight-c.unsettled)
	}
	r.Wake = c.wake()
	if c.draining || c.stopped != nil {
		r.Drained = c.idle() && !c.working && c.held.empty() && c.prefix == c.settledTo()
		r.Err = c.stopped
	}
	return r
}

func (c *core) mayRead() bool {
	return !c.reading && !c.draining && c.stopped == nil && c.synced && !c.crowded &&
		c.unsettled+c.cfg.ReadMax <= c.cfg.MaxInFlight && c.bytes < c.cfg.MaxInFlightBytes &&
		len(c.lanes) < c.cfg.MaxHeldLanes
}

func (c *core) idle() bool {
	for i := range c.stripes {
		if c.stripes[i].inFlight != nil {
			return false
		}
	}
	return true
}

// relieve holds the lane that stands in the way when memory is full: the cursor can't pass a message
// that waits for a retry, and nothing can be read until it does.
func (c *core) relieve() {
	full := c.unsettled+c.cfg.ReadMax > c.cfg.MaxInFlight || c.bytes >= c.cfg.MaxInFlightBytes
	if !full || c.settling != nil || c.outage.failures > 0 {
		return
	}
	at := c.prefix
	if at.page >= len(c.pages) || at != c.settledTo() {
		return
	}
	it := &c.pages[at.page].items[at.item]
	l := c.laneOf(it)
	if l != nil && l.mode == laneRetry && l.flying == 0 && len(l.queue) > 0 && l.queue[0] == it && !l.due.IsZero() {
		c.hold(l, l.due, false)
	}
}

// publish fills a call for every stripe that has none in flight.
func (c *core) publish(now time.Time, r *ready) {
	if c.draining || c.stopped != nil {
		return
	}
	o := &c.outage
	if o.forbids(now) {
		return
	}
	for i := range c.stripes {
		s := &c.stripes[i]
		if s.inFlight != nil {
			continue
		}
		k := c.fill(now, i)
		if k == nil {
			continue
		}
		s.inFlight = k
		r.Publish = append(r.Publish, k)
		if o.failures > 0 {
			k.probe, o.probing = true, true
			return
		}
		if c.stopped != nil {
			return
		}
	}
}

// scan hands every lane that is due to its stripe or to the list of lanes to load, and notes when the next
// one is due. It costs a walk over all lanes, so it runs only when one changed or became due.
func (c *core) scan(now time.Time) {
	if !c.dirty && (c.lanesDue.IsZero() || now.Before(c.lanesDue)) {
		return
	}
	c.dirty, c.lanesDue = false, time.Time{}
	c.toLoad = c.toLoad[:0]
	for i := range c.stripes {
		c.stripes[i].lanes = c.stripes[i].lanes[:0]
	}
	for _, l := range c.lanes {
		publishable := len(l.queue) > 0 && l.flying == 0 && l.mode != laneBarrier && l.barrier == nil
		loadable := l.mode == laneHeld && len(l.queue) == 0 && l.flying == 0 && l.barrier == nil && !headPending(l)
		switch {
		case l.blocked || !publishable && !loadable:
		case l.due.After(now):
			if c.lanesDue.IsZero() || l.due.Before(c.lanesDue) {
				c.lanesDue = l.due
			}
		case publishable:
			c.stripes[l.stripe].lanes = append(c.stripes[l.stripe].lanes, l)
		default:
			c.toLoad = append(c.toLoad, l)
		}
	}
	// The order of a map is random; schedules must be repeatable.
	longest := func(a, b *lane) int { return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.name, b.name)) }
	slices.SortFunc(c.toLoad, longest)
	for i := range c.stripes {
		slices.SortFunc(c.stripes[i].lanes, longest)
	}
}

// fill takes the next call of a stripe: due lanes first, then its queue. nil if there is nothing.
func (c *core) fill(now time.Time, stripe int) *call {
	s := &c.stripes[stripe]
	k := &call{stripe: stripe}
	bytes := 0
	room := func() bool { return len(k.items) < c.cfg.CallMax && bytes < c.cfg.CallBytes }
	take := func(it *item) {
		it.state = inFlight
		bytes += size(it.d)
		k.items = append(k.items, it)
		k.Batch = append(k.Batch, &it.d.Message)
	}
	for len(s.lanes) > 0 && room() {
		l := s.lanes[0]
		s.lanes = s.lanes[1:]
		for len(l.queue) > 0 && publishable(l.queue[0], now) && room() {
			it := l.queue[0]
			l.queue = l.queue[1:]
			it.lane = l
			l.flying++
			take(it)
		}
		if l.flying == 0 && len(l.queue) > 0 && !publishable(l.queue[0], now) {
			c.setAside(now, l.queue[0])
		}
	}
	n := 0
	for n < len(s.queue) && room() {
		it := s.queue[n]
		if len(k.items) > 0 && !publishable(it, now) {
			break // an earlier message of its key may be in this very call
		}
		n++
		if !c.divert(now, it) {
			take(it)
		}
	}
	s.queue = s.queue[n:]
	if len(s.queue) == 0 {
		s.queue = nil
	}
	if n > 0 {
		c.advance(now)
	}
	if len(k.items) == 0 {
		return nil
	}
	return k
}

// divert sends an item that is not to be published now where it belongs.
func (c *core) divert(now time.Time, it *item) bool {
	if l := c.laneOf(it); l != nil {
		if l.mode == laneHeld {
			it.state, it.retryAt, it.blocked = toHold, time.Time{}, false
			l.pending = append(l.pending, it)
		} else {
			l.queue = append(l.queue, it)
		}
		return true
	}
	if publishable(it, now) {
		return false
	}
	l := c.openLane(it)
	l.queue = append(l.queue, it)
	c.setAside(now, it)
	return true
}

// publishable reports whether a message may go out now, as far as it is up to the message.
func publishable(it *item, now time.Time) bool {
	return it.d.Invalid == nil && !it.d.DeliverAt.After(now)
}

// setAside puts the unpublishable head of a lane aside: for good, or until its time has come.
func (c *core) setAside(now time.Time, it *item) {
	if it.d.Invalid != nil {
		it.err = it.d.Invalid
		c.fail(now, it)
		return
	}
	c.retry(now, it, it.d.DeliverAt)
}

// maintain starts at most one of: a settlement, a list of held lanes, a look into a lane.
func (c *core) maintain(now time.Time, r *ready) {
	if c.working {
		return
	}
	urgent := c.draining || c.stopped != nil || c.unsettled > c.cfg.MaxInFlight/2
	if !c.settleAt.IsZero() && (urgent || !now.Before(c.settleAt)) {
		if s := c.settle(); s != nil {
			c.working = true
			r.Settle = s
			return
		}
	}
	if c.draining || c.stopped != nil {
		return
	}
	if !c.synced || !now.Before(c.syncAt) {
		c.working = true
		r.Lanes = c.cfg.MaxHeldLanes
		return
	}
	if !c.held.empty() || c.loaded >= c.cfg.MaxLoaded || c.outage.forbids(now) {
		return
	}
	if len(c.toLoad) > 0 {
		l := c.toLoad[0]
		c.toLoad = c.toLoad[1:]
		c.working = true
		r.Held = &heldQuery{Lane: l.name, Limit: min(c.cfg.HeldMax, c.cfg.MaxLoaded-c.loaded)}
	}
}

// settle builds the settlement of everything decided, or nil if there is nothing.
func (c *core) settle() *Settlement {
	s := &Settlement{
		Delivered:     c.delivered,
		HeldDelivered: c.held.delivered,
		HeldRetry:     c.held.retry,
		HeldDead:      c.held.dead,
	}
	from := c.settledTo()
	for i := from.page; i <= c.prefix.page && i < len(c.pages); i++ {
		p := c.pages[i]
		end := len(p.items)
		if i == c.prefix.page {
			end = c.prefix.item
		}
		for j := p.settled; j < end; j++ {
			it := &p.items[j]
			switch it.state {
			case toHold:
				s.Hold = append(s.Hold, Hold{Delivery: it.d, RetryAt: it.retryAt, Blocked: it.blocked, Err: it.err})
			case toDead:
				s.Dead = append(s.Dead, Dead{Delivery: it.d, Reason: it.reason, Err: it.err})
			}
		}
		if end > p.settled {
			s.Through = p.items[end-1].d
		}
	}
	c.settleAt = time.Time{}
	if s.Empty() {
		return nil
	}
	c.settling = &settlement{to: c.prefix, barriers: c.held.barriers}
	c.held = heldOutcomes{}
	c.delivered = 0
	return s
}

// wake returns the earliest time at which something becomes due by itself.
func (c *core) wake() time.Time {
	var at time.Time
	due := func(t time.Time) {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	if !c.working {
		due(c.settleAt)
	}
	if c.draining || c.stopped != nil {
		return at
	}
	if !c.working {
		due(c.syncAt)
	}
	if c.outage.failures > 0 && !c.outage.probing {
		due(c.outage.until)
	}
	due(c.lanesDue)
	return at
}

// size is what a message counts against the limits in bytes: its variable parts and our overhead.
func size(d *Delivery) int {
	n := len(d.Payload) + len(d.Topic) + len(d.Key) + 256
	for i := range d.Headers {
		n += len(d.Headers[i].Name) + len(d.Headers[i].Value)
	}
	return n
}
