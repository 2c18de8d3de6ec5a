package admin

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/internal/shell"
	"github.com/pgoutbox/outbox/schema"
)

// rules are what a verdict rests on.
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
		{"a transaction has locked what the relay needs", heldUp},
		{"the relay's role lacks a right", powerless},
		{"the relay gave up", stopped},
		{"no relay has the lease", unowned},
		{"the broker does not answer", stalled},
		{"a topic takes nothing", closed},
		{"the relay can't work with the database", broken},
		{"no look at the database succeeds", unread},
	},
	destination: []destinationRule{
		{"there is no cursor", orphaned},
		{"the replication slot is gone", slotless},
		{"messages are refused again and again", refused},
		{"messages wait for longer than they may", lagging},
		{"lanes wait for an operator", blocked},
		{"a strategy waits for a transaction", stuckBehind},
		{"there are new dead letters", dead},
		{"an operator has paused it", paused},
		{"a clock is wrong", clockOff},
		{"an index is missing", unindexed},
		{"the server keeps much of the log", slotKeeps},
	},
}

// judge gives each destination its verdict, and the report the one on all.
func (r *Report) judge(by rules) {
	for i := range r.Destinations {
		r.Destinations[i].Verdict = r.judgeDestination(&r.Destinations[i], by)
	}
	r.Verdict = r.on(r.Destinations)
	if own := r.Verdict; len(r.Destinations) > 0 && r.Waiting.N > 0 {
		r.Verdict = Verdict{Finding: r.neverRead(), At: r.At}
		if !own.State.OK() {
			r.Verdict.Also = append([]Finding{own.Finding}, own.Also...)
		}
	}
}

// neverRead is the finding that no relay has ever read the outbox.
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

