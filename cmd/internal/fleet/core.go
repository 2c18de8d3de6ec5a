package fleet

import (
	"cmp"
	"slices"
	"time"
)

// Record is what the home has of a member. Its times are by the home's clock.
type Record struct {
	Name     string // of the process. One that starts again under its name takes its ordinal back
	Instance string // of one start of the process
	Ordinal  int    // no two records have the same, but for Spare
	Weight   float64
	Version  int // how its build places
	Joined   time.Time
	Leaving  bool      // it has said that it leaves
	Left     time.Time // since when it leaves, or is known to be dead; zero if neither
	Alive    bool      // its session is there: somebody has its advisory lock
}

// View is what a process sees.
type View struct {
	// Readable means that Now and Records have just been read from the home.
	Readable bool
	Now      time.Time
	Records  []Record

	Parts   []Part // of its own configuration
	Holds   []Part // that it runs
	Leaving bool   // it is to end
}

// Claim is an ordinal that a process asks for. It gets it if From still has it and is still leaving or dead, and if
// nobody has it where From is "".
type Claim struct {
	Ordinal int
	From    string // the instance whose record then has Spare
}

// Handover is a part that somebody else is to run. The process runs it until somebody waits for its lock in its
// database (polling.Awaited), then drains and releases. If nobody waits it runs on, unless it is to end.
type Handover struct {
	Part Part
	To   string // the name of the member; "" if nobody is there
}

// Step is what a process does next, and not to be changed. What it writes to the home comes first, each as one
// statement with its condition.
type Step struct {
	Join   bool     // write the own record: as a Spare, or, if it is there, without Left
	Leave  bool     // mark the own record: Leaving, Left now
	Claim  *Claim   // nil: none
	Dead   []string // instances: Left now, unless they have a session or Left
	Forget []string // instances: delete their records, unless they have a session

	Run      []Part // start what it doesn't run yet: wait for its lock and take the lease
	StandBy  []Part // run these while nobody has their lease, and hand them over again
	HandOver []Handover

	// Watch is the instance whose lock to wait for, so that its death is seen at once: each member watches the next
	// one. "" is nobody.
	Watch string
	// Again is when to look again at the latest.
	Again time.Duration
	// Frozen says why the placement is as it was: the home can't be read. "" if it can.
	Frozen string
	// Conflict is the name of a live member that has the ordinal which the environment gives to this process.
	Conflict string

	Ordinal   int      // its own, or Spare
	Members   []Member // sorted by ordinals, without spares
	Placement Placement
}

// Config says who a process is.
type Config struct {
	Name, Instance string
	// Ordinal is given by the environment; Spare: it is claimed.
	Ordinal int
	Weight  float64 // 0 is 1
	// Reserve is how long the ordinal of one that has left, or is dead, waits for one that takes its place; 0 is a
	// minute. Meanwhile its parts are with their second choices. Afterwards other members may get them.
	Reserve time.Duration
	// Settle is how long a new member waits for an ordinal that becomes free, before it takes a new one; 0 is 10 s. In
	// a rolling restart whose new processes come before the old ones leave, it should cover the time between.
	Settle time.Duration
	// Return is how long members without a session are still believed to be there after this process could read the
	// home again, or for the first time: all lose their sessions at once when the home restarts. 0 is 5 s.
	Return time.Duration
	// Look is how often the home is read if nothing changes; 0 is 5 s.
	Look time.Duration
}

// beginning is how long the first members of a fleet wait for each other, so that parts don't move with each of them.
const beginning = time.Second

// Core decides for one process. It isn't safe for concurrent use.
type Core struct {
	cfg     Config
	records []Record  // as they were read last
	since   time.Time // the home can be read; zero: it can't
	now     time.Time

	lay          func([]Part, []Member) Placement // Place; the simulation's members share what they compute
	parts        []Part                           // of the placement, with its members
	members      []Member
	placement    Placement
	ordinal      int // whose shares these are
	run, standBy []Part
}

// New returns the core of a process that starts.
func New(cfg Config) *Core {
	cfg.Reserve, cfg.Settle = cmp.Or(cfg.Reserve, time.Minute), cmp.Or(cfg.Settle, 10*time.Second)
	cfg.Return, cfg.Look = cmp.Or(cfg.Return, 5*time.Second), cmp.Or(cfg.Look, 5*time.Second)
	return &Core{cfg: cfg, lay: Place}
}

