package admin

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// State answers "is it flowing?" in a word.
type State string

const (
	StateIdle    State = "idle"     // all is delivered
	StateFlowing State = "flowing"  // messages are on their way
	StateBlocked State = "blocked"  // lanes wait for an operator; the others flow
	StateFailing State = "failing"  // what a topic is published to doesn't exist or may not be written to; the others flow
	StateStalled State = "stalled"  // the broker does not answer
	StateBroken  State = "broken"   // the relay can't work with the database
	StateNoRelay State = "no_relay" // nobody delivers
	StateStopped State = "stopped"  // a relay gave up for good
)

// severity orders states; the verdict on all is that on the worst.
var severity = []State{StateIdle, StateFlowing, StateBlocked, StateFailing, StateStalled, StateBroken, StateNoRelay, StateStopped}

// OK reports whether all is well.
func (s State) OK() bool { return s == StateIdle || s == StateFlowing }

// Delivers reports whether messages flow, be it that some lanes or topics don't.
func (s State) Delivers() bool { return s.OK() || s == StateBlocked || s == StateFailing }

func (s State) worseThan(t State) bool { return slices.Index(severity, s) > slices.Index(severity, t) }

// Verdict is the answer, why it is so, and what to do about it.
type Verdict struct {
	State State  `json:"state"`
	Cause string `json:"cause,omitempty"`
	// Next is what to do: a command where there is one.
	Next string `json:"next,omitempty"`
}

func (v Verdict) String() string {
	text := string(v.State)
	if v.Cause != "" {
		text += ": " + v.Cause
	}
	if v.Next != "" {
		text += ". Next: " + v.Next
	}
	return text
}

// failingAfter is how long messages may be tried again before the verdict is that the destination fails.
const failingAfter = 30 * time.Second

// behindAfter is how long a message may be pending before the verdict speaks of it.
const behindAfter = time.Minute

func (r *Report) judge() {
	r.Verdict = Verdict{StateNoRelay, "no relay has ever worked on this database", "outbox relay"}
	for i := range r.Destinations {
		d := &r.Destinations[i]
		d.Verdict = r.judgeDestination(d)
		if i == 0 || d.Verdict.State.worseThan(r.Verdict.State) {
			r.Verdict = d.Verdict
			if r.Verdict.Cause != "" {
				r.Verdict.Cause = d.Name + ": " + r.Verdict.Cause
			}
		}
	}
}

// On returns the verdict on some destinations, and that on each of them: what one relay answers for. A
// destination that has no cursor yet counts as StateNoRelay.
func (r *Report) On(names []string) (Verdict, map[string]Verdict) {
	worst := Verdict{State: StateIdle}
	each := make(map[string]Verdict, len(names))
	for _, name := range names {
		v := Verdict{StateNoRelay, "no relay has worked on it yet", "outbox relay"}
		if i := slices.IndexFunc(r.Destinations, func(d Destination) bool { return d.Name == name }); i >= 0 {
			v = r.Destinations[i].Verdict
		}
		each[name] = v
		if v.State.worseThan(worst.State) {
			worst = v
			if v.Cause != "" {
				worst.Cause = name + ": " + v.Cause
			}
		}
	}
	return worst, each
}

func (r *Report) judgeDestination(d *Destination) Verdict {
	if len(d.Groups) == 0 {
		return Verdict{StateNoRelay, "it has no cursor, but messages were set aside for it", "outbox destinations ls"}
	}
	worst := Verdict{State: StateIdle}
	for i := range d.Groups {
		if v := r.judgeGroup(d, &d.Groups[i]); v.State.worseThan(worst.State) {
			worst = v
		}
	}
	if !StateBlocked.worseThan(worst.State) {
		return worst
	}
	if d.Held.Blocked > 0 {
		return Verdict{StateBlocked, fmt.Sprintf("%s until an operator acts; last error: %s", plural(d.Held.Blocked, "lane is held", "lanes are held"),
			orElse(d.Held.LastError, "unknown")), "outbox dead ls --blocked --destination " + d.Name}
	}
	if since := d.Held.FailingSince; !since.IsZero() && r.At.Sub(since) > failingAfter {
		return Verdict{StateFailing, fmt.Sprintf("%v held in %s, tried again since %v ago; last error: %s", d.Held.Messages, plural(d.Held.Lanes, "lane", "lanes"),
			r.At.Sub(since).Round(time.Second), orElse(d.Held.LastError, "unknown")), "cure the cause; they are tried again by themselves, and become dead letters after the last attempt"}
	}
	if d.Held.Messages.N > 0 && worst.Cause == "" {
		worst.Cause = fmt.Sprintf("%v held in %s", d.Held.Messages, plural(d.Held.Lanes, "lane", "lanes"))
	}
	return worst
}

