package health

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/internal/printed"
	"github.com/pgoutbox/outbox/internal/shell"
	"github.com/pgoutbox/outbox/schema"
)

func heldText(d *Destination) string {
	return fmt.Sprintf("%v held in %s", d.Held.Messages, printed.Many(d.Held.Lanes, "lane", "lanes"))
}

// heldFor returns why messages are held that have not failed, and until when.
func heldFor(r *Report, d *Destination) string {
	text := heldText(d)
	if d.Held.Delayed > 0 {
		text += ", " + printed.Many(d.Held.Delayed, "lane", "lanes") + " for a delivery time"
	}
	if d.Held.NextRetry.After(r.At) {
		text += ", the next due at " + d.Held.NextRetry.UTC().Format(time.RFC3339)
	}
	return text
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
	if g.Live || r.asleep(g) {
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
		f.Cause += fmt.Sprintf(": %s had the lease until %s ago", g.Owner, printed.Span(away))
		f.Advice, f.Next = "the log of "+g.Owner+" says why", ""
	case g.Owner != "" && away < 0:
		f.Since = time.Time{}
		f.Cause += fmt.Sprintf(": %s %s, and then the clock was set back", g.Owner, what)
	case g.Owner != "":
		f.Cause += fmt.Sprintf(": %s %s %s ago", g.Owner, what, printed.Span(away))
	}
	if g.LastError != "" && g.State != "flowing" {
		f.Cause += "; its last error: " + g.LastError
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
	return Finding{State: StateStalled, Since: g.StateSince,
		Cause:  "the broker does not answer: " + cmp.Or(g.LastError, "unknown cause"),
		Advice: adviceOn(g.LastError) + "; delivery goes on by itself once it answers"}, g.State == "stalled"
}

// advices map words of a broker's error to what to do. The first match counts.
var advices = []struct {
	advice string
	words  *regexp.Regexp
}{
	{"make room on the broker's disk", wholeWords(`no space left|disk full|disk is full|disk_alarm|insufficient storage|insufficient resources|` +
		`storage limits?|misconf`)},
	{"renew the certificate that has expired, the broker's or the relay's own",
		wholeWords(`certificate has expired|certificate expired|certificate is not yet valid|certificate is out of date`)},
	{"name the authority of the broker's certificate in tls of the relay's configuration",
		wholeWords(`unknown authority|unknown certificate authority|unknown ca`)},
	{"let the user that the relay runs as use the file that the cause names", wholeWords(`(open|openat|mkdir|stat|lstat|rename|truncate|` +
		`remove|unlink|chmod) ([a-z]:)?[^:]+: permission denied`)},
	{"let the relay connect to the broker's address: its system, as a firewall of it, refuses that", wholeWords(`connect: permission denied`)},
	{"give the relay's login at the broker the right that the cause names, or correct it in the relay's configuration",
		wholeWords(`not authorized|unauthorized\w*|access ?denied\w*|access refused|permission[ _]?denied|authentication fail(ed|ure|ures|s)?|` +
			`noauth|wrongpass|noperm`)},
	{"correct the broker's host name in the relay's configuration, or the name service", wholeWords(`no such host`)},
}

func wholeWords(pattern string) *regexp.Regexp {
	return regexp.MustCompile(`(?i)\b(` + pattern + `)\b`)
}

// adviceOn returns what to do about a broker's error, by its words: an adapter may have passed on the text of the
// system or of the server.
func adviceOn(text string) string {
	for _, known := range advices {
		if known.words.MatchString(text) {
			return known.advice
		}
	}
	return "check the broker, and its address in the relay's configuration"
}

func full(_ *Report, _ *Destination, g *Group) (Finding, bool) {
	return Finding{State: StateStalled, Since: g.StateSince, Cause: cmp.Or(g.LastError, "too much is set aside"),
		Advice: "see why it waits: outbox holds; what is due is delivered, and reading goes on by itself once there is room",
	}, g.State == "full"
}

func closed(_ *Report, _ *Destination, g *Group) (Finding, bool) {
	return Finding{State: StateFailing, Since: g.StateSince, Cause: cmp.Or(g.LastError, "unknown cause"),
		Advice: "repair what the cause names; then what waits is delivered by itself, and no attempt is counted"}, g.State == "failing"
}

func broken(_ *Report, _ *Destination, g *Group) (Finding, bool) {
	f := Finding{State: StateBroken, Since: g.StateSince, Cause: cmp.Or(g.LastError, "unknown cause"),
		Advice: "check the database and the relay's log"}
	switch {
	case strings.Contains(f.Cause, "42501"):
		f.Advice, f.Next = "as the owner of the schema, with the name of the relay's role", "outbox migrate grants --apply --relay ROLE"
	case strings.Contains(f.Cause, "53100"):
		f.Advice = "make room on the database's disk; delivery goes on by itself then"
	}
	return f, g.State == "broken"
}

func notRead(r *Report, _ *Destination, g *Group) (Finding, bool) {
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

// slotless finds a destination that has lost its slot while nobody delivers. A live relay reads the table meanwhile, so
// nothing is lost except messages that were emitted without a row.
func slotless(_ *Report, d *Destination) (Finding, bool) {
	if d.Slot == nil || d.Slot.Position == "" || d.Slot.Status != "" && d.Slot.Status != "lost" {
		return Finding{}, false
	}
	f := Finding{State: StateBroken, Cause: fmt.Sprintf("its replication slot %s is %s", d.Slot.Name,
		cmp.Or(d.Slot.Status, "not there any more")),
		Advice: "the relay makes another one and delivers from the table meanwhile; start it if none runs", Next: "outbox relay"}
	if d.Table != nil { // its relay makes none, because a new slot would hide the loss
		f.Advice = "what was committed since it was last read has to be delivered by a strategy that reads the table; then, and after " +
			"dropping a lost slot, make it again"
		f.Next = "outbox migrate sources --apply"
		return f, true
	}
	if !slices.ContainsFunc(d.Groups, func(g Group) bool { return !g.Live || g.State == "broken" || g.State == stoppedState }) {
		f.State, f.Next = StateAtRisk, ""
		f.Advice = "its relay notices when the stream ends, makes another one, and delivers from the table meanwhile"
	}
	return f, true
}

// failingAfter is how long ago a message must have been set aside for the verdict to be that the destination fails. A
// message is set aside when its next attempt is a second away, so it has failed several times by then.
const failingAfter = 2 * time.Second

func refused(r *Report, d *Destination) (Finding, bool) {
	since := d.Held.FailingSince
	again := ""
	if left := d.Held.NextRetry.Sub(r.At).Round(time.Second); left > 0 && left < 24*time.Hour {
		again = ", the next in " + printed.Span(left)
	}
	f := Finding{State: StateFailing, Since: since, Cause: heldText(d) + ", tried again" + again + "; last error: " +
		cmp.Or(d.Held.LastError, "unknown"),
		Advice: "cure the cause; they are tried again by themselves, and become dead letters after the last attempt"}
	if d.Table == nil {
		f.Advice += "; once it is cured, they are tried at once by"
		f.Next = "outbox retry " + shell.Word(d.Name)
	}
	return f, !since.IsZero() && r.At.Sub(since) > failingAfter
}

func blocked(_ *Report, d *Destination) (Finding, bool) {
	f := Finding{State: StateBlocked, Since: d.Held.BlockedSince, Cause: fmt.Sprintf("%s until an operator acts; last error: %s",
		printed.Many(d.Held.Blocked, "lane is held", "lanes are held"), cmp.Or(d.Held.LastError, "unknown")),
		Advice: "cure the cause, and have them tried again", Next: d.deadCommand() + "requeue --blocked --destination " +
			shell.Word(d.Name)}
	if d.Table != nil && d.Table.RelayAlone { // no column tells which they are
		f.Advice, f.Next = "cure the cause, and start the relay again: it tries them again then", ""
	}
	return f, d.Held.Blocked > 0
}

func lagging(r *Report, d *Destination) (Finding, bool) {
	oldest, waits, late := r.late(d)
	kept := d.kept() && !oldest.Before(d.Table.KeptSince) // stuckBehind tells of that one
	if !late || d.pauseOf() != nil || kept {
		return Finding{}, false
	}
	f := Finding{State: StateLagging, Since: oldest.Add(d.LagObjective),
		Cause: fmt.Sprintf("%v pending and %v held, the oldest for %s; it may be %s",
			d.Pending, d.Held.Messages, printed.Span(waits), printed.Span(d.LagObjective)),
		Advice: "wait if the backlog shrinks; otherwise look at outbox_publish_seconds, and deliver in more calls (shard_groups)"}
	switch c := d.throttleOf(); {
	case c != nil:
		f.Cause = fmt.Sprintf("throttled to %v/s %s: %s", c.Rate, describeControl(*c), f.Cause)
		f.Advice, f.Next = "when the reason is gone", "outbox throttle "+shell.Word(d.Name)+" --rate 0"
	case d.Rate > 0:
		f.Cause = fmt.Sprintf("its relay's configuration allows %v/s (delivery.rate): %s", d.Rate, f.Cause)
		f.Advice = "wait if the backlog shrinks; otherwise raise delivery.rate in the relay's configuration"
	}
	return f, true
}

// haltedAfter is how long a pause of a whole destination may last, if nobody has given it an end, before it is as
// urgent as an outage.
const haltedAfter = time.Hour

// forgottenPause finds a pause of the whole destination without an end, under which messages have waited for longer
// than they may. A pause with an end is accepted until then.
func forgottenPause(r *Report, d *Destination) (Finding, bool) {
	oldest, waits, late := r.late(d)
	c := d.pauseOf()
	if !late || c == nil || !c.Until.IsZero() || r.At.Sub(c.Since) <= d.LagObjective {
		return Finding{}, false
	}
	since := oldest.Add(d.LagObjective)
	if since.Before(c.Since) {
		since = c.Since
	}
	return Finding{State: StateLagging, Since: since, Halted: r.At.Sub(c.Since) > haltedAfter,
		Cause: fmt.Sprintf("nothing is delivered, %v pending and %v held, the oldest for %s; it may be %s: the pause has no end",
			d.Pending, d.Held.Messages, printed.Span(waits), printed.Span(d.LagObjective)),
		Advice: "if it has to last, give it an end (outbox pause " + shell.Word(d.Name) + " --for 2h); otherwise",
		Next:   "outbox resume " + c.Arguments()}, true
}

func uncounted(_ *Report, d *Destination) (Finding, bool) {
	if d.Table == nil || d.Table.Uncounted == "" {
		return Finding{}, false
	}
	f := Finding{State: StateUnknown, Cause: fmt.Sprintf("it isn't known what waits in table %s: %s", d.Table.Name, d.Table.Uncounted),
		Advice: "repair what the cause names"}
	switch {
	case strings.Contains(f.Cause, "42501"):
		f.Advice = "as the owner of the table, GRANT SELECT ON " + strings.Join(d.Table.counted, ", ") + " to the role that asks"
	case strings.Contains(f.Cause, "57014"):
		f.Advice = "a count takes longer than " + countFor.String() + ": see which index is missing"
		f.Next = "outbox doctor --table " + shell.Word(d.Table.Name)
	}
	return f, true
}

// passedOver finds rows that no relay can have handled, whatever the mapping says of their state.
func passedOver(r *Report, d *Destination) (Finding, bool) {
	t := d.Table
	if t == nil || t.Passed.N == 0 {
		return Finding{}, false
	}
	ago := printed.Span(r.At.Sub(t.PassedSince))
	what := fmt.Sprintf("%v of the newest rows of table %s, the oldest from %s ago, do", t.Passed, t.Name, ago)
	if t.Passed.N == 1 {
		what = fmt.Sprintf("a row of table %s, from %s ago, does", t.Name, ago)
	}
	return Finding{State: StateAtRisk, Since: t.PassedSince.Add(d.LagObjective),
		Cause: what + " not wait by the mapping (done), and no relay has delivered anything since they were written",
		Advice: "see what a new row has in the columns that mark it as delivered: a default, the writer or another program may set them. " +
			"If the mapping is wrong, correct it; the columns and what they can mean are listed by",
		Next: "outbox doctor --table " + shell.Word(t.Name)}, true
}

func dead(_ *Report, d *Destination) (Finding, bool) {
	n := d.Dead.New
	text := fmt.Sprintf("%v new dead letters", n)
	if n.N == 1 {
		text = "1 new dead letter"
	}
	name := " --destination " + shell.Word(d.Name)
	return Finding{State: StateDead, Since: d.Dead.Since, Cause: text + "; last error: " + cmp.Or(d.Dead.LastError, "unknown"),
		Advice: "cure the cause and have them delivered, or say that you know of them (" + d.deadCommand() + "ack" + name + ")",
		Next:   d.deadCommand() + "requeue" + name}, n.N > 0
}

// deadCommand returns the beginning of the commands for the destination's dead letters and blocked messages.
func (d *Destination) deadCommand() string {
	if d.Table != nil {
		return "outbox tables "
	}
	return "outbox dead "
}

// paused lists the operators' pauses, whatever state the destination is in.
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
			f.Next = "outbox resume " + c.Arguments()
		}
		f.Since = earliest(f.Since, c.Since)
		causes = append(causes, what+" "+describeControl(c))
	}
	if more := len(causes) - 3; more > 0 {
		causes = append(causes[:3], fmt.Sprintf("%d more, see: outbox controls", more))
	}
	f.State, f.Cause = StatePaused, strings.Join(causes, "; ")
	if len(causes) > 0 && d.Held.Messages.N > 0 {
		f.Cause += "; " + heldText(d)
	}
	f.Advice = "when the reason is gone"
	return f, len(causes) > 0
}

