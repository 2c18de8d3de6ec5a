package health

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/admin"
)

// world is what is true of one destination, in the words of who looks at it from outside. It is made by chance.
type world struct {
	mapped     bool          // it reads a table of its own
	objective  time.Duration // 0: as late as it likes
	waits      time.Duration // for how long the oldest row has waited that could be delivered; 0: none waits
	delayed    bool          // others wait for a delivery time
	blocked    bool
	fails      bool // a message is refused again and again
	dead       bool
	passedOver bool          // rows of the table were never waiting
	uncounted  bool          // the table can't be counted
	behind     time.Duration // for how long the oldest row has waited for a transaction of somebody's; 0: none does
	locked     bool          // that has locked the row; otherwise the strategy waits for it

	relay     string // "none", "stopped", or the state of one that lives
	elsewhere bool   // the cursor is of another cluster
	lacks     bool   // a right of the relay's role
	clockOff  bool
	refuses   bool   // a relay has another broker than the destination: this one, or one beside it
	slot      string // "", "reserved", "lost", "extended"

	pause    string // "", "whole", "whole with an end", "whole for hours", "topic"
	throttle bool
}

// surroundings are what is true of all destinations.
type surroundings struct {
	altered, locked, unread, unindexed, unselected bool
}

const dawn = "2026-01-02T03:04:05Z"

func chance(rng *rand.Rand, percent int) bool { return rng.IntN(100) < percent }

func pick[T any](rng *rand.Rand, of ...T) T { return of[rng.IntN(len(of))] }

func newWorld(rng *rand.Rand) world {
	w := world{
		mapped:    chance(rng, 50),
		objective: pick(rng, 30*time.Second, 30*time.Second, time.Hour, 0),
		waits:     pick(rng, 0, 0, time.Second, time.Minute, 2*time.Hour),
		delayed:   chance(rng, 20), blocked: chance(rng, 15), fails: chance(rng, 15), dead: chance(rng, 15),
		relay: pick(rng, "flowing", "flowing", "flowing", "flowing", "flowing", "stalled", "full", "failing", "broken", "none", "stopped"),
		slot:  pick(rng, "", "", "", "", "reserved", "lost", "extended"), clockOff: chance(rng, 10),
		pause: pick(rng, "", "", "", "", "whole", "whole with an end", "whole for hours", "topic"), throttle: chance(rng, 20),
		elsewhere: chance(rng, 5), lacks: chance(rng, 5), refuses: chance(rng, 10),
	}
	if w.mapped {
		w.elsewhere, w.lacks = false, false
		w.passedOver, w.uncounted = chance(rng, 15), chance(rng, 15)
		w.behind, w.locked = pick(rng, 0, 0, 0, time.Second, time.Minute, 3*time.Hour), chance(rng, 30)
		if w.slot = ""; w.uncounted {
			w.waits, w.behind = 0, 0 // and who looks doesn't know
		}
		w.waits = max(w.waits, w.behind) // the others wait for their turn
	}
	return w
}

