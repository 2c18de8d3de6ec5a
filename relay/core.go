package relay

import (
	"fmt"
	"slices"
	"time"

	"github.com/pgoutbox/outbox"
)

// core decides; it performs nothing. Events go in through the on… methods, next returns the actions that
// are due, and the runner performs them and reports back. It has no I/O, no clock (every method is told
// the time) and no goroutines, so a test can drive it through any schedule.
//
// A message passes through: a page (as read, in order) → the queue of its stripe → a call → settled with
// the contiguous prefix of its page. Stripes split the shards: at most one call is in flight per stripe,
// so calls never share a key. A lane exists as an object only while its key is out of the ordinary and something is
// to be done about it: its head waits for a retry, a dead letter of it is not yet settled, or its holds in the database
// are due. Of the other lanes with holds, however many they are, only a hash is remembered (stored).
type core struct {
	cfg  coreConfig
	rand func() float64 // uniform in [0, 1)

	pages     []*page // unsettled, in the order in which they were read
	free      []*page
	unsettled int // messages in pages that are not settled
	bytes     int // their size
	prefix    prefix

	stripes []stripe
	calls   []*call // free
	lanes   map[string]*lane
	loaded  int // holds in memory

	stored  storedLanes         // the lanes of keys that have holds, or soon will
	pending map[laneKey][]*item // toHold, not settled yet, in order. Not those without a key

	dirty    bool      // a lane changed since the last scan
	lanesDue time.Time // when the next waiting lane is due
	toLoad   []*lane   // held lanes that are due, longest first

	outage  outage
	closed  map[Route]*closed
	refused map[laneKey]*closed // lanes whose head was refused because of its topic, and in which outage

	paused    map[target]*closed
	throttle  throttle
	controlAt time.Time // when to ask for the controls again

	reading  bool
	gather   time.Time // until when small calls wait for what is being read; zero: they don't
	working  bool      // a settlement or a query about holds is under way: one at a time
	settling *settlement
	synced   bool      // the held lanes are known
	walked   string    // the last lane of the walk that learns of them
	rewalkAt time.Time // not before that time is the walk begun again, see forgetStale
	syncAt   time.Time // when to look for changed holds again
	listAt   time.Time // when to list the lanes that are due; zero while they are listed
	listing  *DueQuery // the list that is being read

	sourceFull error // why the source reads no more
	wasCrowded bool  // see crowded

	settleAt time.Time // when what is settleable must be settled; zero if nothing is
	held     heldOutcomes

	draining bool
	stopped  error // the policy "stop" has fired
}

type coreConfig struct {
	Stripes          int
	ReadMax          int // messages in a page
	CallMax          int // messages in a call
	CallBytes        int
	CallGather       int           // messages that a call is worth waiting for, while more are being read
	Gather           time.Duration // and how long
	MaxInFlight      int
	MaxInFlightBytes int
	MaxHeldLanes     int
	LanesMax         int // lanes listed at once
	WalkMax          int // the same before anything is read
	MaxLoaded        int // holds in memory
	HeldMax          int // holds loaded at once
	HeldLanes        int // lanes of which holds are loaded at once

	MaxAttempts int
	OnExhausted Policy
	Backoff     Backoff
	Outage      Backoff
	HoldAfter   time.Duration
	SettleDelay time.Duration
	Resync      time.Duration
	Rate        float64       // messages a second; 0: no bound
	Control     time.Duration // how often the controls are read; 0: never

	Select func(*outbox.Message) bool
}

// ready is what the core wants done now. The runner starts everything in it and answers each part with
// its on… method.
type ready struct {
	Read    int // at most this many messages; 0: don't
	Publish []*call
	Settle  *Settlement
	Lanes   *lanesQuery
	Due     *DueQuery
	Held    *heldQuery

	Controls bool // read them

	// Wake is when next must be called again if nothing else happens; zero: never.
	Wake time.Time
	// Drained means that everything that can be settled is. Only after drain.
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
	ages   []time.Duration // memory for the runner

	lanes   map[string]bool // of the first counted items, see has
	counted int
}

// lanesQuery asks for a page of all held lanes.
type lanesQuery struct {
	After string
	Limit int
}

type heldQuery struct {
	Lanes []string
	Limit int // of each
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
	unselected
	done   // delivered
	toHold // becomes a hold when the prefix reaches it
	toDead // becomes a dead letter when the prefix reaches it
)

