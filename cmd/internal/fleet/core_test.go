package fleet

import (
	"slices"
	"testing"
	"time"
)

// world has some processes and their home.
type world struct {
	home
	cores map[string]*Core
	cfgs  map[string]Config
	holds map[string][]Part
	parts []Part
}

func newWorld(parts int) *world {
	return &world{home: home{now: time.Unix(1_800_000_000, 0)}, parts: databases(parts, 1),
		cores: map[string]*Core{}, cfgs: map[string]Config{}, holds: map[string][]Part{}}
}

func (w *world) start(cfg Config) {
	w.cfgs[cfg.Instance], w.cores[cfg.Instance] = cfg, New(cfg)
}

// member starts a process with a name and nothing else.
func (w *world) member(name string) {
	w.start(Config{Name: name, Instance: name + "'", Ordinal: Spare})
}

// next is one look of a process, and what it writes.
func (w *world) next(instance string) Step {
	v := w.read()
	v.Parts, v.Holds = w.parts, w.holds[instance]
	step := w.cores[instance].Next(v)
	w.write(w.cfgs[instance], step)
	return step
}

// pass lets the processes look once a second.
func (w *world) pass(seconds int, instances ...string) {
	for range seconds {
		w.now = w.now.Add(time.Second)
		for _, instance := range instances {
			w.next(instance)
		}
	}
}

func (w *world) ordinal(instance string) int {
	if r := w.record(instance); r != nil {
		return r.Ordinal
	}
	return Spare
}

// trio is a fleet of a, b and c.
func trio(t *testing.T) *world {
	w := newWorld(60)
	w.member("a")
	w.member("b")
	w.member("c")
	w.pass(20, "a'", "b'", "c'")
	for i, instance := range []string{"a'", "b'", "c'"} {
		if got := w.ordinal(instance); got != i {
			t.Fatalf("%s has the ordinal %d", instance, got)
		}
		w.holds[instance] = w.next(instance).Run
		if n := len(w.holds[instance]); n < 16 || n > 24 {
			t.Fatalf("%s runs %d of 60 parts", instance, n)
		}
	}
	return w
}

func TestTheFirstMembersWaitForEachOtherForASecond(t *testing.T) {
	t.Parallel()
	w := newWorld(10)
	for _, name := range []string{"a", "b"} {
		w.member(name)
		if step := w.next(name + "'"); !step.Join || step.Frozen != "" || len(step.Run) > 0 {
			t.Errorf("%s begins with %+v", name, step)
		}
	}
	if step := w.next("a'"); step.Claim != nil || step.Again != time.Second {
		t.Errorf("it doesn't wait a second: %+v", step)
	}
	w.now = w.now.Add(time.Second)
	a, b := w.cores["a'"].Next(w.read()), w.cores["b'"].Next(w.read())
	if a.Claim == nil || b.Claim == nil || *a.Claim != (Claim{Ordinal: 0}) || *b.Claim != (Claim{Ordinal: 1}) {
		t.Errorf("they claim %+v and %+v", a.Claim, b.Claim)
	}
}

func TestANewMemberStaysASpareForAWhile(t *testing.T) {
	t.Parallel()
	w := trio(t)
	w.member("d")
	w.pass(10, "d'", "a'")
	if got := w.ordinal("d'"); got != Spare {
		t.Fatalf("it takes the ordinal %d at once", got)
	}
	w.pass(2, "d'", "a'")
	if got := w.ordinal("d'"); got != 3 {
		t.Errorf("it has the ordinal %d", got)
	}
}