// destination is what is read of it.
func (w *world) destination(name string, at time.Time) Destination {
	d := Destination{Name: name, LagObjective: w.objective}
	g := Group{Groups: 1, Owner: "relay of " + name, Live: true, State: w.relay, StateSince: at.Add(-time.Minute), UpdatedAt: at,
		LeaseUntil: at.Add(time.Minute), Foreign: w.elsewhere}
	if w.relay != "flowing" {
		g.LastError = "error of " + name
	}
	if w.relay == "none" || w.relay == "stopped" {
		g.Live, g.LeaseUntil = false, at.Add(-time.Minute)
	}
	if w.relay == "none" {
		g.State = "flowing" // the last that it could write
	}
	if w.waits > 0 {
		d.Pending.N = 3
		d.Oldest = at.Add(-w.waits)
		if w.mapped {
			d.Held.waiting = d.Oldest
		} else {
			g.Oldest = d.Oldest
		}
	}
	if w.delayed {
		d.Held.Messages.N, d.Held.Lanes, d.Held.Delayed, d.Held.NextRetry = 1, 1, 1, at.Add(time.Hour)
	}
	if w.blocked {
		d.Held.Blocked, d.Held.BlockedSince = 1, at.Add(-time.Minute)
	}
	if w.fails {
		d.Held.FailingSince = at.Add(-time.Minute)
	}
	if w.dead {
		d.Dead.New.N, d.Dead.Since = 2, at.Add(-time.Hour)
	}
	if w.mapped {
		d.Table = &Table{Name: "shop", Strategy: "advisory"}
		if w.passedOver {
			d.Table.Passed.N, d.Table.PassedSince = 5, at.Add(-time.Hour)
		}
		if w.uncounted {
			d.Table.Uncounted = "permission denied (SQLSTATE 42501)"
		}
		if w.behind > 0 {
			d.Table.Behind = &OpenTransaction{PID: 1, Since: at.Add(-5 * time.Hour)}
			d.Table.Kept.N, d.Table.KeptSince, d.Table.Locked = 2, at.Add(-w.behind), w.locked
		}
	}
	if w.refuses {
		d.Broker = &Broker{Identity: []string{"a"}, Relay: "r", Refused: []string{"b"}, RefusedBy: "s", RefusedAt: at.Add(-time.Second)}
	}
	if w.slot != "" {
		d.Slot = &Slot{Name: "s", Position: "0/1", Status: w.slot}
	}
	pause := admin.Control{Target: admin.Target{Destination: name}, Actor: "anna", Since: at.Add(-10 * time.Minute)}
	switch w.pause {
	case "whole with an end":
		pause.Until = at.Add(time.Minute)
	case "whole for hours":
		pause.Since = at.Add(-3 * time.Hour)
	case "topic":
		pause.Topic = "t"
	}
	if w.pause != "" {
		d.Controls = append(d.Controls, pause)
	}
	if w.throttle {
		d.Controls = append(d.Controls, admin.Control{Target: admin.Target{Destination: name}, Actor: "anna", Rate: 1})
	}
	d.Groups = []Group{g}
	return d
}

// late reports whether rows wait for longer than they may, and nobody has accepted that: by an objective or a pause.
func (w *world) late() bool {
	whole := strings.HasPrefix(w.pause, "whole")
	return w.objective > 0 && w.waits > w.objective && !whole
}

func (w *world) halted() bool {
	return w.objective > 0 && w.waits > w.objective && w.pause == "whole for hours"
}

// truth is every state that has to be told, as often as there is a cause for it.
func (w *world) truth(s surroundings) (states []State) {
	add := func(when bool, state State) {
		if when {
			states = append(states, state)
		}
	}
	switch {
	case s.altered && !w.mapped, w.elsewhere, s.locked, w.lacks && !w.mapped:
		add(true, StateBroken)
	case w.refuses && slices.Contains([]string{"none", "stopped", "broken"}, w.relay):
		add(true, StateBroken)
	case w.relay == "stopped":
		add(true, StateStopped)
	case w.relay == "none":
		add(true, StateNoRelay)
	case w.relay == "full":
		add(true, StateStalled)
	case w.relay != "flowing":
		add(true, State(w.relay))
	case s.unread:
		add(true, StateUnknown)
	}
	delivers := w.relay == "flowing" || w.relay == "stalled" || w.relay == "full" || w.relay == "failing"
	if w.slot == "lost" && !delivers {
		if !slices.Contains(states, StateBroken) {
			add(true, StateBroken)
		}
	}
	if w.fails && !slices.Contains(states, StateFailing) {
		add(true, StateFailing)
	}
	alarm := slices.ContainsFunc(states, func(s State) bool { return s.Tone() == Alarm })
	add(w.slot == "lost" && delivers, StateAtRisk)
	add(w.refuses && delivers, StateAtRisk)
	add(w.late() && w.waits > w.behind && !alarm, StateLagging)
	add(w.late() && w.behind > w.objective && !alarm, StateLagging)
	pausedFor := 10 * time.Minute
	if w.pause == "whole for hours" {
		pausedFor = 3 * time.Hour
	}
	forgotten := w.objective > 0 && w.waits > w.objective && (w.pause == "whole" || w.pause == "whole for hours") && pausedFor > w.objective
	add(forgotten && (!alarm || w.halted()), StateLagging)
	add(w.blocked, StateBlocked)
	add(w.dead, StateDead)
	add(w.pause != "", StatePaused)
	add(w.uncounted && !slices.Contains(states, StateUnknown), StateUnknown)
	add(w.passedOver, StateAtRisk)
	add(w.clockOff, StateAtRisk)
	add(s.unindexed && !w.mapped, StateAtRisk)
	add(w.slot == "extended", StateAtRisk)
	return states
}