// item is one delivery and what became of it.
type item struct {
	d     *Delivery
	lane  *lane // while a call carries it on behalf of a lane
	size  int
	state itemState
	held  bool // comes from the holds, not from a page

	err     error
	reason  Reason
	retryAt time.Time
	blocked bool
}

type stripe struct {
	queue    []*item
	inFlight *call
	lanes    []*lane // lanes of this stripe that have something to publish
}

func newCore(cfg coreConfig, rand func() float64) *core {
	return &core{
		cfg:      cfg,
		rand:     rand,
		stripes:  make([]stripe, cfg.Stripes),
		lanes:    make(map[string]*lane),
		stored:   newStoredLanes(),
		pending:  make(map[laneKey][]*item),
		closed:   make(map[Route]*closed),
		refused:  make(map[laneKey]*closed),
		paused:   make(map[target]*closed),
		throttle: throttle{rate: cfg.Rate},
		listAt:   time.Unix(0, 1), // at once
	}
}

// onRead takes a batch that the session returned. An empty one only allows the next read; one that comes
// after drain is left to the next session.
func (c *core) onRead(now time.Time, b Batch) {
	c.reading, c.gather, c.sourceFull = false, time.Time{}, b.Full
	if len(b.Deliveries) == 0 || c.draining {
		if b.Recycle != nil {
			b.Recycle()
		}
		return
	}
	if b.More {
		c.gather = now.Add(c.cfg.Gather)
	}
	p := c.newPage(b)
	c.pages = append(c.pages, p)
	c.unsettled += len(p.items)
	c.sift(p.items)
	for i := range p.items {
		it := &p.items[i]
		c.bytes += it.size
		if it.state == unselected {
			continue
		}
		s := &c.stripes[it.d.Shard%len(c.stripes)]
		s.queue = append(s.queue, it)
	}
	c.advance(now)
}

// sift marks what the destination doesn't want. A message at which Select panics is invalid.
func (c *core) sift(items []item) {
	if c.cfg.Select == nil {
		return
	}
	i := 0
	for i < len(items) {
		panicked := try("Select", func() {
			for ; i < len(items); i++ {
				if it := &items[i]; it.d.Invalid == nil && !c.cfg.Select(&it.d.Message) {
					it.state = unselected
				}
			}
		})
		if panicked != nil {
			items[i].d.Invalid = panicked
		}
	}
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
		d := &b.Deliveries[i]
		p.items[i] = item{d: d, size: size(d)}
	}
	return p
}

// drain stops reading. What was read is delivered, or held if it waits for a retry, and settled: otherwise
// what was delivered behind it would be delivered again. In an outage only what is in flight is awaited.
func (c *core) drain() { c.draining = true }

// next returns what is to be started now.
func (c *core) next(now time.Time) ready {
	var r ready
	c.relieve(now)
	c.scan(now)
	c.publish(now, &r)
	c.scan(now)
	c.maintain(now, &r)
	if c.mayRead(now) {
		c.reading = true
		r.Read = min(c.cfg.ReadMax, c.cfg.MaxInFlight-c.unsettled)
	}
	r.Wake = c.wake(now)
	if c.draining || c.stopped != nil {
		r.Drained = len(r.Publish) == 0 && c.idle() && !c.throttled(now) && !c.working && c.held.empty() && c.prefix == c.settledTo()
		r.Err = c.stopped
	}
	return r
}

func (c *core) mayRead(now time.Time) bool {
	return !c.reading && !c.draining && c.stopped == nil && c.synced && !c.crowded() && c.pausedUntil(now) == nil && !c.full()
}

// full reports whether no page has room any more.
func (c *core) full() bool {
	return c.unsettled+c.cfg.ReadMax > c.cfg.MaxInFlight || c.bytes >= c.cfg.MaxInFlightBytes
}

// crowded reports whether more lanes are held than may be remembered: nothing new is read then, until a tenth is free.
// Each lane that is delivered would otherwise begin a page, whose holds fill its place at once.
func (c *core) crowded() bool {
	most := c.cfg.MaxHeldLanes
	if c.wasCrowded {
		most -= most / 10
	}
	c.wasCrowded = c.stored.size() >= most
	return c.wasCrowded
}

// fullBecause says why nothing new is read, or not of all keys, although the destination answers; nil if it is.
func (c *core) fullBecause() error {
	if c.crowded() {
		return fmt.Errorf("as many keys have messages that are set aside as MaxHeldLanes allows (%d): nothing new is read, of any key, "+
			"until those of a tenth of them are delivered, dead or discarded", c.cfg.MaxHeldLanes)
	}
	return c.sourceFull
}