func TestASpareTakesTheOrdinalOfOneThatLeaves(t *testing.T) {
	t.Parallel()
	w := trio(t)
	w.member("d")
	w.pass(3, "d'")
	v := w.read()
	v.Parts, v.Holds, v.Leaving = w.parts, w.holds["b'"], true
	w.write(w.cfgs["b'"], w.cores["b'"].Next(v))
	if step := w.next("a'"); !slices.Equal(step.Run, w.holds["a'"]) {
		t.Error("its parts move to second choices before")
	}
	w.next("d'")
	if got := w.ordinal("d'"); got != 1 {
		t.Fatalf("it has the ordinal %d", got)
	}
	step := w.next("d'")
	if !slices.Equal(step.Run, w.holds["b'"]) {
		t.Error("it runs other parts")
	}
	v = w.read()
	v.Parts, v.Holds, v.Leaving = w.parts, w.holds["b'"], true
	step = w.cores["b'"].Next(v)
	if len(step.HandOver) != len(w.holds["b'"]) || step.HandOver[0].To != "d" || step.Leave || len(step.Run) > 0 {
		t.Errorf("who leaves does %+v", step)
	}
	for _, instance := range []string{"a'", "c'"} {
		if step := w.next(instance); len(step.HandOver) > 0 || !slices.Equal(step.Run, w.holds[instance]) {
			t.Errorf("%s hands over %d", instance, len(step.HandOver))
		}
	}
}

func TestThePartsOfOneThatIsDeadAreRunByTheirSecondChoices(t *testing.T) {
	t.Parallel()
	w := trio(t)
	_, second := w.next("a'").Placement.Shares(0)
	w.record("b'").Alive = false
	step := w.next("a'")
	if !slices.Equal(step.Dead, []string{"b'"}) || step.Again > time.Minute {
		t.Errorf("it doesn't note a death: %+v", step)
	}
	for _, part := range step.Run {
		if !slices.Contains(w.holds["a'"], part) && !(slices.Contains(w.holds["b'"], part) && slices.Contains(second, part)) {
			t.Errorf("it runs %v", part)
		}
	}
	w.pass(59, "a'", "c'")
	if w.record("b'") == nil {
		t.Error("the ordinal is not reserved for a minute")
	}
	w.pass(2, "a'", "c'")
	if w.record("b'") != nil {
		t.Error("the ordinal is reserved for more than a minute")
	}
}

func TestWhoStartsAgainUnderItsNameTakesItsOrdinal(t *testing.T) {
	t.Parallel()
	w := trio(t)
	w.record("a'").Alive, w.record("b'").Alive = false, false
	w.next("c'")
	w.member("x")
	w.start(Config{Name: "b", Instance: "b''", Ordinal: Spare})
	w.start(Config{Name: "a", Instance: "a''", Ordinal: Spare})
	w.pass(2, "x'", "b''", "a''")
	if w.ordinal("a''") != 0 || w.ordinal("b''") != 1 {
		t.Errorf("a is %d, b is %d, x is %d", w.ordinal("a''"), w.ordinal("b''"), w.ordinal("x'"))
	}
}

func TestOfTwoThatClaimAnOrdinalOneGetsIt(t *testing.T) {
	t.Parallel()
	w := trio(t)
	w.member("d")
	w.member("e")
	w.next("d'")
	v := w.read() // d sees no other
	w.next("e'")
	w.now, v.Now = w.now.Add(11*time.Second), v.Now.Add(11*time.Second)
	d, e := w.cores["d'"].Next(v), w.cores["e'"].Next(View{Readable: true, Now: w.now,
		Records: slices.DeleteFunc(slices.Clone(w.records), func(r Record) bool { return r.Name == "d" })})
	if d.Claim == nil || e.Claim == nil || *d.Claim != *e.Claim {
		t.Fatalf("they claim %+v and %+v", d.Claim, e.Claim)
	}
	w.write(w.cfgs["d'"], d)
	w.write(w.cfgs["e'"], e)
	w.pass(1, "e'")
	if w.ordinal("d'") != 3 || w.ordinal("e'") != 4 {
		t.Errorf("they have %d and %d", w.ordinal("d'"), w.ordinal("e'"))
	}
}

