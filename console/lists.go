package console

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/find"
	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/jobs"
	"github.com/pgoutbox/outbox/internal/printed"
)

// destination shows the state of one destination, its cause, and since when it lasts.
func (v *view) destination() any {
	name := v.get("name")
	i := slices.IndexFunc(v.report.Destinations, func(d health.Destination) bool { return d.Name == name })
	if i < 0 {
		return list{h("h1", "No destination ", foreign(name, 60)),
			blank("The database knows of no destination by this name. ", h("a", here(""), "All destinations"))}
	}
	d := &v.report.Destinations[i]
	history := v.console.options.History
	points, over, step := history.Last(name, v.now, 3600), "an hour ago", "seconds"
	if v.get("over") == "day" {
		points, over, step = history.Minutes(name, v.now, 1440), "a day ago", "minutes"
	}
	seconds := func(f float32) string { return measured(f) }
	charts := h("div.charts",
		chart{title: "Age of the oldest", unit: "that waits", objective: float32(d.LagObjective.Seconds()), spans: true,
			format: seconds, span: over,
			lines: []line{{hue(d.Verdict.State), "oldest", age, false}}}.draw(points),
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
	choice := h("p.choice", "The last ", choose(over == "an hour ago", here("destination", "name", name), "hour"), " or ",
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
	if kept := v.keptBy(name); len(kept) > 0 {
		about = append(about, "Segments kept by it",
			h("a", here("retention"), strconv.Itoa(len(kept)), " of ", strconv.Itoa(len(v.report.Segments))))
	}
	return list{
		h("p.crumb", h("a", here(""), "Destinations"), " / ", foreign(name, 100)),
		v.said(),
		region("verdict", v.verdict(d.Verdict, false)),
		v.controls(d),
		region("facts", facts(about...)),
		region("charts", h("h2", "How it went"), choice, charts),
		region("errors", v.errors(d)),
		region("groups", h("h2", "Shard groups"), v.groups(d)),
	}
}

func choose(chosen bool, where address, text string) any {
	if chosen {
		return h("b", text)
	}
	return h("a", where, text)
}

func (v *view) keptBy(destination string) (segments []health.Segment) {
	for _, s := range v.report.Segments {
		if slices.Contains(s.NeededBy, destination) {
			segments = append(segments, s)
		}
	}
	return segments
}

// controls shows a destination's pauses and rates, with buttons to change them.
func (v *view) controls(d *health.Destination) any {
	var rows [][]any
	paused, throttled := false, false
	for _, c := range d.Controls {
		what := "paused"
		end := v.button("resume", "Resume", "destination", c.Destination, "topic", c.Topic, "key", c.Key)
		if c.Rate > 0 {
			what, throttled = fmt.Sprintf("at most %v messages a second", c.Rate), true
			end = v.button("throttle", "End it", "destination", c.Destination, "rate", "0")
		}
		paused = paused || c.Rate == 0 && c.Topic == "" && c.Key == ""
		until := any("somebody ends it")
		if !c.Until.IsZero() {
			until = list{clock(c.Until), " UTC, ", ago(v.now, c.Until)}
		}
		rows = append(rows, []any{foreign(c.Target.String(), 120), what, foreign(c.Actor, 60), until,
			foreign(c.Reason, 200), v.actions(list{end})})
	}
	var buttons []any
	if !paused {
		buttons = append(buttons, v.button("pause", "Pause…", "destination", d.Name))
	}
	if !throttled {
		buttons = append(buttons, v.button("throttle", "Throttle…", "destination", d.Name))
	}
	return region("controls", h("p.buttons", buttons...), when(len(rows) > 0, h("h2", "Asked of it"),
		table("Asked of it", []column{{"What", ""}, {"Asked", ""}, {"By", ""}, {"Until", ""}, {"Why", "wide"}, {"Actions", "acts"}}, rows)))
}

// errors shows the last error of each part of the destination.
func (v *view) errors(d *health.Destination) any {
	var rows [][]any
	add := func(where string, text string, at any) {
		if text != "" {
			rows = append(rows, []any{where, h("span.error", foreign(text, 600)), at})
		}
	}
	for _, g := range d.Groups {
		if g.Recovered() {
			continue
		}
		add("relay, shard group "+strconv.Itoa(g.Group), g.LastError, ago(v.now, g.LastErrorAt))
	}
	add("held keys", d.Held.LastError, h("span", "the newest"))
	add("dead letters", d.Dead.LastError, ago(v.now, d.Dead.Newest))
	if len(rows) == 0 {
		return list{h("h2", "Last errors"), blank("None.")}
	}
	return list{h("h2", "Last errors"), table("Last errors", []column{{"Of", ""}, {"Error", "wide"}, {"When", "n"}}, rows)}
}

func (v *view) groups(d *health.Destination) any {
	if len(d.Groups) == 0 {
		return blank("No relay has read for it yet.")
	}
	var rows [][]any
	for _, g := range d.Groups {
		lease := any(h("span.state.late", "none"))
		if g.Live {
			lease = list{"live", when(!g.LeaseUntil.IsZero(), ", ",
				moment(g.LeaseUntil, printed.Span(g.LeaseUntil.Sub(v.report.At))+" left"))}
		}
		rows = append(rows, []any{fmt.Sprintf("%d of %d", g.Group+1, max(g.Groups, 1)), foreign(g.Owner, 60), lease,
			g.State, ago(v.now, g.StateSince),
			strconv.FormatInt(g.Epoch, 10), g.Pending.String()})
	}
	return table("Shard groups", []column{{"Group", ""}, {"Relay", ""}, {"Lease", ""}, {"State", ""}, {"For", ""},
		{"Epoch", "n"}, {"Pending", "n"}}, rows)
}

// deadOf leads to a destination's dead letters.
func deadOf(d *health.Destination) address {
	if d.Table != nil {
		return here("rows", "destination", d.Name)
	}
	return here("dead", "destination", d.Name)
}

// rows lists the dead letters of a destination that reads a table of its own.
func (v *view) rows() any {
	name := v.get("destination")
	head := list{v.said(), h("h1", "Dead letters of ", foreign(name, 60)), h("p.buttons",
		v.button("tables requeue", "Requeue all…", "destination", name), v.button("tables ack", "Acknowledge all…", "destination", name))}
	found, err := ask[[]jobs.DeadRow](v, "tables dead", "destination", name)
	if err != nil {
		return append(head, problem(err))
	}
	if len(found) == 0 {
		return append(head, blank("Its table has no dead letters."))
	}
	var rows [][]any
	for _, d := range found {
		rows = append(rows, []any{h("span.name", foreign(d.ID, 60)), foreign(d.MessageID, 60), foreign(d.EventType, 60),
			h("span.error", foreign(d.Error, 160)), printed.Number(d.Attempts), ago(v.now, d.DeadAt),
			v.actions(list{v.button("tables requeue", "Requeue…", "destination", name, "ids", d.ID)})})
	}
	return append(head, h("p.lead", "In table ", foreign(found[0].Table, 100), ", the newest first, at most 100."),
		region("dead", table("Dead letters", []column{{"Row", ""}, {"Message", ""}, {"Type", ""}, {"Error", "wide"},
			{"Attempts", "n"}, {"Died", "n"}, {"Actions", "acts"}}, rows)))
}

// dead lists the groups of dead letters.
func (v *view) dead() any {
	pairs := v.given("destination", "topic", "cause", "new")
	acts := func(extra ...string) list {
		all := append(slices.Clone(pairs), extra...)
		return list{v.button("dead requeue", "Requeue…", all...), v.button("dead ack", "Acknowledge…", all...),
			v.button("dead discard", "Discard…", all...)}
	}
	head := list{v.said(), h("h1", "Dead letters"),
		v.filter("dead", field{"destination", "Destination", v.destinations()}, field{"topic", "Topic", nil},
			field{"cause", "Cause", []string{"refused", "exhausted", "invalid"}}, field{"new", "New only", []string{"true"}})}
	found, err := ask[find.DeadGroups](v, "dead group", pairs...)
	if err != nil {
		return append(head, problem(err))
	}
	if len(found.Groups) == 0 {
		text := "No dead letters: all that was committed has been delivered, or is on its way."
		if len(pairs) > 0 {
			return append(head, blank("No dead letter is like that. ", h("a", here("dead"), "Show all")))
		}
		return append(head, blank(text))
	}
	var rows [][]any
	for _, g := range found.Groups {
		of := []string{"group", g.Fingerprint, "destination", g.Destination, "topic", g.Topic}
		again := any(h("span.none", "–"))
		if g.Again > 0 {
			again = list{printed.Number(g.Again), " failed again"}
		}
		rows = append(rows, []any{
			list{h("span.state.late", glyph(health.StateDead), " ", h("b", g.Reason)),
				h("div.error", h("a", here("letters", of...), foreign(g.Error, 240)))},
			list{foreign(g.Topic, 80), " → ", foreign(g.Destination,
				60)}, printed.Number(g.Messages), printed.Number(g.New), again, ago(v.now, g.First), ago(v.now, g.Last),
			v.actions(list{v.button("dead requeue", "Requeue…", of...), v.button("dead ack", "Acknowledge…", of...),
				v.button("dead discard", "Discard…", of...)}),
		})
	}
	total := printed.Many(found.Looked, "message", "messages")
	if found.Partial {
		total = "the first " + total
	}
	summary := h("p.lead", printed.Many(len(found.Groups), "group", "groups"), ", ", total, ".")
	var all any
	if len(pairs) > 0 {
		all = h("p.buttons", "All that is like this: ", acts())
	} else {
		all = h("p.buttons", "All dead letters: ", acts("all", "true"))
	}
	return append(head, region("dead", summary, table("Groups of dead letters",
		[]column{{"Cause", "wide"}, {"Topic → destination", ""}, {"Messages", "n"}, {"New", "n"}, {"Again", ""},
			{"First", "n"}, {"Last", "n"}, {"Actions", "acts"}}, rows)), when(v.operates(), all))
}

// actions is a cell of buttons; empty for a user who may not act.
func (v *view) actions(buttons list) any { return h("span.buttons", buttons) }

// given returns the pairs of the query with the given names.
func (v *view) given(names ...string) (pairs []string) {
	for _, n := range names {
		if value := v.get(n); value != "" {
			pairs = append(pairs, n, value)
		}
	}
	return pairs
}

// letters lists the dead letters of a group or filter.
func (v *view) letters() any {
	pairs := v.given("destination", "topic", "cause", "key", "group", "new", "blocked")
	letters, err := ask[[]find.DeadLetter](v, "dead ls", append(slices.Clone(pairs), append(v.given("after"), "limit", "50")...)...)
	head := list{h("p.crumb", h("a", here("dead"), "Dead letters"), " / letters"), v.said(), h("h1", "Dead letters, one by one"),
		h("p.buttons", v.button("dead requeue", "Requeue all of these…", pairs...),
			v.button("dead discard", "Discard all of these…", pairs...))}
	if err != nil {
		return append(head, problem(err))
	}
	if len(letters) == 0 {
		return append(head, blank("None is left here. ", h("a", here("dead"), "All groups")))
	}
	var rows [][]any
	for _, d := range letters {
		tick := h("label.tick", h("input", at("type", "checkbox"), at("name", "ids"), at("value", d.MessageID.String()),
			at("aria-label", "Select "+d.MessageID.String())))
		rows = append(rows, []any{when(v.operates(), tick),
			h("a", here("letter", "id", d.MessageID.String(), "destination", d.Destination),
				at("title", d.MessageID.String()), short(d.MessageID.String())),
			list{foreign(d.Topic, 60), " → ", foreign(d.Destination, 60)}, foreign(d.Key, 60), h("span.error",
				foreign(d.Error, 160)), strconv.Itoa(d.Attempts), ago(v.now, d.At)})
	}
	last := letters[len(letters)-1]
	next := fmt.Sprintf("%s:%d:%s", last.Destination, last.Position, last.MessageID)
	letterTable := table("Dead letters", []column{{"Select", "tick"}, {"Message", ""}, {"Topic → destination", ""},
		{"Key", ""}, {"Error", "wide"}, {"Attempts", "n"}, {"Died", "n"}}, rows)
	selected := any(letterTable)
	if v.operates() {
		selected = h("form", here("do-dead-requeue"), at("method", "get"), hidden("_back", "letters?"+v.query.Encode()),
			when(v.get("blocked") != "", hidden("blocked", "true")),
			when(v.get("destination") != "", hidden("destination", v.get("destination"))), letterTable, h("p.buttons",
				"Those that are ticked: ",
				h("button", at("type", "submit"), "Requeue…"), h("button", here("do-dead-ack"), at("type", "submit"), "Acknowledge…"),
				h("button", here("do-dead-discard"), at("type", "submit"), "Discard…")))
	}
	return append(head, selected, when(len(letters) == 50,
		h("p.more", h("a.button", here("letters", append(pairs, "after", next)...), "The next 50"))))
}

// letter shows one dead letter in full.
func (v *view) letter() any {
	id := v.get("id")
	pairs := append([]string{"ids", id}, v.given("destination", "blocked")...)
	asked := pairs
	if v.may("dead show", append(slices.Clone(pairs), "payload", "true")...) {
		asked = append(slices.Clone(pairs), "payload", "true")
	}
	head := list{h("p.crumb", h("a", here("dead"), "Dead letters"), " / ", foreign(id, 60)), v.said()}
	letters, err := ask[[]find.DeadLetter](v, "dead show", asked...)
	if err != nil {
		return append(head, h("h1", "Dead letter"), problem(err))
	}
	parts := head
	for _, d := range letters {
		life := h("ol.life",
			h("li", clock(d.CreatedAt), h("b", "written"),
				h("span", "topic ", foreign(d.Topic, 100), when(d.Key != "", ", key ", foreign(d.Key, 200)))),
			h("li.late", clock(d.At), h("b", d.Reason),
				h("span", printed.Many(d.Attempts, "attempt", "attempts"), ": ", foreign(d.Error, 2000))))
		if d.Deaths > 1 {
			life.parts = append(life.parts, h("li.late", h("span"), h("b", "again"),
				h("span", "died "+printed.Many(d.Deaths, "time", "times"))))
		}
		if !d.AcknowledgedAt.IsZero() {
			life.parts = append(life.parts, h("li", clock(d.AcknowledgedAt), h("b", "acknowledged"),
				h("span", "by ", foreign(d.AcknowledgedBy, 80))))
		}
		parts = append(parts, h("h1", glyph(health.StateDead), " ", foreign(d.Topic, 100), " → ", foreign(d.Destination, 60)),
			h("p.buttons", v.button("dead requeue", "Requeue…", pairs...), v.button("dead ack", "Acknowledge…", pairs...),
				v.button("dead discard", "Discard…", pairs...),
				when(v.get("blocked") == "", v.button("dead edit", "Edit…", "message", d.MessageID.String(),
					"destination", d.Destination))),
			changes(d), life, facts("Message", h("a", here("message", "id", d.MessageID.String()),
				h("code", d.MessageID.String())), "Position", strconv.FormatInt(d.Position, 10),
				"Aggregate", foreign(strings.TrimSpace(d.AggregateType+" "+d.AggregateID), 200),
				"Event", foreign(d.EventType, 100), "Content", foreign(d.ContentType, 100), "Group",
				h("a", here("letters", "group", d.Fingerprint), foreign(d.Fingerprint, 40))),
			h("h2", "Headers"), h("pre", foreign(string(d.Headers), 20_000)), v.payload(d.Payload))
	}
	return parts
}

// changes shows what edits have changed in a letter; nothing if it was never edited.
func changes(d find.DeadLetter) any {
	if d.Original == nil {
		return nil
	}
	var rows [][]any
	for _, c := range d.Changes() {
		rows = append(rows, []any{foreign(c.Field, 200), h("del", foreign(c.Before, 4000)), h("ins", foreign(c.After, 4000))})
	}
	if len(rows) == 0 {
		return h("p", "It was edited; what you may see of it is as it was written.")
	}
	return table("What was edited", []column{{"Field", ""}, {"As written", "wide"}, {"As it is now", "wide"}}, rows)
}

// payload is one as text, up to 64 kB.
func (v *view) payload(payload []byte) any {
	if payload == nil {
		return list{h("h2", "Payload"), blank("Operators see it.")}
	}
	return list{h("h2", "Payload, ", printed.Bytes(int64(len(payload)))), h("pre", printable(payload, 64<<10))}
}

// printable keeps the lines of a text.
func printable(text []byte, most int) string {
	lines := strings.Split(string(text[:min(len(text), most)]), "\n")
	for i := range lines {
		lines[i] = foreign(strings.ReplaceAll(lines[i], "\t", "    "), most)
	}
	return strings.Join(lines, "\n")
}

// keys lists the keys that have holds.
func (v *view) keys() any {
	pairs := v.given("destination", "key", "blocked")
	head := list{v.said(), h("h1", "Keys that wait"),
		v.filter("keys", field{"destination", "Destination", v.destinations()}, field{"key", "Key", nil},
			field{"blocked", "Blocked only", []string{"true"}})}
	lanes, err := ask[[]find.HeldLane](v, "holds", append(slices.Clone(pairs), append(v.given("after"), "limit", "50")...)...)
	if err != nil {
		return append(head, problem(err))
	}
	if len(lanes) == 0 {
		if len(pairs) > 0 || v.get("after") != "" {
			return append(head, blank("No key that waits is like that. ", h("a", here("keys"), "Show all")))
		}
		return append(head, blank("No key waits: nothing is retried, delayed, paused or blocked."))
	}
	var rows [][]any
	for _, l := range lanes {
		due, why := list{"tried again ", ago(v.now, l.Due)}, any(h("span.error", foreign(l.Error, 200)))
		acts := list{v.button("pause", "Pause…", "destination", l.Destination, "key", l.Lane)}
		if l.Blocked {
			due = list{state(health.StateBlocked)}
			of := []string{"blocked", "true", "ids", l.MessageID.String(), "destination", l.Destination}
			acts = list{v.button("dead requeue", "Try again…", of...), v.button("dead discard", "Discard…", of...)}
		} else if l.Error == "" {
			why = "paused, or not yet to be delivered"
		} else {
			acts = append(list{v.button("retry", "Try now…", "destination", l.Destination, "key", l.Lane)}, acts...)
		}
		lane := any(foreign(l.Lane, 80))
		if !l.MessageID.IsZero() { // the first that waits
			lane = h("a", here("message", "id", l.MessageID.String()), lane)
		}
		rows = append(rows, []any{lane, list{foreign(l.Topic, 60), " → ", foreign(l.Destination, 60)},
			list{printed.Number(l.Messages.N), when(l.Messages.Estimated, " or more")}, due, ago(v.now, l.Since), why, v.actions(acts)})
	}
	last := lanes[len(lanes)-1]
	return append(head, region("keys", table("Keys that wait",
		[]column{{"Key", ""}, {"Topic → destination", ""}, {"Messages", "n"}, {"State", ""}, {"Since", "n"},
			{"Why", "wide"}, {"Actions", "acts"}}, rows)),
		when(len(lanes) == 50, h("p.more", h("a.button",
			here("keys", append(pairs, "after", last.Destination+"/"+last.Lane)...), "The next 50"))))
}

// relays lists the relays and what each of them delivers.
func (v *view) relays() any {
	if len(v.report.Relays) == 0 {
		return list{h("h1", "Relays"), region("relays",
			blank("No relay has ever worked on this database. Start one: ", h("code", "outbox relay")))}
	}
	var rows [][]any
	for _, r := range v.report.Relays {
		is := h("span.state.ok", glyph(health.StateFlowing), " ", h("b", "live"))
		if !r.Live {
			is = h("span.state.late", glyph(health.StateNoRelay), " ", h("b", "silent"))
		}
		owns := list{}
		for i, o := range r.Owns {
			name, _, _ := strings.Cut(o, "/")
			if i > 0 {
				owns = append(owns, ", ")
			}
			owns = append(owns, h("a", here("destination", "name", name), foreign(o, 60)))
		}
		if len(owns) == 0 {
			owns = list{h("span.none", "stands by")}
		}
		rows = append(rows, []any{foreign(r.Name, 60), is, owns, foreign(r.Version, 60),
			list{foreign(r.Host, 60), " ", strconv.Itoa(r.PID)}, ago(v.now, r.StartedAt), ago(v.now, r.HeartbeatAt)})
	}
	return list{h("h1", "Relays"), region("relays",
		table("Relays", []column{{"Relay", ""}, {"State", ""}, {"Delivers to", ""}, {"Version", ""},
			{"Host and process", ""}, {"Started", "n"}, {"Heartbeat", "n"}}, rows))}
}

// retention shows the segments, and what keeps each from being emptied.
func (v *view) retention() any {
	head := list{h("h1", "Retention")}
	segments, err := ask[[]health.RetainedSegment](v, "retention")
	if err != nil {
		return append(head, problem(err))
	}
	var total, kept int64
	var rows [][]any
	for _, s := range segments {
		total += s.Bytes
		needed := list{}
		for i, name := range s.NeededBy {
			if i > 0 {
				needed = append(needed, ", ")
			}
			needed = append(needed, h("a", here("destination", "name", name), foreign(name, 60)))
		}
		if len(needed) > 0 {
			kept += s.Bytes
		} else {
			needed = list{h("span.none", "nobody")}
		}
		oldest := any(h("span.none", "–"))
		if !s.Oldest.IsZero() {
			oldest = ago(v.now, s.Oldest)
		}
		rows = append(rows, []any{h("code", s.Name), printed.Bytes(s.Bytes), admin.Count{N: s.Messages, Estimated: true}.String(),
			oldest, needed, s.Emptied()})
	}
	var open [][]any
	for _, o := range v.report.Open {
		who := strconv.Itoa(o.PID)
		if o.Prepared != "" {
			who = "prepared " + o.Prepared
		}
		open = append(open, []any{foreign(who, 80), foreign(strings.TrimSpace(o.User+" "+o.Application), 80),
			foreign(o.State, 40), ago(v.now, o.Since), h("code", foreign(o.Query, 200))})
	}
	var slots [][]any
	for _, d := range v.report.Destinations {
		if d.Slot != nil {
			slots = append(slots, []any{h("code", foreign(d.Slot.Name, 64)),
				h("a", here("destination", "name", d.Name), foreign(d.Name, 60)), d.Slot.Status, printed.Bytes(d.Slot.Kept)})
		}
	}
	body := []any{h("p.lead", "The outbox has ", printed.Bytes(total), ", of which ", printed.Bytes(kept), " are needed by somebody.")}
	if len(rows) == 0 {
		body = append(body, blank("There are no segments to see."))
	} else {
		body = append(body, table("Segments", []column{{"Segment", ""}, {"Size", "n"}, {"Messages", "n"}, {"Oldest", "n"},
			{"Needed by", ""}, {"Emptied", ""}}, rows))
	}
	body = append(body, h("h2", "Open transactions"))
	if len(open) == 0 {
		body = append(body, blank("None has been open for long."))
	} else {
		body = append(body, table("Open transactions",
			[]column{{"Process", ""}, {"User", ""}, {"State", ""}, {"Since", "n"}, {"Query", "wide"}}, open))
	}
	if len(slots) > 0 {
		body = append(body, h("h2", "Replication slots"),
			table("Replication slots", []column{{"Slot", ""}, {"Destination", ""}, {"Status", ""}, {"Keeps", "n"}}, slots))
	}
	return append(head, region("retention", body...))
}

// inbox shows whether the consumers keep up.
func (v *view) inbox() any {
	head := list{v.said(), h("h1", "Inbox")}
	found, err := ask[*health.Inbox](v, "inbox status")
	if err != nil {
		return append(head, problem(err))
	}
	var rows, tables [][]any
	for _, c := range found.Consumers {
		kind := "records"
		if c.Stored {
			kind = "stored inbox"
		}
		rows = append(rows, []any{foreign(c.Name, 80), kind, c.Keys.String(), c.Gaps.String(), c.Pending.String(),
			v.linked(c.Held, here("keys", "destination", "inbox:"+c.Name)),
			v.linked(c.Dead, here("dead", "destination", "inbox:"+c.Name))})
	}
	for _, t := range found.Tables {
		tables = append(tables, []any{h("code", t.Name), t.Role, printed.Bytes(t.Bytes)})
	}
	consumers := any(blank("No consumer has recorded anything in this database."))
	if len(rows) > 0 {
		consumers = table("Consumers", []column{{"Consumer", ""}, {"Kind", ""}, {"Keys", "n"}, {"Gaps", "n"},
			{"Pending", "n"}, {"Held", "n"}, {"Dead", "n"}}, rows)
	}
	return append(head, region("inbox", h("p.lead", "Records are kept for ", printed.Span(found.Window), " at least."), consumers,
		h("h2", "Tables"), table("Tables", []column{{"Table", ""}, {"Role", ""}, {"Size", "n"}}, tables)))
}

// audit lists the operators' changes.
func (v *view) audit() any {
	pairs := v.given("destination", "by", "verb")
	head := list{h("h1", "Audit"), v.filter("audit", field{"by", "By", nil}, field{"verb", "Verb", nil},
		field{"destination", "Destination", v.destinations()})}
	entries, err := ask[[]admin.AuditEntry](v, "audit", append(slices.Clone(pairs), append(v.given("before"), "limit", "50")...)...)
	if err != nil {
		return append(head, problem(err))
	}
	if len(entries) == 0 {
		return append(head, blank("Nobody has done anything like that."))
	}
	return append(head, region("entries", v.entries(entries)),
		when(len(entries) == 50, h("p.more", h("a.button",
			here("audit", append(pairs, "before", strconv.FormatInt(entries[len(entries)-1].ID, 10))...), "Older ones"))))
}

func (v *view) entries(entries []admin.AuditEntry) any {
	var rows [][]any
	for _, e := range entries {
		where := any(h("span.none", "–"))
		if e.Destination != "" {
			where = h("a", here("destination", "name", e.Destination), foreign(e.Destination, 60))
		}
		rows = append(rows, []any{ago(v.now, e.At), foreign(e.Actor, 60), h("b", foreign(e.Verb, 40)), where,
			foreign(e.Reason, 200), h("code", foreign(compact(e.Detail), 200))})
	}
	return table("What people did", []column{{"When", ""}, {"Who", ""}, {"Verb", ""}, {"Destination", ""},
		{"Why", "wide"}, {"Details", "wide"}}, rows)
}

// compact is an object of JSON without quotation marks and its outer braces.
func compact(text json.RawMessage) string {
	return strings.TrimSuffix(strings.TrimPrefix(strings.ReplaceAll(string(text), `"`, ""), "{"), "}")
}

// doctor shows the findings of the verb of that name.
func (v *view) doctor() any {
	head := list{v.said(), h("h1", "Doctor"), h("p.buttons", v.button("canary", "Send a canary…"))}
	found, err := ask[*health.Examination](v, "doctor")
	if err != nil {
		return append(head, problem(err))
	}
	well := h("p.lead", "In order: ", strings.Join(found.Well, ", "), ".")
	if len(found.Symptoms) == 0 {
		return append(head, region("doctor", blank("Nothing needs you."), well))
	}
	var rows [][]any
	for _, s := range found.Symptoms {
		hues := map[health.Weight]*element{
			health.WeightFault:  h("span.state.bad", glyph(health.StateFailing), " ", h("b", "fault")),
			health.WeightRisk:   h("span.state.late", glyph(health.StateBlocked), " ", h("b", "risk")),
			health.WeightAdvice: h("span.state.none", glyph(health.StateIdle), " ", h("b", "advice")),
		}
		repair := list{foreign(s.Advice, 1000)}
		if s.Repair != "" { // to be copied; words are not
			repair = append(repair, command(s.Repair))
		}
		rows = append(rows, []any{list{hues[s.Weight]}, foreign(s.About, 100), foreign(s.Text, 1000), repair})
	}
	return append(head, region("doctor", h("p.lead", printed.Many(len(rows), "finding", "findings"), ", the worst first."),
		table("Findings", []column{{"Weight", ""}, {"About", ""}, {"What", "wide"}, {"Repair", "wide"}}, rows), well))
}

// help lists keys, states and words.
func (v *view) help() any {
	var keys [][]any
	for _, k := range [][2]string{{"j and k", "next and previous row"}, {"Enter", "open the row"},
		{"/", "to the first field"}, {"p", "pause live updates, and go on"}, {"y", "copy the command"},
		{"?", "this list"}, {"Esc", "close, or leave a field"}} {
		keys = append(keys, []any{h("kbd", k[0]), k[1]})
	}
	for _, n := range v.console.navigation() {
		keys = append(keys, []any{list{h("kbd", "g"), " ", h("kbd", n.key)}, n.title})
	}
	means := map[health.State]string{
		health.StateIdle: "all is delivered", health.StateFlowing: "messages are on their way",
		health.StateUnknown: "messages flow, but the database could not be looked at for a while",
		health.StateLagging: "a message has waited for longer than the destination's objective",
		health.StateBlocked: "keys wait for an operator; the others flow",
		health.StateAtRisk:  "messages flow, but a clock, an index or the log that a slot keeps is wrong",
		health.StateDead:    "there are dead letters that nobody has acknowledged",
		health.StatePaused:  "a person has paused it, or a part of it",
		health.StateFailing: "the broker answers no: to messages, or to all of a topic",
		health.StateStalled: "the broker does not answer, or too much is set aside",
		health.StateBroken:  "the relay can't work with the database", health.StateNoRelay: "no relay delivers",
		health.StateStopped: "a relay gave up for good",
	}
	var states [][]any
	for _, s := range health.States() {
		states = append(states, []any{state(s), means[s]})
	}
	return list{h("h1", "Help"), h("h2", "States, from the best to the worst"),
		table("States", []column{{"State", ""}, {"Meaning", "wide"}}, states),
		h("h2", "Keys"), table("Keys", []column{{"Key", ""}, {"What it does", "wide"}}, keys)}
}
