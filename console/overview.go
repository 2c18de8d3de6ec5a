package console

import (
	"slices"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/internal/printed"
)

// overview answers whether it flows: the verdict first, then the destinations, the worst on top.
func (v *view) overview() any {
	return list{
		v.said(),
		region("verdict", v.verdict(v.report.Verdict, true)),
		v.panel(),
		region("destinations", v.table()),
		region("relays", v.relayLine()),
		v.recent(),
	}
}

// said tells what an action has done, on the page that it leads back to.
func (v *view) said() any {
	if v.get("_did") == "" {
		return nil
	}
	said := list{foreign(v.get("_did"), 300)}
	if job := v.get("_job"); job != "" {
		of := append(v.given("destination"), "id", job)
		said = append(said, " ", v.button("jobs undo", "Undo…", of...), " ", h("a", here("ask-jobs-show", "id", job), "Progress"))
	}
	return h("p.said", append([]any{at("role", "status")}, said...)...)
}

// verdict is a verdict as the head of a page: the sentence that everything prints, with the other findings as a list.
func (v *view) verdict(verdict health.Verdict, links bool) *element {
	sentence := health.Verdict{Finding: verdict.Finding, At: verdict.At}.Sentence()
	parts := []any{heading(verdict.State, sentence)}
	if verdict.State.OK() && len(v.report.Destinations) > 0 && links {
		parts = append(parts, h("p.lead", v.calm(), "."))
	}
	if verdict.Advice != "" {
		parts = append(parts, h("p.lead", foreign(verdict.Advice, 600), "."))
	}
	var buttons []any
	if verdict.Next != "" {
		buttons = append(buttons, command(verdict.Next))
	}
	if verb, params, ok := verbs.Parse(verdict.Next); ok && verb.Role == verbs.Operator {
		buttons = append(buttons, v.does(verb, params, "a.button.first", label(verb)+"…"))
	}
	if verdict.Destination != "" && links {
		buttons = append(buttons, h("a.button", here("destination", "name", verdict.Destination), "Show ",
			foreign(verdict.Destination, 60)))
	}
	if len(buttons) > 0 {
		parts = append(parts, h("div.buttons", buttons...))
	}
	var also []any
	causes := verdict.Causes()[1:]
	for _, f := range causes {
		if len(also) == 6 {
			also = append(also, h("li", printed.Many(len(causes)-6, "more finding", "more findings")))
			break
		}
		where := any(h("span", foreign(f.Destination, 120)))
		if f.Destination != "" && !strings.Contains(f.Destination, ", ") { // several, or none in particular
			where = h("a", here("destination", "name", f.Destination), foreign(f.Destination, 60))
		}
		also = append(also, h("li", state(f.State), " ", where, " ", h("span", foreign(f.Cause, 300))))
	}
	if len(also) > 0 {
		parts = append(parts, h("ul.also", append([]any{at("aria-label", "Also")}, also...)...))
	}
	return h("div.verdict."+hue(verdict.State), parts...)
}

// heading is a verdict's sentence as a page has it.
func heading(s health.State, sentence string) *element {
	head := []any{glyph(s), h("span", foreign(sentence, 600))}
	if len(sentence) > 100 {
		head = append(head, at("class", "long"))
	}
	return h("h1", head...)
}

// stateWhy is a state, with the cause if something is wrong.
func stateWhy(s health.State, cause string) list {
	what := list{state(s)}
	if cause != "" && !s.OK() {
		what = append(what, h("div.cause", foreign(cause, 160)))
	}
	return what
}

// calm sums up what flows.
func (v *view) calm() string {
	var out float32
	for _, d := range v.report.Destinations {
		if p := v.console.options.History.Latest(d.Name, v.now); !unknown(p.Out) {
			out += p.Out
		}
	}
	return printed.Many(len(v.report.Destinations), "destination", "destinations") + ", " + rate(out) + " messages a second"
}