func (c *core) idle() bool {
	for i := range c.stripes {
		if c.stripes[i].inFlight != nil {
			return false
		}
	}
	return true
}

// relieve holds the lanes that stand in the way when memory is full: the cursor can't pass a message
// that waits for a retry, and nothing can be read until it does.
func (c *core) relieve(now time.Time) {
	if c.draining {
		c.holdAll()
		c.advance(now)
		return
	}
	if !c.full() || c.settling != nil || c.outage.failures > 0 || c.pausedUntil(now) != nil || c.prefix != c.settledTo() {
		return
	}
	for range c.cfg.ReadMax { // as many as make room for a page
		at := c.prefix
		if at.page >= len(c.pages) {
			return
		}
		it := &c.pages[at.page].items[at.item]
		l := c.laneOf(it)
		if l == nil || l.mode != laneRetry || l.flying > 0 || len(l.queue) == 0 || l.queue[0] != it || l.due.IsZero() {
			return
		}
		c.hold(l, l.due, false)
		c.advance(now)
	}
}

// gathers reports whether a stripe waits for what is being read of a backlog: a call has a cost of its own, to the
// destination more than to us.
func (c *core) gathers(now time.Time, s *stripe) bool {
	return now.Before(c.gather) && len(s.queue) < c.cfg.CallGather && len(s.lanes) == 0 &&
		(c.reading || c.mayRead(now)) && c.outage.failures == 0 && !c.draining
}

