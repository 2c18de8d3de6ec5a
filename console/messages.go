package console

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/admin/find"
	"github.com/pgoutbox/outbox/internal/printed"
)

// glance is how long a page looks where no index leads to the messages: it comes at once, and has a button to look on.
// A page that has found nothing by then looks for a second more, because an empty page says less than a late one.
const glance = "80ms"

// messages finds messages in the segments that are still there.
func (v *view) messages() any {
	pairs := v.given("message", "key", "topic", "header", "since", "until", "transaction")
	head := list{h("h1", "Messages"), v.filter("messages", field{"message", "Message", nil}, field{"key", "Key", nil},
		field{"topic", "Topic", nil},
		field{"header", "Header, NAME=VALUE", nil}, field{"since", "Since", nil}, field{"until", "Until",
			nil}, field{"transaction", "Transaction", nil})}
	asked := append(append(slices.Clone(pairs), "limit", "50"), v.given("after")...)
	if v.get("message") == "" && v.get("key") == "" && v.get("transaction") == "" && v.get("after") == "" {
		asked = append(asked, "within", glance)
	}
	found, err := ask[find.FoundMessages](v, "messages find", asked...)
	if err != nil {
		return append(head, problem(err))
	}
	if len(found.Messages) == 0 && !found.Complete {
		first := found
		found, err = ask[find.FoundMessages](v, "messages find", append(slices.Clone(pairs), "limit", "50", "after", first.Next)...)
		if err != nil {
			return append(head, problem(err))
		}
		found.Looked, found.Seconds = found.Looked+first.Looked, found.Seconds+first.Seconds
		found.Segments, found.Of = found.Segments+first.Segments, first.Of
	}
	looked := h("p.lead", searched(found), ".")
	again := any(nil)
	if replay := renamed(pairs, "message", "ids"); len(replay) > 0 {
		again = h("p.buttons", v.button("replay", "Send all that is like this once more…", replay...))
	}
	more := when(found.Next != "", h("p.more", h("a.button",
		here("messages", append(slices.Clone(pairs), "after", found.Next)...), "Look further")))
	if len(found.Messages) == 0 {
		text := "No message is like that in the segments that are still there. "
		if !found.Complete {
			text = "None was found so far. "
		}
		return append(head, blank(text, h("a", here("messages"), "The newest")), looked, more)
	}
	var rows [][]any
	for _, m := range found.Messages {
		id := m.MessageID.String()
		rows = append(rows, []any{h("a", here("message", "id", id), at("title", id), short(id)), foreign(m.Topic, 80), foreign(m.Key, 80),
			foreign(m.EventType, 80), foreign(m.Transaction, 30), strconv.FormatInt(m.Position, 10), ago(v.now, m.CreatedAt)})
	}
	return append(head, table("Messages", []column{{"Message", ""}, {"Topic", ""}, {"Key", ""}, {"Event", ""}, {"Transaction", "n"},
		{"Position", "n"}, {"Written", "n"}}, rows), looked, again, more)
}

// renamed are pairs with another name for one of them.
func renamed(pairs []string, from, to string) []string {
	pairs = slices.Clone(pairs)
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i] == from {
			pairs[i] = to
		}
	}
	return pairs
}

// message tells the life of one message.
func (v *view) message() any {
	id := v.get("id")
	asked := []string{"message", id}
	if v.may("messages show", append(slices.Clone(asked), "payload", "true")...) {
		asked = append(asked, "payload", "true")
	}
	parts := list{h("p.crumb", h("a", here("messages"), "Messages"), " / ", foreign(id, 60))}
	lives, err := ask[[]find.MessageLife](v, "messages show", asked...)
	if err != nil {
		return append(parts, h("h1", "Message"), problem(err))
	}
	for _, m := range lives {
		parts = append(parts, h("h1", foreign(m.Topic, 100), when(m.Key != "", ", key ", foreign(m.Key, 200))),
			region("life-"+strconv.FormatInt(m.Position, 10), v.life(&m)),
			facts("Message", h("code", m.MessageID.String()), "Transaction", foreign(m.Transaction, 30), "Position",
				strconv.FormatInt(m.Position, 10), "Segment", segment(m.Segment),
				"Aggregate", foreign(strings.TrimSpace(m.AggregateType+" "+m.AggregateID), 200), "Event", foreign(m.EventType, 100),
				"Content", foreign(m.ContentType, 100), "Trace", h("code", foreign(m.TraceID, 40))),
			h("h2", "Headers"), h("pre", foreign(string(m.Headers), 20_000)), v.payload(m.Payload))
	}
	return parts
}

func segment(n int) string {
	if n < 0 {
		return "emptied"
	}
	return strconv.Itoa(n)
}

// life is what happened to a message, in order, and where it is now.
func (v *view) life(m *find.MessageLife) any {
	steps := []any{h("li", clock(m.CreatedAt), h("b", "written"), h("span", "by transaction ", foreign(m.Transaction, 30)))}
	step := func(class string, at time.Time, what string, text ...any) {
		steps = append(steps, h("li"+class, h("span", when(!at.IsZero(), clock(at))), h("b", what), h("span", text...)))
	}
	if !m.CommittedAt.IsZero() {
		step("", m.CommittedAt, "committed")
	}
	if !m.DeliverAt.IsZero() {
		step("", m.DeliverAt, "to be delivered")
	}
	for _, a := range m.Destinations {
		where := h("a", here("destination", "name", a.Destination), foreign(a.Destination, 60))
		tried := list{}
		if a.Attempts > 0 {
			tried = list{", ", printed.Many(a.Attempts, "attempt", "attempts"), when(a.Error != "", ": ", foreign(a.Error, 1000))}
		}
		switch a.State {
		case find.StateDead:
			step(".late", a.Since, "dead", h("a", here("letter", "id", m.MessageID.String(), "destination",
				a.Destination), "dead letter"), " of ", where, tried)
		case find.StateHeld, find.StateBlocked:
			step(".late", a.Since, a.State, where, tried, when(!a.Due.IsZero(), ", tried again ", ago(v.now, a.Due)))
		case find.StatePassed, find.StateDelivered, find.StateDiscarded:
			step("", a.Since, a.State, where, " ",
				v.button("replay", "Send once more…", "ids", m.MessageID.String(), "destination", a.Destination))
		default:
			step("", a.Since, a.State, where)
		}
	}
	unclear := slices.ContainsFunc(m.Destinations, func(a find.Arrival) bool { return a.State == find.StatePassed })
	return list{h("ol.life", steps...), when(unclear, h("p", "Passed: it was delivered, or the destination didn't select it, or an "+
		"operator discarded it: what the destination selected at that time isn't recorded."))}
}

// searched tells what a search has looked at.
func searched(f find.FoundMessages) string {
	text := fmt.Sprintf("%s in %d of %s looked at in %s", printed.Many(f.Looked, "message", "messages"), f.Segments,
		printed.Many(f.Of, "segment", "segments"), printed.Span(time.Duration(f.Seconds*float64(time.Second))))
	if !f.Complete {
		text += ", and there are more"
	}
	return text
}
