package health

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pgoutbox/outbox/internal/printed"
)

// rules are the checks that verdicts are made from.
type rules struct {
	// group rules find out whether a relay works on a shard group. Only the first finding counts: later rules assume
	// that a relay is there.
	group []groupRule
	// destination rules find out what waits, and for what. Each is applied.
	destination []destinationRule
}

// groupRule judges a shard group; ok is false if it finds nothing.
type groupRule struct {
	name string
	find func(r *Report, d *Destination, g *Group) (f Finding, ok bool)
}

// destinationRule is the same for a destination as a whole.
type destinationRule struct {
	name string
	find func(r *Report, d *Destination) (f Finding, ok bool)
}

var allRules = rules{
	group: []groupRule{
		{"the tables are not those of the migrations", altered},
		{"the cursor is from another cluster", foreign},
		{"a transaction has locked what the relay needs", waitsForLock},
		{"the relay's role lacks a right", lacksRights},
		{"commits wait for a standby", unreplicated},
		{"the relay has another broker", otherBroker},
		{"the relay gave up", stopped},
		{"no relay has the lease", unowned},
		{"the broker does not answer", stalled},
		{"too much is set aside", full},
		{"a topic takes nothing", closed},
		{"the relay can't work with the database", broken},
		{"no look at the database succeeds", notRead},
	},
	destination: []destinationRule{
		{"there is no cursor", orphaned},
		{"the replication slot is gone", slotless},
		{"a standby is away that the log waits for", heldByStandby},
		{"messages are refused again and again", refused},
		{"rows wait for a transaction", stuckBehind},
		{"messages wait for longer than they may", lagging},
		{"a pause keeps messages for longer than they may wait", forgottenPause},
		{"a table can't be counted", uncounted},
		{"rows were delivered that no relay has handled", passedOver},
		{"lanes wait for an operator", blocked},
		{"there are new dead letters", dead},
		{"an operator has paused it", paused},
		{"a relay beside has another broker", otherBrokerBeside},
		{"a clock is wrong", clockOff},
		{"an index is missing", unindexed},
		{"the server keeps much of the log", slotKeeps},
	},
}

// judge sets every destination's verdict, and the report's overall verdict.
func (r *Report) judge(by rules) {
	for i := range r.Destinations {
		r.Destinations[i].Verdict = r.judgeDestination(&r.Destinations[i], by)
	}
	r.conclude()
}

// conclude sets the report's verdict from those of its destinations.
func (r *Report) conclude() {
	r.Verdict = r.verdictOn(r.Destinations)
	if own := r.Verdict; len(r.Destinations) > 0 && r.Waiting.N > 0 {
		r.Verdict = Verdict{Finding: r.neverRead(), At: r.At}
		if !own.State.OK() {
			r.Verdict.Also = append([]Finding{own.Finding}, own.Also...)
		}
	}
}

// neverRead returns the finding that no relay has ever read the outbox.
func (r *Report) neverRead() Finding {
	f := Finding{State: StateNoRelay, Since: r.WaitingSince, Cause: "no relay has ever worked on this database", Next: "outbox relay"}
	switch {
	case r.Waiting.N == 1 && !r.Waiting.Estimated:
		f.Cause += ", and 1 message waits in outbox.messages"
	case r.Waiting.N > 0:
		f.Cause += fmt.Sprintf(", and %v messages wait in outbox.messages", r.Waiting)
	}
	return f
}

// verdictOn returns one verdict on the given destinations.
func (r *Report) verdictOn(destinations []Destination) Verdict {
	if len(destinations) == 0 {
		if f, known := r.unreadable(); known && r.unread != "" {
			return verdictOf(r.At, []Finding{f}, Finding{})
		}
		return verdictOf(r.At, nil, r.neverRead())
	}
	calm := Finding{State: StateIdle}
	var findings []Finding
	for i := range destinations {
		v := &destinations[i].Verdict
		if v.State.OK() {
			if v.State.worseThan(calm.State) || v.State == calm.State && calm.Cause == "" {
				calm = v.Finding
			}
			continue
		}
		findings = append(append(findings, v.Finding), v.Also...)
	}
	if f, ok := r.unselectedBy(); ok {
		findings = append(findings, f)
	}
	return verdictOf(r.At, findings, calm)
}

