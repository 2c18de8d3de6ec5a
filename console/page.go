package console

import (
	"slices"
	"strings"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/internal/printed"
)

// page is one of the console's.
type page struct {
	title string
	// patient names the verb that the page waits for, "" for one from memory.
	patient string
	body    func(v *view) any
	// still pages are drawn when they are asked for, and not again.
	still bool
}

// pages lists them by their paths.
func pages() map[string]page {
	return map[string]page{
		"":            {"Overview", "", (*view).overview, false},
		"destination": {"Destination", "", (*view).destination, false},
		"dead":        {"Dead letters", "dead group", (*view).dead, false},
		"letters":     {"Dead letters", "dead ls", (*view).letters, false},
		"rows":        {"Dead letters of a table", "tables dead", (*view).rows, false},
		"letter":      {"Dead letter", "dead show", (*view).letter, false},
		"messages":    {"Messages", "messages find", (*view).messages, true},
		"message":     {"Message", "messages show", (*view).message, false},
		"keys":        {"Keys", "holds", (*view).keys, false},
		"relays":      {"Relays", "", (*view).relays, false},
		"retention":   {"Retention", "", (*view).retention, false},
		"inbox":       {"Inbox", "inbox status", (*view).inbox, false},
		"audit":       {"Audit", "audit", (*view).audit, false},
		"doctor":      {"Doctor", "doctor", (*view).doctor, false},
		"verbs":       {"Verbs", "", (*view).verbs, false},
		"databases":   {"Databases", "", (*view).databases, false},
		"help":        {"Help", "", (*view).help, false},
	}
}

// navigation are the pages that the header leads to, with the keys that go there after g.
var navigation = []entry{
	{"databases", "Databases", "b"}, {"", "Overview", "o"}, {"messages", "Messages", "m"}, {"dead", "Dead letters", "d"},
	{"keys", "Keys", "k"}, {"relays", "Relays", "r"}, {"retention", "Retention", "t"},
	{"inbox", "Inbox", "i"}, {"doctor", "Doctor", "c"}, {"audit", "Audit", "a"}, {"verbs", "Verbs", "v"}, {"help", "Help", "h"},
}

type entry struct{ path, title, key string }

// navigation are the entries for the pages that this console has.
func (c *Console) navigation() []entry {
	return slices.DeleteFunc(slices.Clone(navigation), func(n entry) bool { _, ok := c.pages[n.path]; return !ok })
}

// under tells which entry of the navigation a page belongs to.
var under = map[string]string{"letters": "dead", "letter": "dead", "rows": "dead", "message": "messages", "destination": ""}

// here is the address of a page of this console from any of its pages.
func here(path string, pairs ...string) address {
	if path == "" {
		path = "./"
	}
	return to(path, pairs...)
}

// layout is a whole page.
func (v *view) layout(title string, body any) *element {
	c := v.console
	name := "outbox"
	switch {
	case c.options.Name != "":
		name = foreign(c.options.Name, 40)
	case v.report != nil && v.report.Database != "":
		name = foreign(v.report.Database, 40)
	}
	at_ := v.at
	if parent, ok := under[at_]; ok {
		at_ = parent
	} else if strings.HasPrefix(at_, "ask-") {
		at_ = "verbs"
	}
	var links []any
	for _, n := range c.navigation() {
		a := []any{here(n.path), at("data-key", n.key), n.title}
		if n.path == at_ {
			a = append(a, at("aria-current", "page"))
		}
		if n.path == "dead" && v.report != nil {
			if total := totalsOf(v.report).dead; total.N > 0 {
				a = append(a, " ", h("small", total.String()))
			}
		}
		links = append(links, h("a", a...))
	}
	who := v.caller.Name
	if v.operates() {
		who += ", operator"
	} else if who != "" {
		who += ", viewer"
	}
	main := []any{at("id", "main"), at("tabindex", "-1")}
	if v.page.body != nil && !v.page.still {
		main = append(main, at("data-of", ""))
	}
	return h("html", at("lang", "en"),
		h("head", h("meta", at("charset", "utf-8")), h("title", title+" · "+name+" · outbox"),
			h("meta", at("name", "viewport"), at("content", "width=device-width, initial-scale=1")),
			h("meta", at("name", "color-scheme"), at("content", "light dark")),
			h("link", at("rel", "stylesheet"), c.asset("style.css")), h("link", at("rel", "icon"),
				at("type", "image/svg+xml"), c.asset("icon.svg")),
			h("script", at("type", "module"), c.asset("live.js"))),
		h("body", h("a.skip", address("#main"), "To the content"),
			h("header",
				h("a.brand", here(""), "outbox"),
				h("nav", append([]any{at("aria-label", "Pages")}, links...)...),
				h("div.who", h("span.database", at("title", name), name), when(who != "", h("span", foreign(who, 60))),
					h("button.live", at("type", "button"), at("id", "live"), at("hidden", ""), at("aria-live", "off"), "Live"))),
			h("main", append(main, body)...),
			h("footer", when(v.report != nil, v.status()), h("span.hint", at("hidden", ""), "Press ", h("kbd", "?"), " for the keys"))))
}