func (r *Report) judgeGroup(d *Destination, g *Group) Verdict {
	name := d.Name
	if g.Groups > 1 {
		name = fmt.Sprintf("%s, shard group %d", d.Name, g.Group)
	}
	switch {
	case r.Altered != "":
		return Verdict{StateBroken, r.Altered, "run that, and then start the relay again: outbox relay"}
	case g.Foreign:
		return Verdict{StateBroken, "its cursor is from another cluster: a dump was restored here, or the cluster was upgraded",
			"with all writers and relays stopped: outbox rebase --destination " + d.Name}
	case !g.Live && g.State == "stopped" && g.LastError != "":
		return Verdict{StateStopped, "the relay gave up: " + g.LastError, "cure the cause, then start it again: outbox relay"}
	case !g.Live:
		return r.noRelay(d, name, g)
	case g.State == "stalled":
		return Verdict{StateStalled, "the broker does not answer: " + orElse(g.LastError, "unknown cause"),
			"check the broker; delivery goes on by itself once it answers"}
	case g.State == "failing":
		return Verdict{StateFailing, orElse(g.LastError, "unknown cause"),
			"do what it says; what waits is delivered by itself then, and no attempt is counted"}
	case g.State == "broken":
		return Verdict{StateBroken, orElse(g.LastError, "unknown cause"), "check the database and the relay's log"}
	case g.Pending.N > 0 && r.At.Sub(g.Oldest) > behindAfter:
		return Verdict{State: StateFlowing, Cause: fmt.Sprintf("%v pending, the oldest for %v", g.Pending, r.At.Sub(g.Oldest).Round(time.Second))}
	case g.Pending.N > 0:
		return Verdict{State: StateFlowing}
	}
	return Verdict{State: StateIdle}
}

// abandonedAfter is how long nobody has delivered to a destination that perhaps nobody needs: a relay that is late, restarted or
// deployed is back long before.
const abandonedAfter = time.Hour

func (r *Report) noRelay(d *Destination, name string, g *Group) Verdict {
	v := Verdict{StateNoRelay, "no live relay", "outbox relay"}
	since, what := g.LeaseUntil, "vanished"
	if since.IsZero() { // given back
		since, what = g.UpdatedAt, "ended"
	}
	away := r.At.Sub(since)
	switch {
	case g.Owner != "" && away < 0:
		v.Cause += fmt.Sprintf(": %s %s, and then the clock was set back", g.Owner, what)
		v.Next = "start " + g.Owner + " again: outbox relay"
	case g.Owner != "":
		v.Cause += fmt.Sprintf(": %s %s %v ago", g.Owner, what, away.Round(time.Second))
		v.Next = "start " + g.Owner + " again: outbox relay"
	}
	var others []string
	for _, relay := range r.Relays {
		if relay.Live && relay.Name != g.Owner {
			others = append(others, relay.Name)
		}
	}
	if len(others) == 0 {
		return v
	}
	v.Cause += "; " + strings.Join(others, ", ") + " run without delivering to " + name
	v.Next += ", or add the destination to the configuration of a relay that runs"
	if away > abandonedAfter {
		v.Next += "; if nobody needs it any more, what it has not delivered is given up by: outbox destinations drop " + d.Name
	}
	return v
}

func plural(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}
