package fleet

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// event is what happens to a fleet that is quiet.
type event struct {
	name string
	// do begins it. It returns how many moves can't be avoided, and how many times as many are allowed; NaN: any
	// number.
	do    func(*simulation) (ideal, most float64)
	rolls bool                   // each part moves at most twice
	fits  func(*simulation) bool // nil: always
}

func events() []event {
	return []event{
		{name: "kill -9, back under its name", do: func(s *simulation) (float64, float64) { return s.killed(true, 8*time.Second) }},
		{name: "kill -9, another one comes", do: func(s *simulation) (float64, float64) { return s.killed(false, 40*time.Second) }},
		{name: "one member less", do: (*simulation).less, fits: (*simulation).large},
		{name: "kill -9, nobody comes", do: (*simulation).fewer, fits: (*simulation).large},
		{name: "one member more", do: func(s *simulation) (float64, float64) { return s.join(1) },
			fits: func(s *simulation) bool { return len(s.procs) < s.members*4/3 }},
		{name: "several members more", do: func(s *simulation) (float64, float64) { return s.join(s.members*4/3 - len(s.procs)) },
			fits: func(s *simulation) bool { return len(s.procs) < s.members }},
		{name: "one is frozen", do: func(s *simulation) (float64, float64) {
			s.freeze(s.one(), 100*time.Millisecond+s.within(40*time.Second))
			return math.NaN(), 0
		}},
		{name: "one is cut off", do: func(s *simulation) (float64, float64) {
			s.cut(s.one(), 100*time.Millisecond+s.within(90*time.Second))
			return math.NaN(), 0
		}},
		{name: "one loses its home", do: func(s *simulation) (float64, float64) {
			d := time.Second + s.within(100*time.Second)
			s.part(s.one(), d)
			if d < 55*time.Second {
				return 0, 0
			}
			return math.NaN(), 0
		}},
		{name: "the home is away", do: func(s *simulation) (float64, float64) {
			s.loseHome(time.Second + s.within(5*time.Minute))
			return 0, 0
		}},
		{name: "the home is away, and one is killed", do: func(s *simulation) (float64, float64) {
			s.storm = true
			s.loseHome(20*time.Second + s.within(time.Minute))
			s.after(s.within(20*time.Second), func() { s.killed(true, 20*time.Second) })
			return math.NaN(), 0
		}},
		{name: "a rolling restart, one after the other", do: (*simulation).rollSet, rolls: true},
		{name: "a rolling restart, the new ones first", do: (*simulation).rollSurge, rolls: true},
		{name: "databases are added", do: func(s *simulation) (float64, float64) {
			n := 1 + s.rng.IntN(max(len(s.parts)/20, 1))
			s.parts = slices.Clone(s.parts)
			for range n {
				s.addPart()
			}
			s.configure()
			return float64(n) + 3, 12
		}},
		{name: "databases are removed", do: func(s *simulation) (float64, float64) {
			n := 1 + s.rng.IntN(max(len(s.parts)/20, 1))
			s.parts = slices.Clone(s.parts)
			for range n {
				i := s.rng.IntN(len(s.parts))
				s.parts = slices.Delete(s.parts, i, i+1)
			}
			s.configure()
			return float64(n) + 3, 12
		}},
		{name: "several faults at once", do: (*simulation).several},
	}
}

// one is a process that is there.
func (s *simulation) one() *process {
	live := slices.DeleteFunc(slices.Clone(s.procs), func(p *process) bool { return p.dead || p.leaving })
	return live[s.rng.IntN(len(live))]
}

func (s *simulation) killed(sameName bool, within time.Duration) (ideal, most float64) {
	p := s.one()
	ideal = 2 * float64(len(p.holds)) // away and back
	name := p.cfg.Name
	if !sameName {
		name = s.newName()
	}
	weight := p.cfg.Weight
	s.kill(p)
	s.after(time.Second+s.within(within), func() { s.startAs(name, weight) })
	return ideal, 1.3
}

func (s *simulation) newName() string { return fmt.Sprintf("relay-%d", 100+s.started) }

// startAs starts a process as large as the one that it replaces.
func (s *simulation) startAs(name string, weight float64) *process {
	p := s.start(name)
	p.cfg.Weight = weight
	p.core = s.core(p.cfg)
	return p
}

// large reports whether there are so many members that one may leave for good.
func (s *simulation) large() bool { return len(s.procs) > max(s.members*2/3, 2) }

