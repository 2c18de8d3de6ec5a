package console

import (
	"slices"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/sheet"
	"github.com/pgoutbox/outbox/admin/verbs"
)

// pageTable lists the pages by their paths.
func pageTable() map[string]page {
	requeue, acknowledge := sheet.Act{Verb: "dead requeue", Label: "Requeue…"}, sheet.Act{Verb: "dead ack", Label: "Acknowledge…"}
	discard := sheet.Act{Verb: "dead discard", Label: "Discard…"}
	return map[string]page{
		"":            {title: "Overview", body: (*view).overview},
		"destination": {title: "Destination", verb: "destinations ls", body: (*view).destinationPage},
		"dead": {title: "Dead letters", verb: "dead group", body: lists, acts: []sheet.Act{requeue, acknowledge, discard},
			filter: []string{"destination", "topic", "cause", "new"}},
		"letters": {title: "Dead letters, one by one", verb: "dead ls", body: lists, acts: []sheet.Act{requeue, acknowledge, discard},
			filter: []string{"destination", "topic", "cause", "key", "group", "new", "blocked"}},
		"rows": {title: "Dead letters of a table", verb: "tables dead", body: lists, filter: []string{"destination"},
			acts: []sheet.Act{{Verb: "tables requeue", Label: "Requeue…"}, {Verb: "tables ack", Label: "Acknowledge…"}}},
		"letter": {title: "Dead letter", verb: "dead show", body: shows},
		"messages": {title: "Messages", verb: "messages find", body: (*view).messages, still: true,
			filter: []string{"message", "key", "topic", "header", "since", "until", "transaction"}},
		"message":   {title: "Message", verb: "messages show", body: shows},
		"keys":      {title: "Keys that wait", verb: "holds", body: lists, filter: []string{"destination", "key", "blocked"}},
		"relays":    {title: "Relays", verb: "relays", body: (*view).relays},
		"retention": {title: "Retention", verb: "retention", body: (*view).retention},
		"inbox":     {title: "Inbox", verb: "inbox status", body: shows},
		"audit":     {title: "Audit", verb: "audit", body: lists, filter: []string{"destination", "by", "verb"}},
		"doctor":    {title: "Doctor", verb: "doctor", body: (*view).doctor},
		"verbs":     {title: "Verbs", body: (*view).verbPage},
		"databases": {title: "Databases", body: (*view).databases},
		"help":      {title: "Help", body: (*view).help},
	}
}

// lists is the page of a verb that lists: a filter, what it finds, and what may be done with all of that.
func lists(v *view) any {
	pairs := v.given(v.page.filter...)
	asked := append(slices.Clone(pairs), v.given("after", "before")...)
	if v.page.verb != "dead group" {
		asked = append(asked, "limit", "50")
	}
	head := list{v.crumb(), v.flash(), el("h1", v.page.title), v.filter()}
	_, parts, err := ask[any](v, v.page.verb, asked...)
	if err != nil {
		return append(head, problem(err))
	}
	if len(pairs) == 0 {
		pairs = []string{"all", "true"}
	} else {
		head = append(head, el("p", el("a", here(v.path), "Show all")))
	}
	var buttons list
	for _, a := range v.page.acts {
		buttons = append(buttons, v.button(a.Verb, a.Label, pairs...))
	}
	return append(head, region(v.path, v.draw(parts)), when(v.operates() && len(buttons) > 0, el("p.buttons", "All of these: ", buttons)))
}

// shows is the page of a verb about one thing, which the query names.
func shows(v *view) any {
	verb, err := verbs.ByName(v.page.verb)
	if err != nil {
		return problem(err)
	}
	var pairs []string
	for _, p := range verb.Params {
		if p.Name == "payload" && v.may(verb.Name, append(slices.Clone(pairs), "payload", "true")...) {
			pairs = append(pairs, "payload", "true")
			continue
		}
		pairs = append(pairs, v.given(p.Name)...)
	}
	head := list{v.crumb(), v.flash(), el("h1", v.page.title)}
	_, parts, err := ask[any](v, verb.Name, pairs...)
	if err != nil {
		return append(head, problem(err))
	}
	return append(head, region(v.path, v.draw(parts)))
}

// relays lists the relays of the last report.
func (v *view) relays() any {
	verb, params, err := prepared("relays")
	if err != nil {
		return problem(err)
	}
	return list{el("h1", "Relays"), region("relays", v.draw(verb.Show(params, v.report.Relays)))}
}

// retention lists the segments, and what else keeps messages.
func (v *view) retention() any {
	_, parts, err := ask[any](v, "retention")
	if err != nil {
		return list{el("h1", "Retention"), problem(err)}
	}
	parts = append(parts, verbs.OpenTable(v.report))
	if slots := verbs.SlotTable(v.report); len(slots.Rows) > 0 {
		parts = append(parts, slots)
	}
	return list{el("h1", "Retention"), region("retention", v.draw(parts))}
}

// doctor is the page of the verb of that name.
func (v *view) doctor() any {
	return append(list{shows(v)}, el("p.buttons", v.button("canary", "Send a canary…")))
}

// help lists keys, states and words.
func (v *view) help() any {
	var keys [][]any
	for _, k := range [][2]string{{"j and k", "next and previous row"}, {"Enter", "open the row"},
		{"/", "to the first field"}, {"p", "pause live updates, and go on"}, {"y", "copy the command"},
		{"?", "this list"}, {"Esc", "close, or leave a field"}} {
		keys = append(keys, []any{el("kbd", k[0]), k[1]})
	}
	for _, n := range v.navigation() {
		keys = append(keys, []any{list{el("kbd", "g"), " ", el("kbd", n.key)}, n.title})
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
	return list{el("h1", "Help"), el("h2", "States, from the best to the worst"),
		table("States", []column{{"State", ""}, {"Meaning", "wide"}}, states),
		el("h2", "Keys"), table("Keys", []column{{"Key", ""}, {"What it does", "wide"}}, keys)}
}
