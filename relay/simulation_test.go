package relay

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
)

var (
	simSeeds = flag.Int("sim.seeds", 3000, "how many seeds the simulation runs")
	simSeed  = flag.Uint64("sim.seed", 0, "run only this seed, with its transcript")
)

// TestEveryScheduleKeepsThePromises drives cores through seeded schedules of reads, outcomes in any
// order, crashes, zombies, outages, poison, delays and operators, against a model of the database and the
// broker. A failing seed replays with -sim.seed and tells its story.
func TestEveryScheduleKeepsThePromises(t *testing.T) {
	if *simSeed != 0 {
		s := newSimulation(*simSeed)
		s.log = t.Logf
		if err := s.run(); err != nil {
			t.Fatal(err)
		}
		return
	}
	var total simCounts
	for counts := range simulateAll(t, uint64(*simSeeds)) {
		total.add(counts)
	}
	t.Logf("%d seeds: %+v", *simSeeds, total)
	if total.Duplicates == 0 || total.Dead == 0 || total.Held == 0 || total.Zombies == 0 || total.Outages == 0 || total.Requeued == 0 || total.Stops == 0 {
		t.Errorf("the schedules miss a fault that they are meant to have: %+v", total)
	}
}

// simulateAll runs seeds 1 to n on all processors and yields what each worker counted. It stops at the
// first violation.
func simulateAll(t *testing.T, n uint64) <-chan simCounts {
	results := make(chan simCounts)
	var next atomic.Uint64
	var failed atomic.Bool
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			var counts simCounts
			for seed := next.Add(1); seed <= n && !failed.Load(); seed = next.Add(1) {
				s := newSimulation(seed)
				if err := s.run(); err != nil {
					failed.Store(true)
					t.Errorf("seed %d: %v\nreplay: go test ./relay -run %s -sim.seed=%d -v", seed, err, t.Name(), seed)
				}
				counts.add(s.counts)
			}
			results <- counts
		})
	}
	go func() {
		workers.Wait()
		close(results)
	}()
	return results
}

type simCounts struct{ Delivered, Duplicates, Dead, Held, Crashes, Zombies, Outages, Requeued, Stops int }

func (c *simCounts) add(o simCounts) {
	c.Delivered += o.Delivered
	c.Duplicates += o.Duplicates
	c.Dead += o.Dead
	c.Held += o.Held
	c.Crashes += o.Crashes
	c.Zombies += o.Zombies
	c.Outages += o.Outages
	c.Requeued += o.Requeued
	c.Stops += o.Stops
}

// simulation is the world around the cores.
type simulation struct {
	rng    *rand.Rand
	now    time.Time
	cfg    coreConfig
	log    func(string, ...any) // nil: nobody reads the story
	counts simCounts

	// the database
	table  []*Delivery // committed, in read order
	cursor int         // settled prefix of table
	holds  map[string][]simHold
	dead   map[int64]bool
	epoch  int

	// the broker
	down     bool
	poison   map[int64]int // message → how many more failures it causes; -1: always
	refused  map[int64]bool
	failures map[int64]int  // counted failures told to a core
	seen     map[int64]int  // acceptances
	seenBy   map[int64]int  // who had it accepted last, by epoch
	excused  map[int64]bool // was a dead letter once: may appear late

	relays   []*simRelay
	faults   bool
	stopping bool
}

type simHold struct {
	d       Delivery
	retryAt time.Time
	blocked bool
}

// simRelay is one running core with the actions that it has under way.
type simRelay struct {
	core    *core
	epoch   int
	read    int // next table index to read
	pending []simAction
	gone    bool
}

type simAction struct {
	name string
	do   func() error
}

func newSimulation(seed uint64) *simulation {
	rng := rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15))
	policies := []Policy{DeadLetter, DeadLetter, DeadLetter, Block}
	batch := 1 + rng.IntN(8)
	return &simulation{
		rng: rng,
		now: time.Unix(1_700_000_000, 0),
		cfg: coreConfig{
			Stripes: 1 + rng.IntN(4), ReadMax: batch, CallMax: 1 + rng.IntN(8), CallBytes: 1 << 20,
			MaxInFlight: batch * (2 + rng.IntN(4)), MaxInFlightBytes: 1 << 20, MaxHeldLanes: 3 + rng.IntN(20),
			MaxLoaded: 1 + rng.IntN(6), HeldMax: 1 + rng.IntN(4), MaxAttempts: 1 + rng.IntN(5),
			OnExhausted: policies[rng.IntN(len(policies))],
			Backoff:     Backoff{Initial: 100 * time.Millisecond, Max: 10 * time.Second},
			Outage:      Backoff{Initial: 100 * time.Millisecond, Max: time.Second},
			HoldAfter:   time.Duration(rng.IntN(1000)) * time.Millisecond,
			SettleDelay: time.Duration(rng.IntN(20)) * time.Millisecond, Resync: 5 * time.Second,
		},
		holds: map[string][]simHold{}, dead: map[int64]bool{}, poison: map[int64]int{}, refused: map[int64]bool{},
		failures: map[int64]int{}, seen: map[int64]int{}, seenBy: map[int64]int{}, excused: map[int64]bool{}, faults: true,
	}
}

