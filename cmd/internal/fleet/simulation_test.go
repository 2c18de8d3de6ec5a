package fleet

import (
	"cmp"
	"container/heap"
	"flag"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	simSeed    = flag.Uint64("seed", 1, "the seed of the simulated day; with -days, of the first")
	simDays    = flag.Int("days", 2, "how many days are simulated, each with a seed of its own")
	simParts   = flag.Int("parts", 120, "how many databases there are, with one part each")
	simMembers = flag.Int("members", 6, "how many processes there are")
	simFor     = flag.Duration("for", 4*time.Hour, "how long each day is")
	simDraw    = flag.String("draw", "", "the file that gets the drawings of balance")
)

// TestADayOfFaultsAndRollouts simulates a fleet: cores of processes, their home, and the locks and leases of the
// databases. A day with the figures and drawings of docs/fleet.md is one of `make simulate-fleet`.
func TestADayOfFaultsAndRollouts(t *testing.T) {
	t.Parallel()
	var all figures
	for seed := *simSeed; seed < *simSeed+uint64(*simDays); seed++ {
		s := newSimulation(seed, *simParts, *simMembers)
		err := s.run(*simFor)
		if *simDraw != "" {
			if err := os.WriteFile(*simDraw, []byte(s.drawn.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err != nil {
			t.Fatalf("seed %d: %v\n%s\nreplay: go test ./cmd/internal/fleet -run %s -seed %d -days 1 -parts %d -members %d -for %v",
				seed, err, strings.Join(s.story[max(len(s.story)-40, 0):], "\n"), t.Name(), seed, *simParts, *simMembers, *simFor)
		}
		all.add(s.figures)
	}
	t.Logf("%d days of %v, %d parts, %d members\n%s", *simDays, *simFor, *simParts, *simMembers, all.String())
	for _, e := range events() {
		if all.happened[e.name] == 0 && *simFor >= 4*time.Hour {
			t.Errorf("no day has %q", e.name)
		}
	}
}

// What the processes and servers of a simulation take. These are assumptions: nothing here measures real ones.
const (
	expiry     = 3 * time.Second // of a lease
	renewal    = expiry / 3
	endSeen    = 60 * time.Millisecond  // until a server sees that a process is dead
	taking     = 40 * time.Millisecond  // a lock is free, until its lease is taken
	notice     = 20 * time.Millisecond  // the home has changed, until members look
	waits      = time.Second            // how long one statement waits for a lock
	awaited    = 200 * time.Millisecond // how often who hands over looks whether somebody waits
	draining   = 300 * time.Millisecond // at most
	standingBy = time.Second            // how often who stands by looks at leases
	halfOpen   = 15 * time.Second       // until servers give up a session that the network has cut
	grace      = 10 * time.Second       // of a process that is to end
)

// few parts more than can't be avoided may move in a small fleet.
const few = 8

// simulation is a world with one clock.
type simulation struct {
	rng   *rand.Rand
	clock time.Duration
	queue timers
	order int

	home    home
	skew    time.Duration // of the home's clock
	away    bool          // the home
	procs   []*process
	parts   []Part
	locks   map[Part]*lock
	laid    map[string]Placement
	added   int  // parts so far
	started int  // processes so far
	members int  // usually
	heavy   bool // one of them has twice the weight
	err     error

	moves  int           // since the last event began
	placed map[Part]int  // of each part since then
	last   time.Duration // something moved
	storm  bool

	figures
	drawn strings.Builder
	story []string
}

type timer struct {
	at    time.Duration
	order int
	do    func()
}

type timers []timer

func (t timers) Len() int { return len(t) }
func (t timers) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(t[i].at, t[j].at), cmp.Compare(t[i].order, t[j].order)) < 0
}
func (t timers) Swap(i, j int) { t[i], t[j] = t[j], t[i] }
func (t *timers) Push(x any)   { *t = append(*t, x.(timer)) }
func (t *timers) Pop() any {
	last := (*t)[len(*t)-1]
	*t = (*t)[:len(*t)-1]
	return last
}

// lock is what a database has of a part: who has its advisory lock, and its lease.
type lock struct {
	part    Part
	epoch   int
	locker  *process
	owner   *process      // of the lease; nil: it was released
	locked  bool          // the owner has the lock as well
	until   time.Duration // of the lease, if its owner doesn't renew it any more; 0: it does
	waiting []*process
	removed bool

	silent time.Duration // since when nobody delivers; -1: somebody does
	cause  string
	runner *process // who delivers, or did so last
}

// free means that somebody who looks may take the lease.
func (s *simulation) free(l *lock) bool {
	return l.owner == nil || l.locked && l.locker == nil || l.until > 0 && s.clock >= l.until
}

// process is one member.
type process struct {
	cfg     Config
	core    *Core
	parts   []Part
	dead    bool
	frozen  bool
	cut     bool // from all servers
	parted  bool // from the home alone
	leaving bool
	back    time.Duration // when it has its home again, after that was away
	look    int           // of all looks, the latest that is planned
	holds   map[Part]int  // epochs
	run     map[Part]bool
	standBy map[Part]bool
	giving  map[Part]bool
	watch   string
	ordinal int
	onEnd   func()
}

func (p *process) running() bool { return !p.dead && !p.frozen }

func newSimulation(seed uint64, parts, members int) *simulation {
	s := &simulation{rng: rand.New(rand.NewPCG(seed, 33)), locks: map[Part]*lock{}, laid: map[string]Placement{}, placed: map[Part]int{},
		members: members, heavy: seed%2 == 0}
	s.figures = figures{silences: map[string][]time.Duration{}, happened: map[string]int{}, perIdeal: map[string][]float64{}}
	s.home.now = time.Unix(1_800_000_000, 0)
	for range parts {
		s.addPart()
	}
	for i := range members {
		s.start(fmt.Sprintf("relay-%d", i))
	}
	return s
}

func (s *simulation) say(format string, args ...any) {
	s.story = append(s.story, fmt.Sprintf("%9.3f ", s.clock.Seconds())+fmt.Sprintf(format, args...))
	if len(s.story) > 400 {
		s.story = slices.Delete(s.story, 0, 200)
	}
}

func (s *simulation) fail(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf("%.3f s: "+format, append([]any{s.clock.Seconds()}, args...)...)
		s.say("FAULT: %v", s.err)
	}
}