// Next returns what to do.
func (c *Core) Next(v View) Step {
	step := Step{Again: c.cfg.Look}
	if v.Readable {
		c.records, c.now = v.Records, v.Now
		if c.since.IsZero() {
			c.since = v.Now
		}
		c.join(v, &step)
		c.bury(&step)
		if step.Join || step.Leave || step.Claim != nil {
			step.Again = min(step.Again, 100*time.Millisecond) // to see whether it is so
		}
	} else {
		c.since = time.Time{}
		step.Again = min(step.Again, time.Second)
		step.Frozen = "the home can't be read"
		if c.records == nil {
			step.Frozen = "the home has not been read yet"
		}
	}
	c.place(v, &step)
	return step
}

// join decides about the own record, and its ordinal.
func (c *Core) join(v View, step *Step) {
	own := c.own()
	switch {
	case v.Leaving:
		step.Leave = own != nil && !own.Leaving
	case own == nil || own.Left != (time.Time{}):
		step.Join = true // for the first time, or since others took it for dead
	case own.Ordinal != Spare:
	case c.cfg.Ordinal != Spare:
		c.claimGiven(step)
	default:
		c.claim(own, step)
	}
}

func (c *Core) own() *Record {
	if i := slices.IndexFunc(c.records, func(r Record) bool { return r.Instance == c.cfg.Instance }); i >= 0 {
		return &c.records[i]
	}
	return nil
}

// claimGiven claims the ordinal that the environment gives.
func (c *Core) claimGiven(step *Step) {
	step.Claim = &Claim{Ordinal: c.cfg.Ordinal}
	for _, r := range c.records {
		if r.Ordinal != c.cfg.Ordinal {
			continue
		}
		step.Claim.From = r.Instance
		if !c.gone(r) && (r.Alive || r.Name != c.cfg.Name) {
			step.Claim, step.Conflict = nil, r.Name
			c.again(step, c.since.Add(c.cfg.Return))
		}
	}
}

// claim claims the ordinal of one that has left, or, after a while, one that nobody has. Each of several spares claims
// another one.
func (c *Core) claim(own *Record, step *Step) {
	used := map[int]bool{}
	for _, r := range c.records {
		if r.Ordinal == Spare {
			continue
		}
		used[r.Ordinal] = true
		if r.Name == own.Name && !r.Alive {
			step.Claim = &Claim{r.Ordinal, r.Instance} // its own, of its last start
			return
		}
	}
	reserved, spares := c.waiting()
	turn := slices.IndexFunc(spares, func(r Record) bool { return r.Instance == own.Instance })
	if turn < 0 {
		return
	}
	if turn < len(reserved) {
		step.Claim = &Claim{reserved[turn].Ordinal, reserved[turn].Instance}
		return
	}
	if settled := own.Joined.Add(c.settle(own)); settled.After(c.now) {
		c.again(step, settled)
		return
	}
	for ordinal, before := 0, turn-len(reserved); ; ordinal++ {
		if used[ordinal] {
			continue
		}
		if before == 0 {
			step.Claim = &Claim{Ordinal: ordinal}
			return
		}
		before--
	}
}

// waiting returns who leaves an ordinal, and the spares: each gets that of the same index. Who starts again under its
// name takes its own, so both are without these.
func (c *Core) waiting() (reserved, spares []Record) {
	for _, r := range c.records {
		switch gone := c.gone(r); {
		case r.Ordinal != Spare && gone:
			reserved = append(reserved, r)
		case r.Ordinal == Spare && r.Alive && !gone:
			spares = append(spares, r)
		}
	}
	spares = slices.DeleteFunc(spares, func(s Record) bool {
		i := slices.IndexFunc(reserved, func(r Record) bool { return r.Name == s.Name && !r.Alive })
		if i >= 0 {
			reserved = slices.Delete(reserved, i, i+1)
		}
		return i >= 0
	})
	slices.SortFunc(reserved, func(a, b Record) int { return cmp.Compare(a.Ordinal, b.Ordinal) })
	slices.SortFunc(spares, func(a, b Record) int { return cmp.Or(a.Joined.Compare(b.Joined), cmp.Compare(a.Instance, b.Instance)) })
	return reserved, spares
}

// settle is how long a new member waits before it takes a new ordinal. Where all are new, nobody is about to leave.
func (c *Core) settle(own *Record) time.Duration {
	for _, r := range c.records {
		if r.Ordinal != Spare && r.Joined.Before(own.Joined.Add(-c.cfg.Settle)) {
			return c.cfg.Settle
		}
	}
	return min(beginning, c.cfg.Settle)
}