func (s *simulation) trace(format string, args ...any) {
	if s.log != nil {
		s.log(format, args...)
	}
}

func (s *simulation) run() error {
	s.write(20 + s.rng.IntN(60))
	s.start()
	for range 300 + s.rng.IntN(500) {
		if err := s.step(); err != nil {
			return err
		}
	}
	return s.finish()
}

// write commits n messages.
func (s *simulation) write(n int) {
	keys := 1 + s.rng.IntN(12)
	for range n {
		id := int64(len(s.table) + 1)
		d := &Delivery{Message: outbox.Message{Topic: "t", Position: id}, Window: 1, Ref: uint64(id)}
		d.ID[0], d.ID[1] = byte(id>>8), byte(id)
		if k := s.rng.IntN(keys + 1); k > 0 {
			d.Key = fmt.Sprint("k", k)
			d.Shard = k * 7 % 64
		} else {
			d.Shard = int(id) % 64
		}
		switch s.rng.IntN(40) {
		case 0, 1:
			s.poison[id] = 1 + s.rng.IntN(8)
		case 2:
			s.poison[id] = -1
		case 3:
			s.refused[id] = true
		case 4:
			d.Invalid = errors.New("nonsense")
		case 5:
			d.DeliverAt = s.now.Add(time.Duration(s.rng.IntN(3000)) * time.Millisecond)
		}
		s.table = append(s.table, d)
	}
}

// start lets a relay take the lease.
func (s *simulation) start() {
	s.epoch++
	s.relays = append(s.relays, &simRelay{core: newCore(s.cfg, s.rng.Float64), epoch: s.epoch, read: s.cursor})
	s.trace("relay %d starts at %d", s.epoch, s.cursor)
}

func (s *simulation) owner() *simRelay { return s.relays[len(s.relays)-1] }

// step lets one thing happen.
func (s *simulation) step() error {
	s.now = s.now.Add(time.Duration(s.rng.IntN(5)) * time.Millisecond)
	for _, r := range s.relays {
		s.ask(r)
	}
	if s.faults {
		s.fault()
	}
	s.relays = slices.DeleteFunc(s.relays, func(r *simRelay) bool { return r.gone })
	if s.stopping {
		return s.shutDown()
	}
	var all []*simRelay
	for _, r := range s.relays {
		for range r.pending {
			all = append(all, r)
		}
	}
	if len(all) == 0 {
		// Nothing under way: time passes until something is due.
		s.now = s.now.Add(time.Duration(1+s.rng.IntN(200)) * time.Millisecond)
		return nil
	}
	r := all[s.rng.IntN(len(all))]
	i := s.rng.IntN(len(r.pending))
	a := r.pending[i]
	r.pending = slices.Delete(r.pending, i, i+1)
	return a.do()
}

func (s *simulation) fault() {
	switch s.rng.IntN(60) {
	case 0:
		s.counts.Crashes++
		s.relays = nil
		s.trace("crash")
		s.start()
	case 1:
		// The owner freezes past its lease; it goes on later, beside the new owner.
		if len(s.relays) < 3 {
			s.counts.Zombies++
			s.start()
		}
	case 2, 3:
		s.down = !s.down
		if s.down {
			s.counts.Outages++
		}
		s.trace("broker down: %v", s.down)
	case 4:
		s.now = s.now.Add(time.Duration(s.rng.IntN(8000)) * time.Millisecond)
	case 5:
		s.write(1 + s.rng.IntN(10))
	case 6:
		s.operate()
	case 7:
		s.stopping = true
	}
}