// after has something happen later.
func (s *simulation) after(d time.Duration, do func()) {
	s.order++
	heap.Push(&s.queue, timer{s.clock + max(d, 0), s.order, do})
}

func (s *simulation) within(d time.Duration) time.Duration {
	return time.Duration(s.rng.Int64N(int64(d)))
}

// pass lets time pass.
func (s *simulation) pass(d time.Duration) {
	end := s.clock + d
	for s.err == nil && len(s.queue) > 0 && s.queue[0].at <= end {
		t := heap.Pop(&s.queue).(timer)
		s.clock = t.at
		t.do()
	}
	s.clock = end
}

func (s *simulation) addPart() Part {
	s.added++
	part := Part{Database: fmt.Sprintf("tenant-%04d", s.added), Destination: "orders"}
	s.parts = append(s.parts, part)
	s.locks[part] = &lock{part: part, silent: s.clock, cause: "a new database"}
	return part
}

// start starts a process with the newest configuration.
func (s *simulation) start(name string) *process {
	s.started++
	p := &process{cfg: Config{Name: name, Instance: fmt.Sprintf("%s/%d", name, s.started), Ordinal: Spare, Weight: 1},
		parts: s.parts, holds: map[Part]int{}, ordinal: Spare}
	if s.started == 1 && s.heavy {
		p.cfg.Weight = 2
	}
	p.core = s.core(p.cfg)
	s.procs = append(s.procs, p)
	s.after(s.within(200*time.Millisecond), func() { s.lookAgain(p, 0) })
	return p
}

