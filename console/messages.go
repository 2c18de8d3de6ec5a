package console

import (
	"slices"

	"github.com/pgoutbox/outbox/admin/find"
)

// glance is how long a page looks where no index leads to the messages: it comes at once, and has a button to look on.
// A page that has found nothing by then looks for a second more, because an empty page says less than a late one.
const glance = "80ms"

// messages finds messages in the segments that are still there.
func (v *view) messages() any {
	pairs := v.given(v.page.filter...)
	head := list{el("h1", "Messages"), v.filter()}
	asked := append(append(slices.Clone(pairs), "limit", "50"), v.given("after")...)
	if v.get("message") == "" && v.get("key") == "" && v.get("transaction") == "" && v.get("after") == "" {
		asked = append(asked, "within", glance)
	}
	found, parts, err := ask[find.FoundMessages](v, "messages find", asked...)
	if err == nil && len(found.Messages) == 0 && !found.Complete {
		_, parts, err = ask[find.FoundMessages](v, "messages find", append(slices.Clone(pairs), "limit", "50", "after", found.Next)...)
	}
	if err != nil {
		return append(head, problem(err))
	}
	var again any
	if replay := renamed(pairs, "message", "ids"); len(replay) > 0 {
		again = el("p.buttons", v.button("replay", "Send all that is like this once more…", replay...))
	}
	return append(head, v.draw(parts), again)
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