// leavers are the parts that move if the one with an ordinal leaves: its own, and those dealt to ordinals that have
// nobody, and are the last ones then.
func (s *simulation) leavers(p *process) float64 {
	var members []Member
	for _, o := range s.procs {
		members = append(members, Member{Ordinal: o.ordinal, Weight: o.cfg.Weight})
	}
	f, last := lay(s.parts, distinct(members)), Spare
	f.deal()
	for _, o := range s.procs {
		if o != p {
			last = max(last, o.ordinal)
		}
	}
	if p.cfg.Weight != 1 {
		return math.NaN() // its ordinal then counts as one of a usual member, and others have to move as well
	}
	n := len(p.holds)
	for _, o := range f.owner {
		if o > last && o != p.ordinal {
			n++
		}
	}
	return float64(n)
}

func (s *simulation) less() (ideal, most float64) {
	p := s.one()
	ideal = s.leavers(p)
	s.stop(p, nil)
	return ideal, 1.3
}

func (s *simulation) fewer() (ideal, most float64) {
	p := s.one()
	ideal = s.leavers(p)
	s.kill(p)
	return ideal, 1.3
}

func (s *simulation) join(n int) (ideal, most float64) {
	total := float64(n)
	for _, p := range s.procs {
		total += p.cfg.Weight
	}
	for range n {
		s.after(s.within(2*time.Second), func() { s.startAs(s.newName(), 1) })
	}
	return float64(len(s.parts)) * float64(n) / total, 1.3
}

// rollSet restarts one process after the other under its name, as a StatefulSet does.
func (s *simulation) rollSet() (ideal, most float64) {
	procs := slices.Clone(s.procs)
	slices.SortFunc(procs, func(a, b *process) int { return b.ordinal - a.ordinal })
	var next func()
	next = func() {
		if len(procs) == 0 {
			return
		}
		p := procs[0]
		procs = procs[1:]
		s.stop(p, func() {
			s.after(time.Second+s.within(5*time.Second), func() {
				fresh := s.startAs(p.cfg.Name, p.cfg.Weight)
				s.when(func() bool { return fresh.ordinal != Spare || s.clock > s.last+20*time.Second },
					func() { s.after(time.Second+s.within(2*time.Second), next) })
			})
		})
	}
	next()
	return 2 * float64(len(s.parts)), 1.3
}

// rollSurge starts new processes, and ends old ones when they are ready, as a Deployment does.
func (s *simulation) rollSurge() (ideal, most float64) {
	if s.heavy {
		return s.rollSet() // the processes of a Deployment are equal
	}
	old := slices.Clone(s.procs)
	n, surge := len(old), max(len(old)/4, 1)
	started, ended := 0, 0
	var next func()
	next = func() {
		for started < n && started-ended < surge {
			started++
			s.startAs(s.newName(), 1)
			s.after(2*time.Second+s.within(3*time.Second), func() {
				p := old[0]
				old = old[1:]
				s.stop(p, func() { ended++; next() })
			})
		}
	}
	next()
	return float64(len(s.parts)), 1.3 // from each old process to the one that takes its ordinal
}

// when does something as soon as a condition holds.
func (s *simulation) when(condition func() bool, do func()) {
	s.after(500*time.Millisecond, func() {
		if condition() {
			do()
			return
		}
		s.when(condition, do)
	})
}

func (s *simulation) several() (ideal, most float64) {
	s.storm = true
	for range 2 + s.rng.IntN(4) {
		s.after(s.within(20*time.Second), func() {
			switch p := s.one(); s.rng.IntN(5) {
			case 0:
				s.killed(s.rng.IntN(2) == 0, 30*time.Second)
			case 1:
				if !p.frozen && !p.cut {
					s.freeze(p, s.within(30*time.Second))
				}
			case 2:
				if !p.frozen && !p.cut {
					s.cut(p, s.within(60*time.Second))
				}
			case 3:
				if !s.away {
					s.loseHome(time.Second + s.within(30*time.Second))
				}
			case 4:
				if !p.frozen && !p.cut && len(s.procs) > 2 {
					name, weight := p.cfg.Name, p.cfg.Weight
					s.stop(p, func() { s.after(time.Second+s.within(10*time.Second), func() { s.startAs(name, weight) }) })
				}
			}
		})
	}
	return math.NaN(), 0
}