// core is one whose placements are computed once for all members.
func (s *simulation) core(cfg Config) *Core {
	c := New(cfg)
	c.lay = func(parts []Part, members []Member) Placement {
		key := fmt.Sprint(len(parts), parts[0], parts[len(parts)-1], s.added)
		for _, m := range members {
			key += fmt.Sprint(" ", m.Ordinal, m.Weight, m.Leaving)
		}
		placement, ok := s.laid[key]
		if !ok {
			if len(s.laid) > 200 {
				clear(s.laid)
			}
			placement = Place(parts, members)
			s.laid[key] = placement
		}
		return placement
	}
	return c
}

// lookAgain plans the next look of p, instead of the one that was planned.
func (s *simulation) lookAgain(p *process, d time.Duration) {
	p.look++
	n := p.look
	s.after(d, func() {
		if p.look == n && p.running() {
			s.look(p)
		}
	})
}

func (s *simulation) look(p *process) {
	v := View{}
	if !s.away && !p.cut && !p.parted && s.clock >= p.back {
		s.home.now = time.Unix(1_800_000_000, 0).Add(s.clock + s.skew)
		if r := s.home.record(p.cfg.Instance); r != nil && !r.Alive {
			r.Alive = true // its new session takes its lock
		}
		v = s.home.read()
	}
	v.Parts, v.Leaving = p.parts, p.leaving
	v.Holds = slices.SortedFunc(maps.Keys(p.holds), Part.compare)
	step := p.core.Next(v)
	if v.Readable && s.home.write(p.cfg, step) {
		s.tell()
		step.Again = min(step.Again, notice)
	}
	s.alone()
	if step.Ordinal != p.ordinal {
		s.say("%s has the ordinal %d", p.cfg.Instance, step.Ordinal)
	}
	p.watch, p.ordinal = step.Watch, step.Ordinal
	p.run, p.standBy, p.giving = setOf(step.Run), setOf(step.StandBy), map[Part]bool{}
	for _, h := range step.HandOver {
		p.giving[h.Part] = true
	}
	s.settle(p)
	s.lookAgain(p, step.Again+s.within(50*time.Millisecond))
}

func setOf(parts []Part) map[Part]bool {
	set := make(map[Part]bool, len(parts))
	for _, part := range parts {
		set[part] = true
	}
	return set
}

// tell is the home's notification of a change.
func (s *simulation) tell() {
	for _, p := range s.procs {
		if p.running() {
			s.lookAgain(p, notice/2+s.within(notice/2))
		}
	}
}

// alone checks that no two members have one ordinal.
func (s *simulation) alone() {
	seen := map[int]string{}
	for _, r := range s.home.records {
		if r.Ordinal == Spare {
			continue
		}
		if other := seen[r.Ordinal]; other != "" {
			s.fail("%s and %s have the ordinal %d", other, r.Instance, r.Ordinal)
		}
		seen[r.Ordinal] = r.Instance
	}
}

// settle starts and ends what a process runs, as its last step says.
func (s *simulation) settle(p *process) {
	for _, part := range p.parts {
		l := s.locks[part]
		waits := slices.Contains(l.waiting, p)
		_, holds := p.holds[part]
		switch wants := p.run[part] && !holds && !p.leaving; {
		case wants && !waits:
			l.waiting = append(l.waiting, p)
			s.grant(l)
			s.sweep(l)
		case !wants && waits:
			l.waiting = slices.DeleteFunc(l.waiting, func(o *process) bool { return o == p })
		}
		if p.giving[part] && holds {
			s.handOver(p, l)
		}
	}
}

// grant gives the lock to the next one that waits, who takes the lease.
func (s *simulation) grant(l *lock) {
	s.after(taking/2+s.within(taking/2), func() {
		if l.locker == nil && l.owner != nil && l.owner.running() && !l.owner.cut {
			l.locker, l.locked = l.owner, true // when it renews its lease, which it has taken without the lock
		}
		if l.locker != nil || len(l.waiting) == 0 || l.removed {
			return
		}
		p := l.waiting[0]
		if p.dead || p.cut {
			return // its session is about to end
		}
		if p.frozen {
			l.locker = p // the server gives it to the session that waits, which doesn't know it yet
			l.waiting = l.waiting[1:]
			return
		}
		if s.free(l) {
			s.take(p, l)
		}
	})
}

