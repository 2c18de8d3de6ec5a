package health

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/internal/printed"
	"github.com/pgoutbox/outbox/internal/shell"
)

// State is the answer to "is it flowing?" in one word.
type State string

const (
	StateIdle    State = "idle"     // all is delivered
	StateFlowing State = "flowing"  // messages are on their way
	StateUnknown State = "unknown"  // messages flow, but the database could not be looked at for a while
	StateAtRisk  State = "at_risk"  // messages flow, but something around them is wrong: a clock, an index, the log that is kept
	StateLagging State = "lagging"  // a message has waited for longer than the destination's objective
	StateBlocked State = "blocked"  // lanes wait for an operator; the others flow
	StateDead    State = "dead"     // there are dead letters that no operator has acknowledged
	StatePaused  State = "paused"   // a person has paused it, or a part of it
	StateFailing State = "failing"  // the broker answers no: to messages, or to all that goes to a topic
	StateStalled State = "stalled"  // the broker does not answer, or so much is set aside that nothing new is read
	StateBroken  State = "broken"   // the relay can't work with the database
	StateNoRelay State = "no_relay" // no relay delivers
	StateStopped State = "stopped"  // a relay gave up for good
)

// States lists all states, from the best to the worst.
func States() []State {
	return []State{StateIdle, StateFlowing, StateUnknown, StateAtRisk, StateLagging, StateBlocked, StateDead, StatePaused,
		StateFailing, StateStalled, StateBroken, StateNoRelay, StateStopped}
}

// Tone is how urgently a state needs a person.
type Tone string

const (
	Calm      Tone = "calm"
	Unknown   Tone = "unknown"
	Attention Tone = "attention" // somebody should look at it; what can flow does
	Alarm     Tone = "alarm"     // it does not flow
)

// Tone returns that of the state.
func (s State) Tone() Tone {
	switch {
	case s == StateIdle || s == StateFlowing:
		return Calm
	case s == StateUnknown:
		return Unknown
	case StateFailing.worseThan(s):
		return Attention
	}
	return Alarm
}

// OK reports whether all is well.
func (s State) OK() bool { return s.Tone() == Calm }

// Delivers reports whether messages flow, be it that some lanes don't, or late.
func (s State) Delivers() bool { return s.Tone() != Alarm }

// Word is the state as people read it.
func (s State) Word() string { return strings.ReplaceAll(string(s), "_", " ") }

func (s State) worseThan(t State) bool { return Compare(s, t) > 0 }

// Compare is negative if a is better than b.
func Compare(a, b State) int {
	return cmp.Compare(slices.Index(States(), a), slices.Index(States(), b))
}

// Finding is one statement about a destination: a state, its cause and what to do.
type Finding struct {
	State State `json:"state"`

	// Destination is empty if the finding is about none in particular.
	Destination string `json:"destination,omitempty"`

	// Since is when it began, as far as the database tells; zero if it doesn't.
	Since time.Time `json:"since,omitzero"`
	Cause string    `json:"cause,omitempty"`

	// Advice is what to do. Next is the command that does it, or helps with it, to be typed as it stands; it deletes
	// nothing, but where the advice says so.
	Advice string `json:"advice,omitempty"`
	Next   string `json:"next,omitempty"`

	// Halted means that nothing is delivered although nothing is at fault, as under a pause that was forgotten: it is
	// as urgent as an outage.
	Halted bool `json:"halted,omitempty"`
}

// Tone is that of the state, or Alarm where nothing flows.
func (f Finding) Tone() Tone {
	if f.Halted {
		return Alarm
	}
	return f.State.Tone()
}

// Verdict is the worst finding, and what else there is. Its JSON is a stable contract.
type Verdict struct {
	Finding

	// Also are the other findings that are not calm, worst first.
	Also []Finding `json:"also,omitempty"`

	// At is when the database was looked at.
	At time.Time `json:"at,omitzero"`
}

// verdictOf puts findings in order. otherwise is the verdict if there are none.
func verdictOf(at time.Time, findings []Finding, otherwise Finding) Verdict {
	if len(findings) == 0 {
		return Verdict{Finding: otherwise, At: at}
	}
	sorted := slices.SortedStableFunc(slices.Values(findings), func(a, b Finding) int { return Compare(b.State, a.State) })
	return Verdict{Finding: sorted[0], Also: sorted[1:], At: at}
}

// Tone is the most urgent one of the findings.
func (v Verdict) Tone() Tone {
	tone := v.Finding.Tone()
	for _, f := range v.Also {
		if f.Tone() == Alarm {
			tone = Alarm
		}
	}
	return tone
}

// Delivers reports whether messages flow, be it that some lanes don't, or late.
func (v Verdict) Delivers() bool { return v.Tone() != Alarm }