// made is a report on some destinations by chance: mapped ones, ordinary ones, or both.
func made(rng *rand.Rand) (*Report, []world, surroundings) {
	at, _ := time.Parse(time.RFC3339, dawn)
	r := &Report{At: at, Database: "orders"}
	s := surroundings{altered: chance(rng, 5), locked: chance(rng, 5), unread: chance(rng, 10), unindexed: chance(rng, 10),
		unselected: chance(rng, 10)}
	worlds := make([]world, 1+rng.IntN(3))
	for i := range worlds {
		w := newWorld(rng)
		w.lacks = w.lacks && !s.unread // otherwise that is why it can't be read, for all
		worlds[i] = w
		name := fmt.Sprintf("d%d", i)
		r.Destinations = append(r.Destinations, w.destination(name, at))
		relay := Relay{Name: "relay of " + name, Live: w.relay != "none" && w.relay != "stopped", HeartbeatAt: at, User: "u"}
		if w.lacks {
			relay.Lacks = []string{"SELECT on outbox.messages"}
		}
		if w.clockOff {
			relay.ClockAhead, relay.Live = time.Hour, true
		}
		if s.locked {
			holder := OpenTransaction{PID: 1, Since: at.Add(-time.Minute)}
			r.Holders = []Holder{{OpenTransaction: holder, Relays: append(lockedOut(r), relay.Name)}}
		}
		r.Relays = append(r.Relays, relay)
	}
	if s.altered {
		r.Altered = "a segment is detached: ALTER TABLE outbox.messages ATTACH PARTITION outbox.messages_3 FOR VALUES IN (3)"
	}
	if s.unread {
		r.unread = "the database has not been read for 20s"
	}
	if s.unindexed {
		r.Unindexed = []string{"CREATE INDEX i ON outbox.messages (id)"}
	}
	if s.unselected {
		r.Unselected = []Unselected{{Topic: "ordres", Messages: 2, First: at.Add(-time.Minute)}}
	}
	return r, worlds, s
}

func lockedOut(r *Report) []string {
	if len(r.Holders) == 0 {
		return nil
	}
	return r.Holders[0].Relays
}