// shutDown ends the relay in good order, with nothing else going wrong: what was delivered is settled then,
// so the next one repeats nothing.
func (s *simulation) shutDown() error {
	r := s.owner()
	s.relays = []*simRelay{r}
	s.faults, s.stopping = false, false
	outage := s.down || r.core.outage.failures > 0
	s.trace("relay %d is told to stop", r.epoch)
	r.core.drain()
	for range 2000 {
		n := r.core.next(s.now)
		s.perform(r, n)
		if n.Drained {
			s.counts.Stops++
			for _, d := range s.table[s.cursor:] {
				if s.seenBy[d.Position] == r.epoch && !outage {
					return fmt.Errorf("message %d was delivered and not settled by a relay that ended in good order", d.Position)
				}
			}
			s.faults, s.relays = true, nil
			s.start()
			return nil
		}
		if len(r.pending) == 0 {
			s.now = s.now.Add(time.Duration(1+s.rng.IntN(20)) * time.Millisecond)
			continue
		}
		i := s.rng.IntN(len(r.pending))
		a := r.pending[i]
		r.pending = slices.Delete(r.pending, i, i+1)
		if err := a.do(); err != nil {
			return err
		}
		outage = outage || r.core.outage.failures > 0 // a call that was broken before
	}
	return fmt.Errorf("the drain does not end: %s", s.describe())
}

// operate is an operator who unblocks a lane or sends a dead letter again.
func (s *simulation) operate() {
	for _, lane := range sortedKeys(s.holds) {
		if h := s.holds[lane]; h[0].blocked {
			delete(s.refused, h[0].d.Position)
			delete(s.poison, h[0].d.Position)
			h[0].blocked, h[0].retryAt, h[0].d.Invalid = false, s.now, nil
			s.counts.Requeued++
			s.trace("operator unblocks %s", lane)
			return
		}
	}
	for _, id := range sortedKeys(s.dead) {
		d := *s.table[id-1]
		if d.Invalid != nil {
			continue
		}
		delete(s.refused, id)
		delete(s.poison, id)
		delete(s.dead, id)
		s.hold(simHold{d: d, retryAt: s.now})
		s.counts.Requeued++
		s.trace("operator requeues %d", id)
		return
	}
}

func (s *simulation) hold(h simHold) {
	lane := h.d.Lane()
	list := s.holds[lane]
	for i := range list {
		if list[i].d.Position == h.d.Position {
			return // ON CONFLICT DO NOTHING
		}
	}
	list = append(list, h)
	slices.SortFunc(list, func(a, b simHold) int { return int(a.d.Position - b.d.Position) })
	s.holds[lane] = list
}

// ask performs what a core wants by queueing it.
func (s *simulation) ask(r *simRelay) {
	s.perform(r, r.core.next(s.now))
}

