package console

import (
	"slices"
	"strings"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/internal/printed"
)

// overview answers whether it flows: the verdict first, then the destinations, the worst on top.
func (v *view) overview() any {
	return list{
		v.flash(),
		region("verdict", v.verdict(v.report.Verdict, true)),
		v.panel(),
		region("destinations", v.destinationTable()),
		region("relays", v.relayLine()),
		v.lastActions(),
	}
}

// destinationTable lists the destinations, the worst first.
func (v *view) destinationTable() any {
	if len(v.report.Destinations) == 0 {
		return list{el("h2", "Destinations"), blank("No relay has worked on this database yet. Start one: ", el("code", "outbox relay"))}
	}
	sorted := slices.Clone(v.report.Destinations)
	slices.SortStableFunc(sorted, func(a, b health.Destination) int { return worse(a.Verdict, b.Verdict) })
	var rows [][]any
	for i := range sorted {
		d := &sorted[i]
		p := v.options.History.Latest(d.Name, v.now)
		is := d.Verdict.State
		if is == health.StateIdle && p.Out > 0 { // between two looks, all may be delivered at each of them
			is = health.StateFlowing
		}
		rows = append(rows, []any{
			el("a.name", here("destination", "name", d.Name), foreign(d.Name, 60)),
			stateWhy(is, d.Verdict.Cause),
			spark(v.options.History.Last(d.Name, v.now, 600), d.LagObjective, hue(is)),
			list{rate(p.In), el("small", " /s")}, list{rate(p.Out), el("small", " /s")},
			d.Pending.String(), oldest(v.report, d.Oldest), latencies(p),
			v.linked(d.Held.Messages, here("keys", "destination", d.Name)), v.linked(d.Dead.Messages, deadOf(d)),
		})
	}
	return list{el("h2", "Destinations"), table("Destinations",
		[]column{{"Destination", ""}, {"State", "what"}, {"Oldest waiting, 10 min", "chart"}, {"In", "n"}, {"Out", "n"},
			{"Pending", "n"}, {"Oldest", "n"}, {"p50 · p95 · p99", "n"}, {"Held", "n"}, {"Dead", "n"}}, rows)}
}

// worse sorts the worst first. Idle and flowing rank the same, or rows would jump.
func worse(a, b health.Verdict) int {
	rank := func(v health.Verdict) health.State {
		if v.State == health.StateFlowing {
			return health.StateIdle
		}
		return v.State
	}
	return health.Compare(rank(b), rank(a))
}

func latencies(p Point) any {
	if unknown(p.P50) {
		return el("span.none", "–")
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
		return el("span.none", "0")
	}
	return el("a", where, n.String())
}

func (v *view) relayLine() any {
	if len(v.report.Relays) == 0 {
		return nil
	}
	var parts []any
	for i, r := range v.report.Relays {
		if i == 6 {
			parts = append(parts, el("a", here("relays"), printed.Many(len(v.report.Relays)-i, "more relay", "more relays")))
			break
		}
		if r.Live {
			parts = append(parts, el("span", el("a", here("relays"), foreign(r.Name, 40)), " live ", printed.Span(v.now.Sub(r.StartedAt))))
		} else {
			parts = append(parts, el("span.state.late", el("a", here("relays"), foreign(r.Name, 40)), " silent ",
				printed.Span(v.now.Sub(r.HeartbeatAt))))
		}
	}
	return el("p.line", el("b", "Relays "), list(parts))
}

// lastActions are the last things that people did.
func (v *view) lastActions() any {
	if v.ctx == nil || v.stale() {
		return nil
	}
	_, parts, err := ask[any](v, "audit", "limit", "5")
	if err != nil {
		return region("recent", el("h2", "What people did"), problem(err))
	}
	return region("recent", v.draw(parts[:1])) // without what leads on
}

// panel are the buttons of the program that the console is part of.
func (v *view) panel() any {
	p := v.options.Panel
	if p == nil {
		return nil
	}
	var buttons []any
	for _, b := range p.Buttons {
		buttons = append(buttons, el("form", here("press"), attr("method", "post"), attr("data-quiet", ""),
			el("input", attr("type", "hidden"), attr("name", "button"), attr("value", b.Name)), el("button", attr("type", "submit"),
				attr("title", b.Help), b.Label)))
	}
	return el("section.panel", attr("aria-label", p.Title), el("h2", p.Title), el("div.buttons", buttons...))
}

// deadOf leads to a destination's dead letters.
func deadOf(d *health.Destination) address {
	if d.Table != nil {
		return here("rows", "destination", d.Name)
	}
	return here("dead", "destination", d.Name)
}
