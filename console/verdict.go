package console

import (
	"strings"
	"time"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/internal/printed"
)

// verdict is a verdict as the head of a page: the sentence that everything prints, with the other findings as a list.
func (v *view) verdict(verdict health.Verdict, links bool) *element {
	sentence := health.Verdict{Finding: verdict.Finding, At: verdict.At}.Sentence()
	parts := []any{heading(verdict.State, sentence)}
	if verdict.State.OK() && len(v.report.Destinations) > 0 && links {
		parts = append(parts, el("p.lead", v.throughput(), "."))
	}
	if verdict.Advice != "" {
		parts = append(parts, el("p.lead", foreign(verdict.Advice, 600), "."))
	}
	var buttons []any
	if verdict.Next != "" {
		buttons = append(buttons, command(verdict.Next))
	}
	if verb, params, ok := verbs.Parse(verdict.Next); ok && verb.Role == verbs.Operator {
		buttons = append(buttons, v.actionLink(verb, params, "a.button.first", verb.Label()+"…"))
	}
	if verdict.Destination != "" && links {
		buttons = append(buttons, el("a.button", here("destination", "name", verdict.Destination), "Show ",
			foreign(verdict.Destination, 60)))
	}
	if len(buttons) > 0 {
		parts = append(parts, el("div.buttons", buttons...))
	}
	var also []any
	causes := verdict.Causes()[1:]
	for _, f := range causes {
		if len(also) == 6 {
			also = append(also, el("li", printed.Many(len(causes)-6, "more finding", "more findings")))
			break
		}
		where := any(el("span", foreign(f.Destination, 120)))
		if f.Destination != "" && !strings.Contains(f.Destination, ", ") { // several, or none in particular
			where = el("a", here("destination", "name", f.Destination), foreign(f.Destination, 60))
		}
		also = append(also, el("li", state(f.State), " ", where, " ", el("span", foreign(f.Cause, 300))))
	}
	if len(also) > 0 {
		parts = append(parts, el("ul.also", append([]any{attr("aria-label", "Also")}, also...)...))
	}
	return el("div.verdict."+hue(verdict.State), parts...)
}

// heading is a verdict's sentence as a page has it.
func heading(s health.State, sentence string) *element {
	head := []any{glyph(s), el("span", foreign(sentence, 600))}
	if len(sentence) > 100 {
		head = append(head, attr("class", "long"))
	}
	return el("h1", head...)
}

// stateWhy is a state, with the cause if something is wrong.
func stateWhy(s health.State, cause string) list {
	what := list{state(s)}
	if cause != "" && !s.OK() {
		what = append(what, el("div.cause", foreign(cause, 160)))
	}
	return what
}

// throughput sums up what flows.
func (v *view) throughput() string {
	var out float32
	for _, d := range v.report.Destinations {
		if p := v.options.History.Latest(d.Name, v.now); !unknown(p.Out) {
			out += p.Out
		}
	}
	return printed.Many(len(v.report.Destinations), "destination", "destinations") + ", " + rate(out) + " messages a second"
}

// totals are sums over a database's destinations.
type totals struct {
	pending, held, dead admin.Count
	oldest              time.Time
}

func totalsOf(r *health.Report) (t totals) {
	add := func(sum *admin.Count, n admin.Count) { sum.N, sum.Estimated = sum.N+n.N, sum.Estimated || n.Estimated }
	for i := range r.Destinations {
		d := &r.Destinations[i]
		add(&t.pending, d.Pending)
		add(&t.held, d.Held.Messages)
		add(&t.dead, d.Dead.Messages)
		if !d.Oldest.IsZero() && (t.oldest.IsZero() || d.Oldest.Before(t.oldest)) {
			t.oldest = d.Oldest
		}
	}
	return t
}