// unselectedBy returns the finding that there are messages which no destination selects.
func (r *Report) unselectedBy() (f Finding, ok bool) {
	if len(r.Unselected) == 0 {
		return f, false
	}
	u := r.Unselected[0]
	f = Finding{State: StateAtRisk, Since: u.First, Cause: fmt.Sprintf("%s of topic %q, which no destination selects: nobody gets them",
		printed.Many(u.Messages, "message is", "messages are"), u.Topic),
		Advice: "add the topic to a destination's topics or filter, or drop it by a rule to say that this is meant"}
	if more := len(r.Unselected) - 1; more > 0 {
		f.Cause += fmt.Sprintf("; there are %s", printed.Many(more, "more such topic", "more such topics"))
	}
	return f, true
}

// On returns the verdict on the given destinations together, and that on each: those that one relay serves. A
// destination that has no cursor yet counts as StateNoRelay.
func (r *Report) On(names []string) (Verdict, map[string]Verdict) {
	each := make(map[string]Verdict, len(names))
	var list []Destination
	for _, name := range names {
		d := r.withoutRelay(name)
		if i := slices.IndexFunc(r.Destinations, func(d Destination) bool { return d.Name == name }); i >= 0 {
			d = r.Destinations[i]
		}
		each[name] = d.Verdict
		list = append(list, d)
	}
	return r.verdictOn(list), each
}

// withoutRelay returns a destination that no relay has worked on yet.
func (r *Report) withoutRelay(name string) Destination {
	return Destination{Name: name, Verdict: Verdict{Finding: Finding{State: StateNoRelay, Destination: name,
		Cause: "no relay has worked on it yet", Next: "outbox relay"}, At: r.At}}
}

// Expect adds destinations of a configuration that no relay has worked on, and judges again: the database knows only
// the others. Where it knows none, the verdict says so already.
func (r *Report) Expect(names []string) {
	if len(r.Destinations) == 0 {
		return
	}
	for _, name := range names {
		if !slices.ContainsFunc(r.Destinations, func(d Destination) bool { return d.Name == name }) {
			r.Destinations = append(r.Destinations, r.withoutRelay(name))
		}
	}
	r.conclude()
}

func (r *Report) judgeDestination(d *Destination, by rules) Verdict {
	var findings []Finding
	add := func(f Finding) {
		f.Destination = d.Name
		several := f.State == StateAtRisk || f.State == StateLagging
		at := slices.IndexFunc(findings, func(g Finding) bool { return g.State == f.State && !several })
		if at < 0 {
			findings = append(findings, f)
		} else {
			findings[at].Since = earliest(findings[at].Since, f.Since)
		}
	}
	for i := range d.Groups {
		for _, rule := range by.group {
			if f, ok := rule.find(r, d, &d.Groups[i]); ok {
				add(f)
				break
			}
		}
	}
	for _, rule := range by.destination {
		if f, ok := rule.find(r, d); ok {
			add(f)
		}
	}
	if slices.ContainsFunc(findings, func(f Finding) bool { return f.State.Tone() == Alarm }) { // what doesn't flow is late
		findings = slices.DeleteFunc(findings, func(f Finding) bool { return f.State == StateLagging && !f.Halted })
	}
	return verdictOf(r.At, findings, quiet(r, d))
}

// quiet returns the finding on a destination for which no rule found anything.
func quiet(r *Report, d *Destination) Finding {
	f := Finding{State: StateIdle, Destination: d.Name}
	if slices.ContainsFunc(d.Groups, func(g Group) bool { return r.asleep(&g) }) {
		f.Cause = "dormant: its relay has no connection, and looks now and then"
	}
	if d.Pending.N > 0 {
		f.State = StateFlowing
		f.Cause = strings.TrimPrefix(fmt.Sprintf("%s, %v pending", f.Cause, d.Pending), ", ")
	}
	if d.kept() {
		f.Cause += fmt.Sprintf(", %v of them behind %s", d.Table.Kept, d.Table.Behind.describe(r.At))
	}
	if d.Held.Messages.N > 0 {
		f.Cause = strings.TrimPrefix(f.Cause+", "+heldFor(r, d), ", ")
	}
	for _, c := range d.Controls {
		if c.Rate > 0 {
			f.Cause = strings.TrimPrefix(fmt.Sprintf("%s, at most %v messages a second %s", f.Cause, c.Rate, describeControl(c)), ", ")
		}
	}
	return f
}