// gone reports whether a member runs nothing more, or is about to.
func (c *Core) gone(r Record) bool {
	return r.Leaving || !r.Left.IsZero() || !r.Alive && !c.now.Before(c.since.Add(c.cfg.Return)) && !c.since.IsZero()
}

// bury decides about the records of others that are dead.
func (c *Core) bury(step *Step) {
	for _, r := range c.records {
		switch {
		case r.Alive || r.Instance == c.cfg.Instance:
		case !c.gone(r):
			c.again(step, c.since.Add(c.cfg.Return))
		case r.Ordinal == Spare:
			step.Forget = append(step.Forget, r.Instance)
		case r.Left.IsZero():
			step.Dead = append(step.Dead, r.Instance)
			c.again(step, c.now.Add(c.cfg.Reserve))
		case c.now.Before(r.Left.Add(c.cfg.Reserve)):
			c.again(step, r.Left.Add(c.cfg.Reserve))
		default:
			step.Forget = append(step.Forget, r.Instance)
		}
	}
}

// again has the process look again at t.
func (c *Core) again(step *Step, t time.Time) { step.Again = max(min(step.Again, t.Sub(c.now)), 0) }

// place decides what is run, by the records that were read last.
func (c *Core) place(v View, step *Step) {
	step.Ordinal = Spare
	heirs := c.heirs()
	names, instances := map[int]string{}, map[int]string{} // of those who run the parts of an ordinal, or are about to
	for _, r := range c.records {
		if r.Ordinal == Spare {
			continue
		}
		m := Member{Name: r.Name, Ordinal: r.Ordinal, Weight: r.Weight, Leaving: c.gone(r)}
		if r.Instance == c.cfg.Instance {
			// It knows best: others take it for dead as soon as its session has ended.
			m.Leaving = v.Leaving
			step.Ordinal = r.Ordinal
		}
		if heir := heirs[r.Ordinal]; m.Leaving && heir != "" {
			m.Leaving, names[m.Ordinal] = false, heir
		} else if !m.Leaving {
			names[m.Ordinal], instances[m.Ordinal] = r.Name, r.Instance
		}
		step.Members = append(step.Members, m)
	}
	slices.SortFunc(step.Members, func(a, b Member) int { return cmp.Compare(a.Ordinal, b.Ordinal) })
	if c.placement == nil || step.Ordinal != c.ordinal || !slices.Equal(v.Parts, c.parts) || !slices.Equal(step.Members, c.members) {
		c.parts, c.members, c.ordinal = slices.Clone(v.Parts), step.Members, step.Ordinal
		c.placement, c.run, c.standBy = c.lay(v.Parts, step.Members), nil, nil
		if c.ordinal != Spare {
			c.run, c.standBy = c.placement.Shares(c.ordinal)
			c.run = slices.Clip(c.run)
		}
	}
	step.Placement = c.placement
	if !v.Leaving {
		step.Run, step.StandBy = c.run, c.standBy
		step.Watch = c.watched(step, instances)
	}
	for _, part := range v.Holds {
		choice, ok := step.Placement[part]
		switch {
		case !ok || choice.First == step.Ordinal && choice.First != Spare && !v.Leaving:
		case choice.First == Spare && !v.Leaving:
			step.Run = append(step.Run, part) // nobody is there who could take it
		default:
			step.HandOver = append(step.HandOver, Handover{part, names[choice.First]})
		}
	}
}

// heirs names the spares that are about to take the ordinals of members that leave, and still run their parts. These
// need not move to their second choices before.
func (c *Core) heirs() map[int]string {
	heirs := map[int]string{}
	reserved, spares := c.waiting()
	for i := range min(len(reserved), len(spares)) {
		if reserved[i].Alive {
			heirs[reserved[i].Ordinal] = spares[i].Name
		}
	}
	return heirs
}

// watched returns the instance of the next member that runs.
func (c *Core) watched(step *Step, instances map[int]string) string {
	own := slices.IndexFunc(step.Members, func(m Member) bool { return m.Ordinal == step.Ordinal })
	if own < 0 {
		return ""
	}
	for i := own + 1; i < own+len(step.Members); i++ {
		if instance := instances[step.Members[i%len(step.Members)].Ordinal]; instance != "" {
			return instance
		}
	}
	return ""
}
