package relay

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/servers"
)

var (
	simSeeds = flag.Uint64("sim.seeds", 0, "how many seeds the simulation runs; default 3,000, make test 600, race detector 300")
	simSeed  = flag.Uint64("sim.seed", 0, "run only this seed, with its transcript")
)

// TestEveryScheduleKeepsThePromises drives cores through seeded schedules of reads, outcomes in any
// order, crashes, zombies, take-overs, outages, poison, delays, operators and clocks that jump, against a model of the
// database and the brokers. A failing seed replays with -sim.seed and tells its story.
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
	seeds := cmp.Or(*simSeeds, defaultSeeds())
	for counts := range simulateAll(t, seeds) {
		total.add(counts)
	}
	t.Logf("%d seeds: %+v", seeds, total)
	for name, n := range total.faults() {
		if *n == 0 {
			t.Errorf("the schedules never have %s: %+v", name, total)
		}
	}
}

// defaultSeeds are fewer with the race detector, which makes each take five times as long: a seed runs in one
// goroutine.
func defaultSeeds() uint64 {
	if build, ok := debug.ReadBuildInfo(); ok && slices.Contains(build.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		return 300
	}
	if !servers.Wanted("long") {
		return 600
	}
	return 3_000
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

type simCounts struct {
	Delivered, Duplicates, Dead, Held, Crashes, Zombies, Outages, Requeued, Stops int
	Jumps                                                                         int // of a clock
	Deselect                                                                      int // messages that a destination did not want
	Closed                                                                        int // topics
	Replayed                                                                      int // messages, by an operator
	Healed                                                                        int // heads without a time of their own
	Crowded                                                                       int // times that a relay remembers too many lanes
	Paused, Throttled                                                             int // by an operator
	Parted                                                                        int // topics that stayed closed while the others finished
	Early, Lapsed                                                                 int // take-overs before a lease expires, and after
	Cut                                                                           int // sessions that ended before their process
	Outliving                                                                     int // locks that outlived their process
	Lockless, LockedLate                                                          int // owners without the lock, and that had it later
	Changes                                                                       int // of the connection that has the lock
	// destinations that were away while all others finished
	Outlived int
}

// faults names what the schedules are meant to have.
func (c *simCounts) faults() map[string]*int {
	return map[string]*int{
		"deliveries": &c.Delivered, "duplicates": &c.Duplicates, "dead letters": &c.Dead, "holds": &c.Held, "crashes": &c.Crashes,
		"zombies": &c.Zombies, "outages": &c.Outages, "operators": &c.Requeued, "stops": &c.Stops, "clocks that jump": &c.Jumps,
		"replays": &c.Replayed, "heads without a time": &c.Healed, "relays that remember too many lanes": &c.Crowded,
		"pauses": &c.Paused, "throttles": &c.Throttled, "closed topics": &c.Closed, "a topic that is closed to the end": &c.Parted,
		"take-overs before a lease expires": &c.Early, "take-overs of expired leases": &c.Lapsed, "sessions that end": &c.Cut,
		"locks that outlive a process": &c.Outliving, "owners without the lock": &c.Lockless, "locks that come late": &c.LockedLate,
		"connections that change": &c.Changes,
		"filters":                 &c.Deselect, "a destination that is away to the end": &c.Outlived,
	}
}

func (c *simCounts) add(o simCounts) {
	more := o.faults()
	for name, n := range c.faults() {
		*n += *more[name]
	}
}

// simulation is the world around the cores: one table, one clock of the database, and destinations.
type simulation struct {
	rng    *rand.Rand
	now    time.Time            // by the database's clock
	log    func(string, ...any) // nil: nobody reads the story
	counts simCounts

	table        []*Delivery // committed, in read order
	lanes        []string    // of the table
	destinations []*simDestination
	faults       bool
}

func newSimulation(seed uint64) *simulation {
	rng := rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15))
	s := &simulation{rng: rng, now: time.Unix(1_700_000_000, 0), faults: true}
	n := []int{1, 1, 1, 1, 2, 2, 2, 3}[rng.IntN(8)]
	for i := range n {
		s.destinations = append(s.destinations, newSimDestination(s, i))
	}
	return s
}

// trace tells the story.
func (s *simulation) trace(format string, args ...any) {
	if s.log != nil {
		s.log("%7.3fs %s", s.now.Sub(time.Unix(1_700_000_000, 0)).Seconds(), fmt.Sprintf(format, args...))
	}
}

