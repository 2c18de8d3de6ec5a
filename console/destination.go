package console

import (
	"slices"
	"strconv"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/sheet"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/internal/printed"
)

// destinationPage shows the state of one destination, its cause, and since when it lasts.
func (v *view) destinationPage() any {
	name := v.get("name")
	d := v.reported(name)
	if d == nil {
		return list{el("h1", "No destination ", foreign(name, 60)),
			blank("The database knows of no destination by this name. ", el("a", here(""), "All destinations"))}
	}
	history := v.options.History
	points, over, step := history.Last(name, v.now, 3600), "an hour ago", "seconds"
	if v.get("over") == "day" {
		points, over, step = history.Minutes(name, v.now, 1440), "a day ago", "minutes"
	}
	seconds := func(f float32) string { return measured(f) }
	charts := el("div.charts",
		chart{title: "Age of the oldest", unit: "that waits", objective: float32(d.LagObjective.Seconds()), spans: true,
			format: seconds, span: over,
			lines: []line{{hue(d.Verdict.State), "oldest", waited, false}}}.draw(points),
		chart{title: "Rate", unit: "messages a second", format: rate, span: over, lines: []line{
			{"none", "committed", func(p Point) float32 { return p.In }, true},
			{"ok", "delivered", func(p Point) float32 { return p.Out }, false}}}.draw(points),
		chart{title: "Insert to acknowledgement", unit: "by this relay, logarithmic", logarithmic: true, format: seconds,
			span: over, lines: []line{
				{"ok", "p50", func(p Point) float32 { return p.P50 }, false},
				{"none", "p95", func(p Point) float32 { return p.P95 }, false},
				{"late", "p99", func(p Point) float32 { return p.P99 }, false}}}.draw(points),
		chart{title: "Backlog", unit: "messages, pending and held",
			format: func(f float32) string { return printed.Number(int64(f)) }, span: over, lines: []line{
				{"ok", "waiting", func(p Point) float32 { return p.Pending }, true}}}.draw(points))
	choice := el("p.choice", "The last ", choose(over == "an hour ago", here("destination", "name", name), "hour"), " or ",
		choose(over != "an hour ago", here("destination", "name", name, "over", "day"), "day"), ", by ", step, ".")

	p := history.Latest(name, v.now)
	about := []any{"In", list{rate(p.In), " /s"}, "Out", list{rate(p.Out), " /s"}, "Pending", d.Pending.String(),
		"Oldest", oldest(v.report, d.Oldest), "p50 · p95 · p99", latencies(p),
		"Delivered", printed.Number(d.Delivered), "Held", v.linked(d.Held.Messages, here("keys", "destination", name)),
		"Blocked keys", v.linked(admin.Count{N: d.Held.Blocked}, here("keys", "destination", name, "blocked", "true")),
		"Dead letters", v.linked(d.Dead.Messages, deadOf(d))}
	if d.LagObjective > 0 {
		about = append(about, "May wait", printed.Span(d.LagObjective))
	}
	if d.Table != nil {
		about = append(about, "Table", list{foreign(d.Table.Name, 100), ", ", d.Table.Strategy})
	}
	if d.Slot != nil {
		about = append(about, "Replication slot", list{foreign(d.Slot.Name, 64), " ", d.Slot.Status, ", keeps ",
			printed.Bytes(d.Slot.Kept)})
	}
	if kept := v.segmentsKeptBy(name); len(kept) > 0 {
		about = append(about, "Segments kept by it",
			el("a", here("retention"), strconv.Itoa(len(kept)), " of ", strconv.Itoa(len(v.report.Segments))))
	}
	return list{
		el("p.crumb", el("a", here(""), "Destinations"), " / ", foreign(name, 100)),
		v.flash(),
		region("verdict", v.verdict(d.Verdict, false)),
		v.controls(d),
		region("facts", facts(about...)),
		region("charts", el("h2", "How it went"), choice, charts),
		region("groups", v.draw(verbs.DestinationParts(&health.Report{At: v.report.At, Destinations: []health.Destination{*d}}))),
	}
}

func choose(chosen bool, where address, text string) any {
	if chosen {
		return el("b", text)
	}
	return el("a", where, text)
}

func (v *view) segmentsKeptBy(destination string) (segments []health.Segment) {
	for _, s := range v.report.Segments {
		if slices.Contains(s.NeededBy, destination) {
			segments = append(segments, s)
		}
	}
	return segments
}

// controls shows a destination's pauses and rates, with buttons to change them.
func (v *view) controls(d *health.Destination) any {
	paused, throttled := false, false
	for _, c := range d.Controls {
		paused = paused || c.Rate == 0 && c.Topic == "" && c.Key == ""
		throttled = throttled || c.Rate > 0
	}
	return region("controls", el("p.buttons", when(!paused, v.button("pause", "Pause…", "destination", d.Name)),
		when(!throttled, v.button("throttle", "Throttle…", "destination", d.Name))),
		when(len(d.Controls) > 0, v.draw(sheet.Parts{verbs.ControlTable(d.Controls)})))
}