// take takes the lease, with the lock if that is free.
func (s *simulation) take(p *process, l *lock) {
	l.epoch++
	if l.locker == nil {
		l.locker = p
	}
	l.owner, l.locked, l.until = p, l.locker == p, 0
	l.waiting = slices.DeleteFunc(l.waiting, func(o *process) bool { return o == p })
	for _, other := range s.procs {
		if other != p && !other.dead && other.holds[l.part] == l.epoch {
			s.fail("%v is owned by %s and %s with the epoch %d", l.part, other.cfg.Instance, p.cfg.Instance, l.epoch)
		}
	}
	p.holds[l.part] = l.epoch
	if l.silent >= 0 {
		if d := s.clock - l.silent; d > time.Second {
			s.say("nobody delivered %v for %v because of %s", l.part, d, l.cause)
		}
		s.silence(l.cause, s.clock-l.silent)
	}
	l.silent = -1
	if l.runner != nil && l.runner.cfg.Instance != p.cfg.Instance {
		s.moves++
		s.placed[l.part]++
	}
	l.runner, s.last = p, s.clock
	if !p.run[l.part] && !p.leaving {
		s.lookAgain(p, awaited) // it stands by, and hands the part over again
	}
	if p.leaving {
		s.lookAgain(p, 0)
	}
}

func (s *simulation) silence(cause string, d time.Duration) {
	if s.storm && cause != "a new database" {
		cause = "several faults at once"
	}
	s.silences[cause] = append(s.silences[cause], d)
	limit := map[string]time.Duration{"kill -9": time.Second, "hand-over": time.Second, "frozen": expiry + 2*standingBy,
		"cut": expiry + 2*standingBy, "several faults at once": 70 * time.Second, "a new database": 20 * time.Second}[cause]
	if d > limit {
		s.fail("a silence of %v, because of %s", d, cause)
	}
}

// handOver waits until somebody waits for the lock, then drains and releases.
func (s *simulation) handOver(p *process, l *lock) {
	epoch := p.holds[l.part]
	if len(l.waiting) == 0 {
		s.after(awaited, func() {
			if p.running() && p.holds[l.part] == epoch && p.giving[l.part] {
				s.handOver(p, l)
			}
		})
		return
	}
	delete(p.giving, l.part)
	s.quiet(l, p, "hand-over")
	s.after(s.within(draining), func() {
		if !p.dead && p.holds[l.part] == epoch {
			s.release(p, l)
		}
	})
}

// quiet means that nobody delivers from now on.
func (s *simulation) quiet(l *lock, p *process, cause string) {
	if l.owner == p && l.silent < 0 {
		l.silent, l.cause = s.clock, cause
	}
}

// release gives the lease and the lock back.
func (s *simulation) release(p *process, l *lock) {
	delete(p.holds, l.part)
	if l.owner == p {
		l.owner = nil
	}
	if l.locker == p {
		l.locker = nil
	}
	s.grant(l)
	s.sweep(l)
	s.ended(p)
}

// ended ends a process that is to end and has nothing left.
func (s *simulation) ended(p *process) {
	if p.leaving && !p.dead && len(p.holds) == 0 {
		s.end(p, "hand-over")
	}
}

// sweep has those that wait or stand by look at the lease, once a second, until somebody delivers.
func (s *simulation) sweep(l *lock) {
	s.after(s.within(standingBy), func() { s.stoodBy(l) })
}

func (s *simulation) stoodBy(l *lock) {
	if l.silent < 0 || l.removed {
		return
	}
	if s.free(l) && s.clock-l.silent >= standingBy {
		for _, p := range s.procs {
			if p.running() && !p.cut && !p.leaving && (p.standBy[l.part] || p.run[l.part]) {
				s.take(p, l)
				s.settle(p)
				return
			}
		}
	}
	s.after(standingBy, func() { s.stoodBy(l) })
}

// end ends a process: the servers see it soon.
func (s *simulation) end(p *process, cause string) {
	p.dead = true
	s.say("%s has ended", p.cfg.Instance)
	s.lapse(p, cause)
	s.after(endSeen/2+s.within(endSeen/2), func() { s.endSessions(p) })
	if p.onEnd != nil {
		p.onEnd()
	}
}