func (s *simulation) run() error {
	s.write(20 + s.rng.IntN(60))
	for _, d := range s.destinations {
		d.start()
	}
	steps := (300 + s.rng.IntN(500)) * (1 + len(s.destinations)) / 2
	for range steps {
		if err := s.step(s.destinations[s.rng.IntN(len(s.destinations))]); err != nil {
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
		m := &Delivery{Message: outbox.Message{Topic: simTopics[s.rng.IntN(len(simTopics))], Position: id}, Window: 1, Ref: uint64(id)}
		m.ID[0], m.ID[1] = byte(id>>8), byte(id)
		if k := s.rng.IntN(keys + 1); k > 0 {
			m.Key = fmt.Sprint("k", k)
			m.Shard = k * 7 % 64
		} else {
			m.Shard = int(id) % 64
		}
		switch s.rng.IntN(40) {
		case 0:
			m.Invalid = errors.New("nonsense")
		case 1:
			m.DeliverAt = s.now.Add(time.Duration(s.rng.IntN(3000)) * time.Millisecond)
		default:
			for _, d := range s.destinations {
				d.curse(id)
			}
		}
		s.table, s.lanes = append(s.table, m), append(s.lanes, m.Lane())
	}
}

// step lets one thing happen at a destination.
func (s *simulation) step(d *simDestination) error {
	s.now = s.now.Add(time.Duration(s.rng.IntN(5)) * time.Millisecond)
	if err := d.tend(); err != nil {
		return err
	}
	for _, r := range d.relays {
		if err := d.ask(r); err != nil {
			return err
		}
	}
	if s.faults {
		if err := s.fault(d); err != nil {
			return err
		}
	}
	d.relays = slices.DeleteFunc(d.relays, func(r *simRelay) bool {
		if r.gone {
			d.leave(r.session)
		}
		return r.gone
	})
	if d.stopping {
		return d.shutDown()
	}
	if acted, err := d.act(); acted || err != nil {
		return err
	}
	// Nothing is under way here: time passes until something is due.
	s.now = s.now.Add(time.Duration(1+s.rng.IntN(200)) * time.Millisecond)
	if r := d.owner(); r != nil {
		d.sleep(r)
	}
	return nil
}

func (s *simulation) fault(d *simDestination) error {
	switch s.rng.IntN(60) {
	case 0:
		s.counts.Crashes++
		d.leaveAll()
		d.trace("crash")
		if s.rng.IntN(2) == 0 {
			d.start()
		}
	case 1:
		// The owner freezes past its lease; it goes on later, beside the new owner.
		if r := d.current(); r != nil && len(d.relays) < 3 {
			s.counts.Zombies++
			r.frozen = true
			if s.now.Before(d.leaseUntil) {
				s.now = d.leaseUntil
			}
			d.trace("relay %d freezes", r.epoch)
		}
	case 2, 3:
		d.down = !d.down
		if d.down {
			s.counts.Outages++
		}
		d.trace("broker down: %v", d.down)
	case 4:
		s.now = s.now.Add(time.Duration(s.rng.IntN(8000)) * time.Millisecond)
	case 5:
		s.write(1 + s.rng.IntN(10))
	case 6:
		d.operate()
	case 7:
		d.stopping = d.current() != nil
	case 8:
		d.jump()
	case 10, 11:
		d.control()
	case 12:
		d.replay()
	case 9:
		d.close(simTopics[s.rng.IntN(len(simTopics))])
	case 13:
		d.cut()
	case 14:
		return d.change()
	case 15:
		d.desert()
	}
	return nil
}

var simTopics = []string{"t", "t", "t", "u", "v"}

// finish heals the world and expects everything to arrive: at first at all destinations but one, whose
// broker stays away, if there are several.
func (s *simulation) finish() error {
	s.faults = false
	for _, d := range s.destinations {
		d.down = false
		clear(d.poison)
		clear(d.closed)
		clear(d.paused)
		d.rate = 0
		clear(d.astray)
	}
	s.trace("the world heals")
	if parted := s.destinations[s.rng.IntN(len(s.destinations))]; parted.cfg.MaxHeldLanes > len(s.table) {
		parted.close("u")
		parted.leaveAll() // one whose clock is behind would wait an hour, while the topic is asked for every second
		parted.start()
		parted.owner().skew = 0
		if err := s.finishAll((*simDestination).finishedApart); err != nil {
			return fmt.Errorf("while topic u is closed at %s: %w", parted.name, err)
		}
		s.counts.Parted++
		parted.close("u")
	}
	if len(s.destinations) > 1 {
		away := s.destinations[s.rng.IntN(len(s.destinations))]
		away.down = true
		away.trace("stays away")
		if err := s.finishAll(func(d *simDestination) bool { return d == away || d.finished() }); err != nil {
			return fmt.Errorf("while %s is away: %w", away.name, err)
		}
		s.counts.Outlived++
		away.down = false
		away.trace("comes back")
	}
	if err := s.finishAll((*simDestination).finished); err != nil {
		return err
	}
	for _, d := range s.destinations {
		if err := d.verdict(); err != nil {
			return err
		}
	}
	return nil
}

// finishAll steps until all destinations have finished.
func (s *simulation) finishAll(finished func(*simDestination) bool) error {
	for range 20_000 * len(s.destinations) {
		waiting := slices.IndexFunc(s.destinations, func(d *simDestination) bool { return !finished(d) })
		if waiting < 0 {
			return nil
		}
		d := s.destinations[s.rng.IntN(len(s.destinations))]
		if d.cfg.OnExhausted == Block {
			d.operate()
		}
		if err := s.step(d); err != nil {
			return err
		}
	}
	for _, d := range s.destinations {
		if !finished(d) {
			return fmt.Errorf("%s is stuck: %s", d.name, d.describe())
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