func (s *simulation) perform(r *simRelay, n ready) {
	if n.Read > 0 {
		r.pending = append(r.pending, simAction{"read", func() error { return s.doRead(r, n.Read) }})
	}
	for _, k := range n.Publish {
		s.trace("relay %d publishes %v", r.epoch, story{k})
		r.pending = append(r.pending, simAction{"publish", func() error { return s.doPublish(r, k) }})
	}
	if n.Settle != nil {
		r.pending = append(r.pending, simAction{"settle", func() error { return s.doSettle(r, n.Settle) }})
	}
	if n.Lanes > 0 {
		r.pending = append(r.pending, simAction{"lanes", func() error { return s.doLanes(r, n.Lanes) }})
	}
	if q := n.Held; q != nil {
		r.pending = append(r.pending, simAction{"held", func() error { return s.doHeld(r, q) }})
	}
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

func (s *simulation) doRead(r *simRelay, limit int) error {
	n := min(limit, len(s.table)-r.read)
	if n > 0 && s.rng.IntN(3) == 0 {
		n = 1 + s.rng.IntN(n)
	}
	batch := Batch{Deliveries: make([]Delivery, n)}
	for i := range n {
		batch.Deliveries[i] = *s.table[r.read+i]
		batch.Deliveries[i].Attempts = 0
	}
	r.read += n
	if n == 0 {
		// A source pauses when there is nothing. Without it, steps would pass and no time.
		s.now = s.now.Add(time.Duration(s.rng.IntN(50)) * time.Millisecond)
	} else {
		s.trace("relay %d reads %d…%d", r.epoch, r.read-n+1, r.read)
	}
	if limit := s.cfg.MaxInFlight; r.core.unsettled > limit {
		return fmt.Errorf("%d messages in flight, the bound is %d", r.core.unsettled, limit)
	}
	r.core.onRead(s.now, batch)
	return nil
}

// doPublish is a broker that keeps the contract: per key, nothing is accepted behind a failure.
func (s *simulation) doPublish(r *simRelay, k *call) error {
	errs := make([]error, len(k.Batch))
	broken := map[string]bool{}
	cut := len(k.Batch)
	if s.faults && s.rng.IntN(20) == 0 {
		cut = s.rng.IntN(len(k.Batch) + 1) // the connection breaks here
	}
	lost := s.faults && s.rng.IntN(30) == 0 // the answers are lost, the messages are not
	failed := false
	for i, m := range k.Batch {
		id, lane := m.Position, k.items[i].d.Lane()
		switch {
		case broken[lane]:
			errs[i] = outbox.ErrSkipped
		case s.down || i >= cut:
			errs[i] = outbox.Unavailable(errors.New("nobody answers"))
			broken[lane] = true
		case s.refused[id]:
			s.failures[id]++
			errs[i] = outbox.Permanent(errors.New("refused"))
			broken[lane] = true
		case s.poison[id] != 0:
			if s.poison[id] > 0 {
				s.poison[id]--
			}
			s.failures[id]++
			errs[i] = errors.New("poison")
			broken[lane] = true
		default:
			if err := s.accept(k.items[i].d); err != nil {
				return err
			}
			s.seenBy[id] = r.epoch
			if lost {
				errs[i] = outbox.Unavailable(errors.New("answer lost"))
			}
		}
		failed = failed || errs[i] != nil
	}
	if !failed {
		errs = nil
	}
	s.trace("relay %d published %v: %v", r.epoch, story{k}, errs)
	r.core.onPublished(s.now, k, errs)
	return nil
}

// accept checks the promises at the moment when a consumer would see the message.
func (s *simulation) accept(d *Delivery) error {
	id := d.Position
	if d.Invalid != nil {
		return fmt.Errorf("message %d is not a message and was published", id)
	}
	if d.DeliverAt.After(s.now) {
		return fmt.Errorf("message %d published %v early", id, d.DeliverAt.Sub(s.now))
	}
	s.seen[id]++
	if s.seen[id] > 1 {
		s.counts.Duplicates++
		return nil
	}
	s.counts.Delivered++
	for _, earlier := range s.table[:id-1] {
		if earlier.Lane() == d.Lane() && s.seen[earlier.Position] == 0 && !s.excused[earlier.Position] {
			return fmt.Errorf("key %s: message %d was accepted before message %d", d.Lane(), id, earlier.Position)
		}
	}
	return nil
}

func (s *simulation) doSettle(r *simRelay, st *Settlement) error {
	if r.epoch != s.epoch {
		s.trace("relay %d is fenced", r.epoch)
		r.gone = true
		return nil
	}
	if s.faults && s.rng.IntN(40) == 0 {
		// The outcome of the commit is unknown: it happened or not, and the session is over.
		applied := s.rng.IntN(2) == 0
		if applied {
			if err := s.apply(st); err != nil {
				return err
			}
		}
		s.trace("relay %d loses its session in a commit (applied: %v)", r.epoch, applied)
		r.gone = true
		s.start()
		return nil
	}
	if err := s.apply(st); err != nil {
		return err
	}
	r.core.onSettled(s.now)
	return nil
}

func (s *simulation) apply(st *Settlement) error {
	if st.Through != nil {
		through := int(st.Through.Position)
		if through <= s.cursor {
			return fmt.Errorf("cursor moves back from %d to %d", s.cursor, through)
		}
		aside := map[int64]bool{}
		for _, h := range st.Hold {
			aside[h.Delivery.Position] = true
		}
		for _, d := range st.Dead {
			aside[d.Delivery.Position] = true
		}
		for _, d := range s.table[s.cursor:through] {
			if s.seen[d.Position] == 0 && !aside[d.Position] {
				return fmt.Errorf("cursor passes message %d, which is neither delivered nor set aside", d.Position)
			}
		}
		s.cursor = through
		s.trace("cursor at %d", through)
	} else if len(st.Hold)+len(st.Dead) > 0 {
		return errors.New("messages set aside without moving the cursor past them")
	}
	for _, h := range st.Hold {
		d := *h.Delivery
		s.counts.Held++
		s.hold(simHold{d: d, retryAt: h.RetryAt, blocked: h.Blocked})
		s.trace("held %d until %v", d.Position, h.RetryAt)
	}
	for _, d := range st.Dead {
		if err := s.die(d); err != nil {
			return err
		}
	}
	for _, d := range st.HeldDelivered {
		if err := s.unhold(d); err != nil {
			return err
		}
	}
	for _, h := range st.HeldRetry {
		list := s.holds[h.Delivery.Lane()]
		i := slices.IndexFunc(list, func(x simHold) bool { return x.d.Position == h.Delivery.Position })
		if i < 0 {
			return fmt.Errorf("retry of %d, which is not held", h.Delivery.Position)
		}
		list[i].retryAt, list[i].blocked, list[i].d.Attempts = h.RetryAt, h.Blocked, h.Delivery.Attempts
	}
	for _, d := range st.HeldDead {
		if err := s.unhold(d.Delivery); err != nil {
			return err
		}
		if err := s.die(d); err != nil {
			return err
		}
	}
	return nil
}

func (s *simulation) unhold(d *Delivery) error {
	lane := d.Lane()
	list := s.holds[lane]
	i := slices.IndexFunc(list, func(h simHold) bool { return h.d.Position == d.Position })
	if i < 0 {
		return fmt.Errorf("message %d is not held", d.Position)
	}
	list = slices.Delete(list, i, i+1)
	if len(list) == 0 {
		delete(s.holds, lane)
	} else {
		s.holds[lane] = list
	}
	return nil
}

func (s *simulation) die(d Dead) error {
	id := d.Delivery.Position
	s.counts.Dead++
	s.trace("dead %d: %s", id, d.Reason)
	if d.Reason == ReasonExhausted && s.failures[id] < s.cfg.MaxAttempts {
		return fmt.Errorf("message %d died of %d failures, %d are allowed", id, s.failures[id], s.cfg.MaxAttempts)
	}
	if s.cfg.OnExhausted != DeadLetter {
		return fmt.Errorf("message %d died under the policy %q", id, s.cfg.OnExhausted)
	}
	s.dead[id], s.excused[id] = true, true
	return nil
}

func (s *simulation) doLanes(r *simRelay, limit int) error {
	if r.epoch != s.epoch && s.rng.IntN(2) == 0 {
		r.gone = true
		return nil
	}
	var list []HeldLane
	for _, lane := range sortedKeys(s.holds) {
		h := s.holds[lane][0]
		list = append(list, HeldLane{Lane: lane, Shard: h.d.Shard, Due: h.retryAt, Blocked: h.blocked})
		if len(list) == limit {
			break
		}
	}
	r.core.onLanes(s.now, list)
	return nil
}

func (s *simulation) doHeld(r *simRelay, q *heldQuery) error {
	var list []Delivery
	for i, h := range s.holds[q.Lane] {
		if i == q.Limit {
			break
		}
		d := h.d
		d.RetryAt, d.Blocked = h.retryAt, h.blocked
		list = append(list, d)
	}
	r.core.onHeld(s.now, q.Lane, list)
	return nil
}

// finish heals the world and expects everything to arrive.
func (s *simulation) finish() error {
	s.faults, s.down = false, false
	s.trace("the world heals")
	for id := range s.poison {
		delete(s.poison, id)
	}
	for range 20_000 {
		if s.cfg.OnExhausted == Block {
			s.operate()
		}
		if err := s.step(); err != nil {
			return err
		}
		if s.cursor == len(s.table) && len(s.holds) == 0 {
			return s.verdict()
		}
	}
	return fmt.Errorf("stuck: cursor at %d of %d, %d lanes held; %s", s.cursor, len(s.table), len(s.holds), s.describe())
}

func (s *simulation) describe() string {
	c := s.owner().core
	var b strings.Builder
	fmt.Fprintf(&b, "unsettled %d, reading %v, working %v, crowded %v, outage %+v\n", c.unsettled, c.reading, c.working, c.crowded, c.outage)
	for _, name := range sortedKeys(c.lanes) {
		l := c.lanes[name]
		fmt.Fprintf(&b, "lane %s: mode %d queue %d pending %d flying %d due in %v blocked %v barrier %v\n", name, l.mode, len(l.queue), len(l.pending),
			l.flying, l.due.Sub(s.now), l.blocked, l.barrier != nil)
	}
	for lane, h := range s.holds {
		fmt.Fprintf(&b, "holds %s: %d, head %d due in %v blocked %v\n", lane, len(h), h[0].d.Position, h[0].retryAt.Sub(s.now), h[0].blocked)
	}
	return b.String()
}

func (s *simulation) verdict() error {
	for _, d := range s.table {
		if s.seen[d.Position] == 0 && !s.dead[d.Position] {
			return fmt.Errorf("message %d is lost", d.Position)
		}
	}
	return nil
}

func sortedKeys[K interface{ ~string | ~int64 }, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