// endSessions is what servers do when a process is not there any more.
func (s *simulation) endSessions(p *process) {
	for _, part := range s.ordered() {
		l := s.locks[part]
		l.waiting = slices.DeleteFunc(l.waiting, func(o *process) bool { return o == p })
		if l.locker == p {
			l.locker = nil
			s.grant(l)
		}
		if l.silent >= 0 {
			s.sweep(l)
		}
	}
	if r := s.home.record(p.cfg.Instance); r != nil && !s.away {
		r.Alive = false
		for _, other := range s.procs {
			if other.watch == p.cfg.Instance {
				s.lookAgain(other, s.within(notice))
			}
		}
	}
	if p.dead {
		s.procs = slices.DeleteFunc(s.procs, func(o *process) bool { return o == p })
	}
}

func (s *simulation) ordered() []Part { return slices.SortedFunc(maps.Keys(s.locks), Part.compare) }

// stop asks a process to end; then happens when it has ended.
func (s *simulation) stop(p *process, then func()) {
	p.leaving, p.onEnd = true, then
	s.say("%s is to end", p.cfg.Instance)
	s.lookAgain(p, 0)
	s.after(100*time.Millisecond, func() { s.ended(p) })
	s.after(grace, func() {
		if !p.dead {
			s.end(p, "hand-over")
		}
	})
}

func (s *simulation) kill(p *process) {
	s.say("kill -9 %s", p.cfg.Instance)
	s.end(p, "kill -9")
}

// freeze stops a process for a while, whose sessions stay.
func (s *simulation) freeze(p *process, d time.Duration) {
	s.say("%s freezes for %v", p.cfg.Instance, d)
	p.frozen = true
	s.lapse(p, "frozen")
	s.after(d, func() {
		if p.dead {
			return
		}
		s.say("%s goes on", p.cfg.Instance)
		p.frozen = false
		s.resume(p)
	})
}

// lapse lets the leases of a process run out, which it doesn't renew.
func (s *simulation) lapse(p *process, cause string) {
	for _, part := range slices.SortedFunc(maps.Keys(p.holds), Part.compare) {
		if l := s.locks[part]; l.owner == p && l.until == 0 {
			l.until = s.clock + expiry - s.within(renewal)
			s.quiet(l, p, cause)
			s.sweep(l)
		}
	}
	s.after(s.within(waits), func() {
		for _, l := range s.locks {
			if p.frozen || p.cut {
				l.waiting = slices.DeleteFunc(l.waiting, func(o *process) bool { return o == p })
			}
		}
	})
}

// resume is what a process does that can act again: of its leases, it keeps those that nobody has taken.
func (s *simulation) resume(p *process) {
	for _, part := range slices.SortedFunc(maps.Keys(p.holds), Part.compare) {
		l := s.locks[part]
		if l.owner == p && l.epoch == p.holds[part] {
			l.until = 0
			if l.silent >= 0 {
				s.silence(l.cause, s.clock-l.silent)
				l.silent = -1
			}
			continue
		}
		s.release(p, l)
	}
	for _, part := range s.ordered() {
		if l := s.locks[part]; l.locker == p && l.owner != p {
			l.locker = nil // it got the lock while it was frozen
			s.grant(l)
		}
	}
	s.last = s.clock
	s.lookAgain(p, 0)
}

// cut cuts a process off from all servers for a while.
func (s *simulation) cut(p *process, d time.Duration) {
	s.say("%s is cut off for %v", p.cfg.Instance, d)
	p.cut = true
	s.lapse(p, "cut")
	s.lookAgain(p, 0)
	dropped := false
	s.after(halfOpen, func() {
		if p.cut && !p.dead {
			dropped = true
			s.endSessions(p)
		}
	})
	s.after(d, func() {
		if p.dead {
			return
		}
		s.say("%s is connected again", p.cfg.Instance)
		p.cut = false
		if dropped {
			for part := range p.holds {
				if l := s.locks[part]; l.owner == p && l.epoch == p.holds[part] && l.locker == nil {
					l.locker = p
				}
			}
		}
		s.resume(p)
	})
}