// Result returns the verdict as a monitoring system's result.
func (v Verdict) Result() Result { return v.Tone().result() }

// Sentence is the verdict in words, as everything prints it: state, since when, where, cause, and which other states
// there are.
func (v Verdict) Sentence() string {
	text := v.State.Word()
	if since := v.At.Sub(v.Since).Round(time.Second); !v.Since.IsZero() && since > 0 {
		text += " for " + printed.Span(since)
	}
	if v.Destination != "" && v.Cause != "" {
		text += ": " + v.Destination
	}
	if v.Cause != "" {
		text += ": " + v.Cause
	}
	for i, state := range v.others() {
		if text += ", "; i == 0 {
			text += "also "
		}
		text += state
	}
	return text
}

// others are the states of the other findings, with the other destinations that are in them.
func (v Verdict) others() (list []string) {
	for rest := v.Also; len(rest) > 0; {
		n := slices.IndexFunc(rest, func(f Finding) bool { return f.State != rest[0].State })
		if n < 0 {
			n = len(rest)
		}
		var names []string
		for _, f := range rest[:n] {
			if f.Destination != v.Destination {
				names = append(names, f.Destination)
			}
		}
		text := rest[0].State.Word()
		if more := len(names) - 3; more > 0 {
			names = append(names[:3], fmt.Sprintf("%d more", more))
		}
		if len(names) > 0 {
			text += " (" + strings.Join(names, ", ") + ")"
		}
		list, rest = append(list, text), rest[n:]
	}
	return list
}

// Words are the state and those of the other findings, for a table.
func (v Verdict) Words() string {
	words := []string{v.State.Word()}
	for _, f := range v.Also {
		if !slices.Contains(words, f.State.Word()) {
			words = append(words, f.State.Word())
		}
	}
	return strings.Join(words, ", ")
}

// Remedy returns what to do, in words and as a command; empty if nothing is to be done.
func (f Finding) Remedy() string {
	if f.Advice == "" || f.Next == "" {
		return f.Advice + f.Next
	}
	return f.Advice + ": " + f.Next
}

// String is the sentence and the remedy.
func (v Verdict) String() string {
	if v.Remedy() == "" {
		return v.Sentence()
	}
	return v.Sentence() + ". Next: " + v.Remedy()
}

// Causes are all findings, each cause once: Destination names those that have it.
func (v Verdict) Causes() (list []Finding) {
	for _, f := range append([]Finding{v.Finding}, v.Also...) {
		at := slices.IndexFunc(list, func(g Finding) bool { return f.Destination != "" && g.State == f.State && g.Cause == f.Cause })
		if at < 0 {
			list = append(list, f)
			continue
		}
		list[at].Destination += ", " + f.Destination
		list[at].Since = earliest(list[at].Since, f.Since)
	}
	return list
}

// OnDatabase is a command of outbox that names the database, as it must where there are several. A relay works on all.
func OnDatabase(command, name string) string {
	flag := " --database " + shell.Word(name)
	if name == "" || command == "outbox relay" || !strings.HasPrefix(command, "outbox ") || strings.HasSuffix(command, flag) {
		return command
	}
	return command + flag
}

// OnDatabase has the verdict's commands name the database, if name isn't "".
func (v *Verdict) OnDatabase(name string) {
	v.Next = OnDatabase(v.Next, name)
	for i := range v.Also {
		v.Also[i].Next = OnDatabase(v.Also[i].Next, name)
	}
}

// Result returns what the state alone means.
func (s State) Result() Result { return s.Tone().result() }

func (t Tone) result() Result {
	return map[Tone]Result{Calm: ResultOK, Unknown: ResultUnknown, Attention: ResultWarning, Alarm: ResultCritical}[t]
}

// earliest is the first of both times; zero is none.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// Result is a monitoring system's result; its numbers are those of Nagios' plugins.
type Result int

const (
	ResultOK Result = iota
	ResultWarning
	ResultCritical
	ResultUnknown
)

var resultWords = []string{"OK", "WARNING", "CRITICAL", "UNKNOWN"}

func (r Result) String() string { return resultWords[r] }

// MarshalText writes the word.
func (r Result) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads the word.
func (r *Result) UnmarshalText(text []byte) error {
	i := slices.Index(resultWords, string(text))
	if i < 0 {
		return fmt.Errorf("there is no result %q", text)
	}
	*r = Result(i)
	return nil
}

// Compare is negative if r is better than s. The order is that of what a person must know first.
func (r Result) Compare(s Result) int {
	order := []Result{ResultOK, ResultUnknown, ResultWarning, ResultCritical}
	return cmp.Compare(slices.Index(order, r), slices.Index(order, s))
}