// on returns the verdict on some destinations together.
func (r *Report) on(destinations []Destination) Verdict {
	if len(destinations) == 0 {
		if f, known := r.excuse(); known && r.unread != "" {
			return verdictOn(r.At, []Finding{f}, Finding{})
		}
		return verdictOn(r.At, nil, r.neverRead())
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
	return verdictOn(r.At, findings, calm)
}

// On returns the verdict on the given destinations together, and that on each: those that one relay serves. A
// destination that has no cursor yet counts as StateNoRelay.
func (r *Report) On(names []string) (Verdict, map[string]Verdict) {
	each := make(map[string]Verdict, len(names))
	var list []Destination
	for _, name := range names {
		d := Destination{Name: name, Verdict: Verdict{Finding: Finding{State: StateNoRelay, Destination: name,
			Cause: "no relay has worked on it yet", Next: "outbox relay"}, At: r.At}}
		if i := slices.IndexFunc(r.Destinations, func(d Destination) bool { return d.Name == name }); i >= 0 {
			d = r.Destinations[i]
		}
		each[name] = d.Verdict
		list = append(list, d)
	}
	return r.on(list), each
}

func (r *Report) judgeDestination(d *Destination, by rules) Verdict {
	var findings []Finding
	add := func(f Finding) {
		f.Destination = d.Name
		at := slices.IndexFunc(findings, func(g Finding) bool { return g.State == f.State && f.State != StateAtRisk })
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
	if slices.ContainsFunc(findings, func(f Finding) bool { return f.State.Tone() == Alarm }) { // what doesn't flow is late, of course
		findings = slices.DeleteFunc(findings, func(f Finding) bool { return f.State == StateLagging })
	}
	return verdictOn(r.At, findings, calm(d))
}

// calm is the finding on a destination for which no rule has one.
func calm(d *Destination) Finding {
	f := Finding{State: StateIdle, Destination: d.Name}
	if d.Pending.N > 0 {
		f.State = StateFlowing
		f.Cause = fmt.Sprintf("%v pending", d.Pending)
	}
	if d.Held.Messages.N > 0 {
		f.Cause = strings.TrimPrefix(f.Cause+", "+heldText(d), ", ")
	}
	for _, c := range d.Controls {
		if c.Rate > 0 {
			f.Cause = strings.TrimPrefix(fmt.Sprintf("%s, at most %v messages a second %s", f.Cause, c.Rate, c.who()), ", ")
		}
	}
	return f
}

func heldText(d *Destination) string {
	return fmt.Sprintf("%v held in %s", d.Held.Messages, plural(d.Held.Lanes, "lane", "lanes"))
}

func altered(r *Report, d *Destination, _ *Group) (Finding, bool) {
	return Finding{State: StateBroken, Cause: r.Altered, Advice: "run that, and then start the relay again",
		Next: "outbox relay"}, r.Altered != "" && d.Table == nil
}

func foreign(_ *Report, d *Destination, g *Group) (Finding, bool) {
	return Finding{State: StateBroken, Since: g.UpdatedAt,
		Cause:  "its cursor is from another cluster: a dump was restored here, or the cluster was upgraded",
		Advice: "with all writers and relays stopped", Next: "outbox rebase --destination " + shell.Word(d.Name)}, g.Foreign
}

func stopped(_ *Report, _ *Destination, g *Group) (Finding, bool) {
	return Finding{State: StateStopped, Since: g.LastErrorAt, Cause: "the relay gave up: " + g.LastError,
		Advice: "cure the cause, then start it again", Next: "outbox relay"}, !g.Live && g.State == stoppedState && g.LastError != ""
}

// abandonedAfter is the time without a relay after which a destination is perhaps not needed any more. A relay that is
// restarted or deployed is back long before.
const abandonedAfter = time.Hour

func unowned(r *Report, d *Destination, g *Group) (Finding, bool) {
	if g.Live {
		return Finding{}, false
	}
	f := Finding{State: StateNoRelay, Since: g.LeaseUntil, Cause: "no live relay", Next: "outbox relay"}
	if strings.HasPrefix(d.Name, schema.InboxPrefix) {
		f.Advice, f.Next = "start the service that runs its worker", ""
		return f, true
	}
	what := "vanished"
	if f.Since.IsZero() { // given back
		f.Since, what = g.UpdatedAt, "ended"
	}
	away := r.At.Sub(f.Since)
	if -ReadWithin < away && away < 0 { // it ended since the look began
		f.Since, away = r.At, 0
	}
	runs := slices.ContainsFunc(r.Relays, func(relay Relay) bool {
		return relay.Live && relay.Name == g.Owner && relay.HeartbeatAt.After(f.Since)
	})
	if g.Owner != "" {
		f.Advice = "start " + g.Owner + " again"
	}
	at := slices.IndexFunc(r.Relays, func(relay Relay) bool { return relay.Name == g.Owner })
	if what == "vanished" && at >= 0 { // it has not said goodbye
		f.Advice = fmt.Sprintf("if %s still runs, it does not reach the database: see its log; otherwise start it again", g.Owner)
	}
	switch {
	case at >= 0 && r.Relays[at].Barred != "":
		f.Cause += fmt.Sprintf(": the role %s of %s %s", r.Relays[at].User, g.Owner, r.Relays[at].Barred)
		f.Advice = "let the role log in, or give the relay another one; it goes on by itself if it still runs, otherwise start it again"
	case runs:
		f.Cause += fmt.Sprintf(": %s had the lease until %v ago", g.Owner, away.Round(time.Second))
		f.Advice, f.Next = "see the log of "+g.Owner, "outbox doctor"
	case g.Owner != "" && away < 0:
		f.Since = time.Time{}
		f.Cause += fmt.Sprintf(": %s %s, and then the clock was set back", g.Owner, what)
	case g.Owner != "":
		f.Cause += fmt.Sprintf(": %s %s %v ago", g.Owner, what, away.Round(time.Second))
	}
	var others []string
	for _, relay := range r.Relays {
		if relay.Live && (runs || relay.Name != g.Owner) {
			others = append(others, relay.Name)
		}
	}
	if len(others) == 0 {
		return f, true
	}
	name := d.Name
	if g.Groups > 1 {
		name = fmt.Sprintf("%s, shard group %d", d.Name, g.Group)
	}
	f.Cause += "; " + strings.Join(others, ", ") + " run without delivering to " + name
	f.Advice = strings.TrimPrefix(f.Advice+", or add the destination to the configuration of a relay that runs", ", or ")
	if away > abandonedAfter {
		f.Advice += "; if it is not needed any more, give up what it has not delivered: outbox destinations drop " +
			shell.Word(d.Name) + "; otherwise"
	}
	return f, true
}

func stalled(_ *Report, _ *Destination, g *Group) (Finding, bool) {
	return Finding{State: StateStalled, Since: g.StateSince, Cause: "the broker does not answer: " + orElse(g.LastError, "unknown cause"),
		Advice: "check the broker, and its address in the relay's configuration; delivery goes on by itself once it answers",
	}, g.State == "stalled"
}

func closed(_ *Report, _ *Destination, g *Group) (Finding, bool) {
	return Finding{State: StateFailing, Since: g.StateSince, Cause: orElse(g.LastError, "unknown cause"),
		Advice: "repair what the cause names; then what waits is delivered by itself, and no attempt is counted"}, g.State == "failing"
}

func broken(_ *Report, _ *Destination, g *Group) (Finding, bool) {
	f := Finding{State: StateBroken, Since: g.StateSince, Cause: orElse(g.LastError, "unknown cause"),
		Advice: "check the database and the relay's log"}
	switch {
	case strings.Contains(f.Cause, "42501"):
		f.Advice, f.Next = "as the owner of the schema, with the name of the relay's role", "outbox migrate grants --apply --relay ROLE"
	case strings.Contains(f.Cause, "53100"):
		f.Advice = "make room on the database's disk; delivery goes on by itself then"
	}
	return f, g.State == "broken"
}

func unread(r *Report, _ *Destination, g *Group) (Finding, bool) {
	f := Finding{State: StateBroken, Since: r.At, Cause: r.unread, Advice: "check the database"}
	if g.State == "flowing" { // the relay's own sessions are answered
		f.State = StateUnknown
	}
	return f, r.unread != ""
}

func orphaned(_ *Report, d *Destination) (Finding, bool) {
	return Finding{State: StateNoRelay, Cause: "it has no cursor, but messages were set aside for it",
		Next: "outbox destinations ls"}, len(d.Groups) == 0
}

func slotless(_ *Report, d *Destination) (Finding, bool) {
	if d.Slot == nil || d.Slot.Position == "" || d.Slot.Status != "" && d.Slot.Status != "lost" {
		return Finding{}, false
	}
	return Finding{State: StateBroken, Cause: fmt.Sprintf("its replication slot %s is %s", d.Slot.Name,
		orElse(d.Slot.Status, "not there any more")),
		Advice: "the relay makes another one and delivers from the table meanwhile; start it if none runs", Next: "outbox relay"}, true
}

// failingAfter is how long ago a message must have been set aside for the verdict to be that the destination fails. A
// message is set aside when its next attempt is a second away, so it has failed several times by then.
const failingAfter = 2 * time.Second

func refused(r *Report, d *Destination) (Finding, bool) {
	since := d.Held.FailingSince
	return Finding{State: StateFailing, Since: since, Cause: heldText(d) + ", tried again; last error: " +
			orElse(d.Held.LastError, "unknown"),
			Advice: "cure the cause; they are tried again by themselves, and become dead letters after the last attempt"},
		!since.IsZero() && r.At.Sub(since) > failingAfter
}

func blocked(_ *Report, d *Destination) (Finding, bool) {
	return Finding{State: StateBlocked, Since: d.Held.BlockedSince, Cause: fmt.Sprintf("%s until an operator acts; last error: %s",
		plural(d.Held.Blocked, "lane is held", "lanes are held"), orElse(d.Held.LastError, "unknown")),
		Advice: "cure the cause, and have them tried again", Next: d.letters() + "requeue --blocked --destination " +
			shell.Word(d.Name)}, d.Held.Blocked > 0
}

func lagging(r *Report, d *Destination) (Finding, bool) {
	if slices.ContainsFunc(d.Controls, func(c Control) bool { return c.Rate == 0 && c.Topic == "" && c.Key == "" }) {
		return Finding{}, false // an operator has paused it
	}
	oldest := d.Held.waiting
	for i := range d.Groups {
		oldest = earliest(oldest, d.Groups[i].Oldest)
	}
	waits := r.At.Sub(oldest)
	return Finding{State: StateLagging, Since: oldest.Add(d.LagObjective),
			Cause: fmt.Sprintf("%v pending and %v held, the oldest for %v; it may be %v",
				d.Pending, d.Held.Messages, waits.Round(time.Second), d.LagObjective),
			Advice: "wait if the backlog shrinks; otherwise look at outbox_publish_seconds, and deliver in more calls (shard_groups)"},
		!oldest.IsZero() && d.LagObjective > 0 && waits > d.LagObjective
}

func dead(_ *Report, d *Destination) (Finding, bool) {
	n := d.Dead.New
	text := fmt.Sprintf("%v new dead letters", n)
	if n.N == 1 {
		text = "1 new dead letter"
	}
	name := " --destination " + shell.Word(d.Name)
	return Finding{State: StateDead, Since: d.Dead.Since, Cause: text + "; last error: " + orElse(d.Dead.LastError, "unknown"),
		Advice: "cure the cause and have them delivered, or say that you know of them (" + d.letters() + "ack" + name + ")",
		Next:   d.letters() + "requeue" + name}, n.N > 0
}

// letters is the group of commands for the destination's dead letters and blocked messages.
func (d *Destination) letters() string {
	if d.Table != nil {
		return "outbox tables "
	}
	return "outbox dead "
}

// paused names the operators' pauses, in whatever state the destination is.
func paused(_ *Report, d *Destination) (Finding, bool) {
	var f Finding
	var causes []string
	for _, c := range d.Controls {
		if c.Rate > 0 {
			continue
		}
		what := "paused"
		if c.Topic != "" || c.Key != "" {
			what = strings.TrimSuffix(c.Target.String(), " of "+c.Destination) + " paused"
		}
		if len(causes) == 0 {
			f.Next = "outbox resume " + c.arguments()
		}
		f.Since = earliest(f.Since, c.Since)
		causes = append(causes, what+" "+c.who())
	}
	if more := len(causes) - 3; more > 0 {
		causes = append(causes[:3], fmt.Sprintf("%d more, see: outbox controls", more))
	}
	f.State, f.Cause = StatePaused, strings.Join(causes, "; ")
	f.Advice = "when the reason is gone"
	return f, len(causes) > 0
}

// who tells by whom a control is, until when and why.
func (c Control) who() string {
	text := "by " + c.Actor
	if c.Until.IsZero() {
		text += " until it is ended"
	} else {
		text += " until " + c.Until.UTC().Format(time.RFC3339)
	}
	if c.Reason != "" {
		text += fmt.Sprintf(" (%s)", c.Reason)
	}
	return text
}