// loseHome takes the home away from everybody, or from one of them.
func (s *simulation) loseHome(d time.Duration) {
	s.say("the home is away for %v", d)
	s.away = true
	for i := range s.home.records {
		s.home.records[i].Alive = false
	}
	for _, p := range s.procs {
		s.lookAgain(p, 0)
	}
	s.after(d, func() {
		s.say("the home is back")
		s.away, s.last = false, s.clock
		s.skew += s.within(4*time.Second) - 2*time.Second // another server, another clock
		for _, p := range s.procs {
			p.back = s.clock + s.within(4*time.Second)
			s.lookAgain(p, p.back-s.clock)
		}
	})
}

func (s *simulation) part(p *process, d time.Duration) {
	s.say("%s has lost its home for %v", p.cfg.Instance, d)
	p.parted = true
	if r := s.home.record(p.cfg.Instance); r != nil {
		r.Alive = false
		for _, other := range s.procs {
			if other.watch == p.cfg.Instance {
				s.lookAgain(other, s.within(notice))
			}
		}
	}
	s.after(d, func() {
		p.parted, s.last = false, s.clock
		s.lookAgain(p, 0)
	})
}

// configure gives all processes another list of databases, one after the other.
func (s *simulation) configure() {
	for _, p := range s.procs {
		s.after(s.within(10*time.Second), func() {
			kept := setOf(s.parts)
			for _, part := range p.parts {
				if l := s.locks[part]; !kept[part] {
					l.removed = true
					delete(p.holds, part)
					l.waiting = nil
				}
			}
			p.parts = s.parts
			s.lookAgain(p, 0)
		})
	}
}

// figures are of one day, or several.
type figures struct {
	silences    map[string][]time.Duration
	happened    map[string]int
	perIdeal    map[string][]float64 // moves, of those that can't be avoided
	least, most float64              // share
	busiest     int                  // moves of one part in a rolling restart
	moved       int
}

func (f *figures) add(o figures) {
	if f.silences == nil {
		*f = o
		return
	}
	for cause, d := range o.silences {
		f.silences[cause] = append(f.silences[cause], d...)
	}
	for name, n := range o.happened {
		f.happened[name] += n
	}
	for name, r := range o.perIdeal {
		f.perIdeal[name] = append(f.perIdeal[name], r...)
	}
	f.least, f.most, f.busiest = min(f.least, o.least), max(f.most, o.most), max(f.busiest, o.busiest)
	f.moved += o.moved
}

func (f *figures) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "load in quiet: %.2f to %.2f of the share by weight; moves: %d; of one part in a rolling restart: at most %d\n\n",
		f.least, f.most, f.moved, f.busiest)
	fmt.Fprintln(&b, "| event | times | moves, of what can't be avoided: mean | most |\n|---|--:|--:|--:|")
	for _, name := range slices.Sorted(maps.Keys(f.happened)) {
		mean, most := "–", "–"
		if r := f.perIdeal[name]; len(r) > 0 {
			sum := 0.0
			for _, x := range r {
				sum += x
			}
			mean, most = fmt.Sprintf("%.2f", sum/float64(len(r))), fmt.Sprintf("%.2f", slices.Max(r))
		}
		fmt.Fprintf(&b, "| %s | %d | %s | %s |\n", name, f.happened[name], mean, most)
	}
	fmt.Fprintln(&b, "\n| silence of a part because of | times | p50 s | p99 s | longest s |\n|---|--:|--:|--:|--:|")
	for _, cause := range slices.Sorted(maps.Keys(f.silences)) {
		d := slices.Sorted(slices.Values(f.silences[cause]))
		fmt.Fprintf(&b, "| %s | %d | %.2f | %.2f | %.2f |\n", cause, len(d), d[len(d)/2].Seconds(), d[len(d)*99/100].Seconds(),
			d[len(d)-1].Seconds())
	}
	return b.String()
}