// publish fills a call for every stripe that has none in flight.
func (c *core) publish(now time.Time, r *ready) {
	o := &c.outage
	if !c.mayPublish(now) {
		return
	}
	first := c.throttle.refill(now)
	for n := range c.stripes {
		i := (first + n) % len(c.stripes)
		s := &c.stripes[i]
		if s.inFlight != nil || c.gathers(now, s) {
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

func (c *core) mayPublish(now time.Time) bool {
	return c.stopped == nil && !c.outage.forbids(now) && !(c.draining && c.outage.failures > 0) && c.pausedUntil(now) == nil
}

// throttled reports whether only the bound on the rate keeps a message from being published.
func (c *core) throttled(now time.Time) bool {
	if c.throttle.allows() > 0 || !c.mayPublish(now) {
		return false
	}
	return slices.ContainsFunc(c.stripes, func(s stripe) bool { return s.inFlight == nil && len(s.queue)+len(s.lanes) > 0 })
}

// fill takes the next call of a stripe: due lanes first, then its queue. nil if there is nothing.
func (c *core) fill(now time.Time, stripe int) *call {
	s := &c.stripes[stripe]
	k := c.newCall(stripe)
	bytes := 0
	most := min(c.cfg.CallMax, c.throttle.allows())
	room := func() bool { return len(k.items) < most && bytes < c.cfg.CallBytes }
	take := func(it *item) {
		c.probe(now, it)
		it.state = inFlight
		bytes += it.size
		k.items = append(k.items, it)
		k.Batch = append(k.Batch, &it.d.Message)
	}
	for len(s.lanes) > 0 && room() {
		l := s.lanes[0]
		s.lanes = s.lanes[1:]
		l.await(nil)
		for len(l.queue) > 0 && c.publishable(now, l.queue[0]) && room() {
			it := l.queue[0]
			l.queue = l.queue[1:]
			it.lane = l
			l.flying++
			take(it)
		}
		if l.flying == 0 && len(l.queue) > 0 && !c.publishable(now, l.queue[0]) {
			c.setAside(now, l.queue[0])
			c.advance(now)
		}
	}
	n := 0
	for n < len(s.queue) && room() && c.stopped == nil {
		it := s.queue[n]
		if !c.publishable(now, it) && k.has(it.d.Lane()) {
			break // what becomes of it is decided when the earlier message of its key is
		}
		n++
		if !c.divert(now, it) {
			take(it)
		}
	}
	s.queue = slices.Delete(s.queue, 0, n) // what is left is short, and the memory stays
	if n > 0 {
		c.advance(now)
	}
	if len(k.items) == 0 {
		c.freeCall(k)
		return nil
	}
	c.throttle.take(len(k.items))
	return k
}

func (c *core) newCall(stripe int) *call {
	if n := len(c.calls); n > 0 {
		k := c.calls[n-1]
		c.calls = c.calls[:n-1]
		*k = call{Batch: k.Batch[:0], items: k.items[:0], ages: k.ages, stripe: stripe}
		return k
	}
	return &call{stripe: stripe}
}

// freeCall takes back a call that is over.
func (c *core) freeCall(k *call) {
	clear(k.Batch)
	clear(k.items)
	k.lanes = nil
	c.calls = append(c.calls, k)
}

// has reports whether a call carries a message of the lane.
func (k *call) has(lane string) bool {
	if k.lanes == nil {
		k.lanes = make(map[string]bool)
	}
	for ; k.counted < len(k.items); k.counted++ {
		k.lanes[k.items[k.counted].d.Lane()] = true
	}
	return k.lanes[lane]
}

// divert sends an item that is not to be published now where it belongs. A message without a key has nothing before it
// but itself, as a hold that an operator has made of it for a relay that has the lease now.
func (c *core) divert(now time.Time, it *item) bool {
	switch l := c.laneOf(it); {
	case l != nil && l.mode != laneHeld:
		l.queue = append(l.queue, it)
		return true
	case l != nil || c.stored.size() > 0 && it.keyed() && c.stored.has(it.d.Lane()):
		c.holdBehind(it)
		return true
	}
	if c.publishable(now, it) {
		return false
	}
	l := c.openLane(it)
	l.queue = append(l.queue, it)
	c.setAside(now, it)
	return true
}

// publishable reports whether a message may go out now, as far as it is up to the message and its topic.
func (c *core) publishable(now time.Time, it *item) bool {
	return it.d.Invalid == nil && !it.d.Blocked && !it.d.DeliverAt.After(now) && c.closedTo(now, it) == nil
}

// maintain starts at most one of: a settlement, a look at the controls, a list of lanes, a look into lanes.
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
	switch {
	case c.cfg.Control > 0 && !now.Before(c.controlAt):
		r.Controls = true
	case c.mayWalk(now):
		r.Lanes = &lanesQuery{After: c.walked, Limit: c.cfg.LanesMax}
		if !c.synced {
			r.Lanes.Limit = c.cfg.WalkMax
		}
	case !c.mayLoad(now):
		return
	case len(c.toLoad) > 0:
		r.Held = c.nextToLoad()
	case !c.listAt.IsZero() && !now.Before(c.listAt):
		r.Due = c.dueQuery(now)
	default:
		return
	}
	c.working = true
}

// mayWalk reports whether the next page of all held lanes is to be listed: at once until all are known, later a page
// with each resync.
func (c *core) mayWalk(now time.Time) bool {
	if !c.synced {
		return !c.crowded()
	}
	return !now.Before(c.syncAt)
}

// mayLoad reports whether holds can be made use of. The outcomes of earlier ones are settled first, or they would come
// again.
func (c *core) mayLoad(now time.Time) bool {
	return (c.synced || c.crowded()) && c.held.empty() && c.loaded < c.cfg.MaxLoaded &&
		!c.outage.forbids(now) && c.pausedUntil(now) == nil
}

func (c *core) nextToLoad() *heldQuery {
	room := min(c.cfg.HeldMax, c.cfg.MaxLoaded-c.loaded)
	n := min(len(c.toLoad), c.cfg.HeldLanes, room)
	q := &heldQuery{Limit: room / n}
	for _, l := range c.toLoad[:n] {
		q.Lanes = append(q.Lanes, l.name)
	}
	c.toLoad = c.toLoad[n:]
	return q
}

// wake returns the earliest time at which something becomes due by itself.
func (c *core) wake(now time.Time) time.Time {
	var at time.Time
	due := func(t time.Time) {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	if !c.working {
		due(c.settleAt)
	}
	pause := c.pausedUntil(now)
	if c.stopped != nil || c.draining && (c.outage.failures > 0 || pause != nil) {
		return at
	}
	if !c.working && !c.draining {
		due(c.controlAt)
		if c.synced {
			due(c.syncAt)
		}
		if c.mayLoad(now) && len(c.toLoad) == 0 {
			due(c.listAt)
		}
	}
	switch {
	case pause != nil:
		due(pause.until)
	case c.throttled(now):
		due(c.throttle.next())
	}
	if now.Before(c.gather) {
		due(c.gather)
	}
	// Once the pause is over, the probe is under way or there is nothing to probe with.
	if c.outage.forbids(now) && !c.outage.probing {
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