func TestAGivenOrdinalIsNotClaimedFromALiveMember(t *testing.T) {
	t.Parallel()
	w := newWorld(10)
	w.start(Config{Name: "relay-4", Instance: "1", Ordinal: 4})
	w.pass(2, "1")
	if got := w.ordinal("1"); got != 4 {
		t.Fatalf("it has the ordinal %d", got)
	}
	w.start(Config{Name: "relay-5", Instance: "2", Ordinal: 4})
	w.pass(1, "2")
	if step := w.next("2"); step.Conflict != "relay-4" || step.Claim != nil {
		t.Errorf("it claims what another one has: %+v", step)
	}
	w.record("1").Alive = false
	w.start(Config{Name: "relay-4", Instance: "3", Ordinal: 4})
	w.pass(2, "3")
	if got := w.ordinal("3"); got != 4 {
		t.Errorf("the same pod has the ordinal %d when it starts again", got)
	}
}

func TestPlacementIsFrozenWhileTheHomeIsAway(t *testing.T) {
	t.Parallel()
	w := trio(t)
	before := w.next("a'")
	away := View{Parts: w.parts, Holds: w.holds["a'"]}
	step := w.cores["a'"].Next(away)
	if step.Frozen == "" || !slices.Equal(step.Run, before.Run) || len(step.HandOver)+len(step.Dead) > 0 || step.Claim != nil {
		t.Errorf("without its home it does %+v", step)
	}
	// It is the first that comes back.
	w.now = w.now.Add(time.Minute)
	w.record("b'").Alive, w.record("c'").Alive = false, false
	step = w.next("a'")
	if len(step.Dead) > 0 || !slices.Equal(step.Run, before.Run) || step.Again > 5*time.Second {
		t.Errorf("it takes others for dead that have had no time to come back: %+v", step)
	}
	w.record("b'").Alive = true
	w.pass(5, "a'")
	if !w.record("b'").Left.IsZero() || w.record("c'").Left.IsZero() {
		t.Error("it doesn't see who has come back and who has not")
	}
	if step := New(Config{Name: "n", Instance: "n", Ordinal: Spare}).Next(View{Parts: w.parts}); step.Frozen == "" || step.Join ||
		len(step.Run) > 0 {
		t.Errorf("one that has never seen its home does %+v", step)
	}
}

func TestWhoWasTakenForDeadComesBack(t *testing.T) {
	t.Parallel()
	w := trio(t)
	w.record("b'").Alive = false
	w.next("a'")
	step := w.next("b'") // the home is there again
	if !step.Join || !slices.Equal(step.Run, w.holds["b'"]) {
		t.Errorf("it does %+v", step)
	}
	if r := w.record("b'"); !r.Left.IsZero() || r.Ordinal != 1 {
		t.Errorf("its record is %+v", r)
	}
	// After more than a minute it is one more spare, and keeps its parts until others wait for them.
	w.record("b'").Alive = false
	w.pass(62, "a'")
	if step = w.next("b'"); !step.Join || len(step.Run) > 0 || len(step.HandOver) != len(w.holds["b'"]) || step.HandOver[0].To == "" {
		t.Errorf("it does %+v", step)
	}
}

func TestWhatNobodyElseCanRunIsNotHandedOver(t *testing.T) {
	t.Parallel()
	w := newWorld(5)
	w.member("a")
	w.pass(1, "a'")
	w.holds["a'"] = w.parts // it has lost its ordinal, and nobody else is there
	if step := w.next("a'"); len(step.HandOver) > 0 || len(step.Run) != 5 {
		t.Errorf("it does %+v", step)
	}
	w.pass(2, "a'")
	v := w.read()
	v.Parts, v.Holds, v.Leaving = w.parts, w.parts, true
	if step := w.cores["a'"].Next(v); len(step.HandOver) != 5 || step.HandOver[0].To != "" {
		t.Errorf("at its end it does %+v", step)
	}
}

func TestEachMemberWatchesTheNext(t *testing.T) {
	t.Parallel()
	w := trio(t)
	for _, c := range [][2]string{{"a'", "b'"}, {"b'", "c'"}, {"c'", "a'"}} {
		if step := w.next(c[0]); step.Watch != c[1] {
			t.Errorf("%s watches %s", c[0], step.Watch)
		}
	}
	w.record("b'").Alive = false
	w.next("a'")
	if step := w.next("a'"); step.Watch != "c'" {
		t.Errorf("it watches %s", step.Watch)
	}
}