// describeControl names the actor of a control, its end and its reason.
func describeControl(c admin.Control) string {
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

// stuckBehind finds rows that no relay delivers while another program's transaction is open.
func stuckBehind(r *Report, d *Destination) (Finding, bool) {
	if !d.kept() || d.LagObjective <= 0 || d.pauseOf() != nil {
		return Finding{}, false
	}
	t := d.Table
	since := t.KeptSince
	if since.IsZero() { // the rows' age isn't known, and none has waited for longer than the transaction is open
		since = t.Behind.Since
	}
	f := Finding{State: StateLagging, Since: since.Add(d.LagObjective), Advice: t.Behind.advice(),
		Cause: fmt.Sprintf("%v rows of table %s wait", t.Kept, t.Name)}
	if t.Kept.N == 1 {
		f.Cause = fmt.Sprintf("1 row of table %s waits", t.Name)
	}
	if !t.KeptSince.IsZero() {
		f.Cause += fmt.Sprintf(", the oldest for %s,", printed.Span(r.At.Sub(t.KeptSince)))
	}
	if f.Cause += " for " + t.Behind.describe(r.At); t.Locked {
		f.Cause += ", which has locked them"
	} else {
		f.Cause += fmt.Sprintf(": strategy %s passes nothing that was written since, until it ends", t.Strategy)
	}
	return f, !since.IsZero() && r.At.Sub(since) > d.LagObjective
}