// run lets one event happen after the other, each when the last has settled.
func (s *simulation) run(day time.Duration) error {
	s.least, s.most = math.Inf(1), 0
	s.until("the start", 0)
	s.check("the start")
	for s.err == nil && s.clock < day {
		e := events()[s.rng.IntN(len(events()))]
		if e.fits != nil && !e.fits(s) {
			continue
		}
		s.moves, s.placed = 0, map[Part]int{}
		s.say("EVENT: %s", e.name)
		ideal, most := e.do(s)
		s.until(e.name, day)
		s.check(e.name)
		s.happened[e.name]++
		s.moved += s.moves
		if ideal == 0 && s.moves > 0 {
			s.fail("%s: %d moves, none was to be", e.name, s.moves)
		}
		if ideal > 0 {
			ratio := float64(s.moves) / ideal
			s.perIdeal[e.name] = append(s.perIdeal[e.name], ratio)
			if float64(s.moves) > most*ideal+few {
				s.fail("%s: %d moves, %.1f would be ideal", e.name, s.moves, ideal)
			}
		}
		if e.rolls {
			for part, n := range s.placed {
				s.busiest = max(s.busiest, n)
				if n > 2 {
					s.fail("%s: %v moves %d times", e.name, part, n)
				}
			}
		}
	}
	return s.err
}

// until lets time pass until nothing has moved for as long as ordinals are reserved, and some more.
func (s *simulation) until(event string, day time.Duration) {
	for began := s.clock; s.err == nil; {
		s.pass(10 * time.Second)
		busy := slices.ContainsFunc(s.procs, func(p *process) bool { return p.frozen || p.cut || p.parted || p.leaving })
		if !busy && !s.away && s.clock-max(s.last, began) > 80*time.Second {
			s.storm = false
			return
		}
		if s.clock-began > 30*time.Minute {
			s.fail("%s: it doesn't settle", event)
		}
	}
}

// check checks a fleet that is quiet, and draws its balance.
func (s *simulation) check(event string) {
	if s.err != nil {
		return
	}
	var members []Member
	total := 0.0
	for _, p := range s.procs {
		if p.ordinal == Spare {
			s.fail("%s: %s is still a spare", event, p.cfg.Instance)
		}
		members = append(members, Member{Ordinal: p.ordinal, Weight: p.cfg.Weight})
		total += p.cfg.Weight
	}
	placement := Place(s.parts, members)
	for _, part := range s.parts {
		l := s.locks[part]
		switch {
		case l.silent >= 0:
			s.fail("%s: nobody delivers %v, since %v, because of %s", event, part, l.silent, l.cause)
		case l.owner == nil || l.owner.dead || l.owner.ordinal != placement[part].First:
			s.fail("%s: %v is not with its first choice %d, but with %s (%d)", event, part, placement[part].First,
				l.owner.cfg.Instance, l.owner.ordinal)
		}
		for _, p := range s.procs {
			if _, ok := p.holds[part]; ok && p != l.owner {
				s.fail("%s: %v is with %s as well", event, part, p.cfg.Instance)
			}
		}
	}
	procs := slices.SortedFunc(slices.Values(s.procs), func(a, b *process) int { return cmp.Compare(a.ordinal, b.ordinal) })
	fmt.Fprintf(&s.drawn, "after %s: %d parts, %d members, %d moves\n", event, len(s.parts), len(procs), s.moves)
	for _, p := range procs {
		share := float64(len(s.parts)) * p.cfg.Weight / total
		load := float64(len(p.holds)) / share
		s.least, s.most = min(s.least, load), max(s.most, load)
		if float64(len(p.holds)) < 0.85*share-1 || float64(len(p.holds)) > 1.15*share+1 {
			s.fail("%s: %s has %d parts, its share is %.1f", event, p.cfg.Instance, len(p.holds), share)
		}
		fmt.Fprintf(&s.drawn, "%3d %-12s %s %3d (%.2f)\n", p.ordinal, p.cfg.Name, strings.Repeat("█", int(20*load+0.5)), len(p.holds), load)
	}
	fmt.Fprintln(&s.drawn)
}