// stale reports whether what is shown is old.
func (v *view) stale() bool { return v.report.At.IsZero() || v.age > health.ReadWithin }

// status tells how old what the page shows is.
func (v *view) status() any {
	if v.report == nil {
		return nil
	}
	switch {
	case v.report.At.IsZero():
		return region("age", at("data-stale", ""), "The database has not been read yet.")
	case v.stale():
		text := "The database has not been read for " + printed.Span(v.age)
		if v.err != nil {
			text += ": " + foreign(v.err.Error(), 300)
		}
		return region("age", at("data-stale", ""), h("b.state.late", text))
	}
	return region("age", "As of ", clock(v.now.Add(-v.age)), " UTC.")
}

// problem is what stands where a part of a page can't be shown.
func problem(err error) *element {
	return h("p.problem", at("role", "alert"), h("b", "This could not be read. "), foreign(err.Error(), 1000))
}

// command is a command line to copy.
func command(line string) *element {
	return h("div.command", h("code", foreign(line, 2000)),
		h("button", at("type", "button"), at("data-copy", line), at("hidden", ""), "Copy"))
}

// column is one of a table.
type column struct {
	title string
	class string // "n" for numbers
}

// table is a table whose rows are cells with links; on a narrow screen each row becomes a block.
func table(caption string, columns []column, rows [][]any) *element {
	head := make([]any, len(columns))
	for i, c := range columns {
		head[i] = h("th."+c.class, at("scope", "col"), c.title)
		if c.class == "" {
			head[i] = h("th", at("scope", "col"), c.title)
		}
	}
	var body []any
	for _, cells := range rows {
		var row []any
		for i, cell := range cells {
			td := []any{at("data-label", columns[i].title), cell}
			if columns[i].class != "" {
				td = append(td, at("class", columns[i].class))
			}
			row = append(row, h("td", td...))
		}
		body = append(body, h("tr", row...))
	}
	return h("div.scroll", at("tabindex", "0"), at("role", "region"), at("aria-label", caption),
		h("table", h("caption", caption), h("thead", h("tr", head...)), h("tbody", body...)))
}

// facts is a list of names and values.
func facts(pairs ...any) *element {
	var parts []any
	for i := 0; i+1 < len(pairs); i += 2 {
		parts = append(parts, h("div", h("dt", pairs[i]), h("dd", pairs[i+1])))
	}
	return h("dl.facts", parts...)
}

// filter is a form of fields that select what a page lists. A field is a name, its title and its choices, if it has
// some.
func (v *view) filter(path string, fields ...field) *element {
	parts := []any{here(path), at("method", "get"), at("class", "filter"), at("role", "search")}
	for _, f := range fields {
		id := "f-" + f.name
		value := v.get(f.name)
		var input *element
		if len(f.choices) > 0 {
			options := []any{at("id", id), at("name", f.name), h("option", at("value", ""), "any")}
			for _, choice := range f.choices {
				o := []any{at("value", choice), foreign(choice, 60)}
				if choice == value {
					o = append(o, at("selected", ""))
				}
				options = append(options, h("option", o...))
			}
			input = h("select", options...)
		} else {
			input = h("input", at("id", id), at("name", f.name), at("value", value), at("autocomplete", "off"), at("spellcheck", "false"))
		}
		parts = append(parts, h("label", at("for", id), f.title), input)
	}
	return h("form", append(parts, h("button", at("type", "submit"), "Show"))...)
}

type field struct {
	name, title string
	choices     []string
}

func (v *view) destinations() (names []string) {
	for _, d := range v.report.Destinations {
		names = append(names, d.Name)
	}
	return names
}

// blank is what stands where there is nothing to list.
func blank(texts ...any) *element { return h("p.blank", texts...) }

// short is an id's beginning, with all of it on hover.
func short(id string) string { return strings.SplitAfterN(id, "-", 3)[0] + "…" }