// faults are all that is wrong with how a report was judged. amended is whether it is to be judged again, by all rules,
// for a relay that knows of its own work.
func faults(r *Report, worlds []world, s surroundings, amended bool) (found []string) {
	fault := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	all := func(v Verdict) []Finding { return append([]Finding{v.Finding}, v.Also...) }
	var names []string
	for i := range worlds {
		w, d := &worlds[i], &r.Destinations[i]
		names = append(names, d.Name)
		want := w.truth(s)
		var got []State
		for _, f := range all(d.Verdict) {
			if !f.State.OK() {
				got = append(got, f.State)
			}
		}
		if slices.Sort(want); !slices.Equal(want, slices.Sorted(slices.Values(got))) {
			fault("%s: %v is told, and true is %v: %q", d.Name, got, want, d.Verdict)
		}
		if d.Verdict.State.OK() && (w.late() || w.blocked || w.halted()) || d.Verdict.State == StateIdle && w.waits > 0 {
			fault("%s: it is %s while rows wait", d.Name, d.Verdict.State)
		}
		behind := func(f Finding) bool { return strings.Contains(f.Cause, "the transaction of process 1 ") }
		lags := w.late() && slices.Contains(want, StateLagging)
		told := d.Verdict.State == StateFlowing || lags && w.behind > w.objective
		if w.behind > 0 && told && !slices.ContainsFunc(all(d.Verdict), behind) {
			fault("%s: the transaction is not named: %q", d.Name, d.Verdict)
		}
		if w.halted() && d.Verdict.Delivers() {
			fault("%s: a pause that was forgotten is no alarm: %q", d.Name, d.Verdict)
		}
		throttled := func(f Finding) bool { return strings.HasPrefix(f.Cause, "throttled to 1/s by anna") }
		if lags && w.waits > w.behind && w.throttle && !slices.ContainsFunc(all(d.Verdict), throttled) {
			fault("%s: the throttle is not named: %q", d.Name, d.Verdict)
		}
		for _, f := range all(d.Verdict) {
			if !f.State.OK() && (f.Cause == "" || f.Remedy() == "") {
				fault("%s: without cause or remedy: %+v", d.Name, f)
			}
			for _, circular := range []string{"outbox status", "outbox check", "outbox doctor"} {
				if f.Next == circular {
					fault("%s: the remedy is to look again: %+v", d.Name, f)
				}
			}
		}
		// What is told of all contains what is told of each.
		for _, f := range all(d.Verdict) {
			if !f.State.OK() && !slices.Contains(all(r.Verdict), f) {
				fault("%s: the report leaves out %+v", d.Name, f)
			}
		}
	}
	if s.unselected && r.Verdict.State.OK() {
		fault("all is well while nobody selects a topic")
	}
	// Every surface tells the same.
	together, each := r.On(names)
	if together.String() != r.Verdict.String() {
		fault("on its destinations it is %q, as a report %q", together, r.Verdict)
	}
	if c := r.Check("", Limits{}); c.Result != r.Verdict.Result() || c.Text != r.Verdict.String() {
		fault("check has %v %q, status %q", c.Result, c.Text, r.Verdict)
	}
	for i := range r.Destinations {
		d := &r.Destinations[i]
		if each[d.Name].String() != d.Verdict.String() {
			fault("%s: %q and %q", d.Name, each[d.Name], d.Verdict)
		}
	}
	text, err := json.Marshal(r)
	var back Report
	if err == nil {
		err = json.Unmarshal(text, &back)
	}
	if err != nil || back.Verdict.String() != r.Verdict.String() || back.Verdict.Result() != r.Verdict.Result() {
		fault("as JSON it is %q: %v", back.Verdict, err)
	}
	if amended && !s.unread { // a relay that knows what the database has, too
		var live []Live
		for i := range worlds {
			g := &r.Destinations[i].Groups[0]
			if g.Live {
				live = append(live, Live{Destination: names[i], Owner: g.Owner, State: g.State, Since: g.StateSince, Cause: g.LastError})
			}
		}
		if now := r.Amended(live, time.Second, nil); now.Verdict.String() != r.Verdict.String() {
			fault("of its own work the relay says %q, the database %q", now.Verdict, r.Verdict)
		}
	}
	return found
}

const worldsTried = 4000

func TestEveryWorldHasItsVerdictAndNoOther(t *testing.T) {
	t.Parallel()
	for seed := range uint64(worldsTried) {
		r, worlds, s := made(rand.New(rand.NewPCG(seed, 7)))
		r.judge(allRules)
		if found := faults(r, worlds, s, true); len(found) > 0 {
			t.Fatalf("world %d, %+v, %+v:\n%s", seed, worlds, s, strings.Join(found, "\n"))
		}
	}
}

// Without any of the rules, the property above doesn't hold.
func TestTheWorldsNeedEachRule(t *testing.T) {
	t.Parallel()
	var names []string
	for _, rule := range allRules.group {
		names = append(names, rule.name)
	}
	for _, rule := range allRules.destination {
		names = append(names, rule.name)
	}
	elsewhere := []string{
		"there is no cursor",                                                     // a destination without any group: the cases have it
		"commits wait for a standby", "a standby is away that the log waits for", // slots_test has them, on a server
	}
	for _, name := range names {
		if slices.Contains(elsewhere, name) {
			continue
		}
		needed := false
		for seed := uint64(0); seed < worldsTried && !needed; seed++ {
			r, worlds, s := made(rand.New(rand.NewPCG(seed, 7)))
			r.judge(allRules.without(name))
			needed = len(faults(r, worlds, s, false)) > 0
		}
		if !needed {
			t.Errorf("no world needs the rule %q", name)
		}
	}
}