// table lists the destinations, the worst first.
func (v *view) table() any {
	if len(v.report.Destinations) == 0 {
		return list{h("h2", "Destinations"), blank("No relay has worked on this database yet. Start one: ", h("code", "outbox relay"))}
	}
	sorted := slices.Clone(v.report.Destinations)
	slices.SortStableFunc(sorted, func(a, b health.Destination) int { return worse(a.Verdict, b.Verdict) })
	var rows [][]any
	for i := range sorted {
		d := &sorted[i]
		p := v.console.options.History.Latest(d.Name, v.now)
		is := d.Verdict.State
		if is == health.StateIdle && p.Out > 0 { // between two looks, all may be delivered at each of them
			is = health.StateFlowing
		}
		rows = append(rows, []any{
			h("a.name", here("destination", "name", d.Name), foreign(d.Name, 60)),
			stateWhy(is, d.Verdict.Cause),
			spark(v.console.options.History.Last(d.Name, v.now, 600), d.LagObjective, hue(is)),
			list{rate(p.In), h("small", " /s")}, list{rate(p.Out), h("small", " /s")},
			d.Pending.String(), oldest(v.report, d.Oldest), latencies(p),
			v.linked(d.Held.Messages, here("keys", "destination", d.Name)), v.linked(d.Dead.Messages, deadOf(d)),
		})
	}
	return list{h("h2", "Destinations"), table("Destinations",
		[]column{{"Destination", ""}, {"State", "what"}, {"Oldest waiting, 10 min", "chart"}, {"In", "n"}, {"Out", "n"},
			{"Pending", "n"}, {"Oldest", "n"}, {"p50 · p95 · p99", "n"}, {"Held", "n"}, {"Dead", "n"}}, rows)}
}

// worse sorts the worst first. What idles is beside what flows, so that rows don't jump.
func worse(a, b health.Verdict) int {
	rank := func(v health.Verdict) health.State {
		if v.State == health.StateFlowing {
			return health.StateIdle
		}
		return v.State
	}
	return health.Compare(rank(b), rank(a))
}

// oldest is how long what was written at a time has waited when the report was made.
func oldest(r *health.Report, written time.Time) any {
	if written.IsZero() {
		return h("span.none", "–")
	}
	return moment(written, printed.Span(r.At.Sub(written)))
}

func latencies(p Point) any {
	if unknown(p.P50) {
		return h("span.none", "–")
	}
	texts := []string{measured(p.P50), measured(p.P95), measured(p.P99)}
	for i := range texts[:2] { // a unit that all have stands once
		_, unit, _ := strings.Cut(texts[2], " ")
		if number, ok := strings.CutSuffix(texts[i], " "+unit); ok && !strings.Contains(number, " ") && !strings.HasPrefix(number, "<") {
			texts[i] = number
		}
	}
	return strings.Join(texts, " · ")
}

// linked is a number that leads to what it counts.
func (v *view) linked(n admin.Count, where address) any {
	if n.N == 0 {
		return h("span.none", "0")
	}
	return h("a", where, n.String())
}

func (v *view) relayLine() any {
	if len(v.report.Relays) == 0 {
		return nil
	}
	var parts []any
	for i, r := range v.report.Relays {
		if i == 6 {
			parts = append(parts, h("a", here("relays"), printed.Many(len(v.report.Relays)-i, "more relay", "more relays")))
			break
		}
		if r.Live {
			parts = append(parts, h("span", h("a", here("relays"), foreign(r.Name, 40)), " live ", printed.Span(v.now.Sub(r.StartedAt))))
		} else {
			parts = append(parts, h("span.state.late", h("a", here("relays"), foreign(r.Name, 40)), " silent ",
				printed.Span(v.now.Sub(r.HeartbeatAt))))
		}
	}
	return h("p.line", h("b", "Relays "), list(parts))
}

// recent are the last things that people did.
func (v *view) recent() any {
	if v.ctx == nil || v.stale() {
		return nil
	}
	entries, err := ask[[]admin.AuditEntry](v, "audit", "limit", "5")
	if err != nil {
		return region("recent", h("h2", "Done by people"), problem(err))
	}
	if len(entries) == 0 {
		return region("recent", h("h2", "Done by people"), blank("Nothing yet."))
	}
	return region("recent", h("h2", "Done by people"), v.entries(entries))
}

// panel are the buttons of the program that the console is part of.
func (v *view) panel() any {
	p := v.console.options.Panel
	if p == nil {
		return nil
	}
	var buttons []any
	for _, b := range p.Buttons {
		buttons = append(buttons, h("form", here("press"), at("method", "post"), at("data-quiet", ""),
			h("input", at("type", "hidden"), at("name", "button"), at("value", b.Name)), h("button", at("type", "submit"),
				at("title", b.Help), b.Label)))
	}
	return h("section.panel", at("aria-label", p.Title), h("h2", p.Title), h("div.buttons", buttons...))
}
