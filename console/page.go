package console

import (
	"net/http"
	"slices"
	"strings"

	"github.com/pgoutbox/outbox/internal/printed"
)

// navigation are the pages that the header leads to, with the keys that go there after g.
var navigation = []entry{
	{"databases", "Databases", "b"}, {"", "Overview", "o"}, {"messages", "Messages", "m"}, {"dead", "Dead letters", "d"},
	{"keys", "Keys", "k"}, {"relays", "Relays", "r"}, {"retention", "Retention", "t"},
	{"inbox", "Inbox", "i"}, {"doctor", "Doctor", "c"}, {"audit", "Audit", "a"}, {"verbs", "Verbs", "v"}, {"help", "Help", "h"},
}

type entry struct{ path, title, key string }

// navigation are the entries for the pages that there are.
func (s *base) navigation() []entry {
	return slices.DeleteFunc(slices.Clone(navigation), func(n entry) bool { _, ok := s.pages[n.path]; return !ok })
}

// under tells which entry of the navigation a page belongs to.
var under = map[string]string{"letters": "dead", "letter": "dead", "rows": "dead", "message": "messages", "destination": ""}

// layout is a whole page.
func (v *view) layout(title string, body any) *element {
	name := "outbox"
	switch {
	case v.options.Name != "":
		name = foreign(v.options.Name, 40)
	case v.report != nil && v.report.Database != "":
		name = foreign(v.report.Database, 40)
	}
	current := v.path
	if parent, ok := under[current]; ok {
		current = parent
	} else if strings.HasPrefix(current, "ask-") {
		current = "verbs"
	}
	var links []any
	for _, n := range v.navigation() {
		a := []any{here(n.path), attr("data-key", n.key), n.title}
		if n.path == current {
			a = append(a, attr("aria-current", "page"))
		}
		if n.path == "dead" && v.report != nil {
			if total := totalsOf(v.report).dead; total.N > 0 {
				a = append(a, " ", el("small", total.String()))
			}
		}
		links = append(links, el("a", a...))
	}
	who := v.caller.Name
	if v.operates() {
		who += ", operator"
	} else if who != "" {
		who += ", viewer"
	}
	main := []any{attr("id", "main"), attr("tabindex", "-1")}
	if v.page.body != nil && !v.page.still {
		main = append(main, attr("data-of", ""))
	}
	return el("html", attr("lang", "en"),
		el("head", el("meta", attr("charset", "utf-8")), el("title", title+" · "+name+" · outbox"),
			el("meta", attr("name", "viewport"), attr("content", "width=device-width, initial-scale=1")),
			el("meta", attr("name", "color-scheme"), attr("content", "light dark")),
			el("link", attr("rel", "stylesheet"), v.asset("style.css")), el("link", attr("rel", "icon"),
				attr("type", "image/svg+xml"), v.asset("icon.svg")),
			el("script", attr("type", "module"), v.asset("live.js"))),
		el("body", el("a.skip", address("#main"), "To the content"),
			el("header",
				el("a.brand", here(""), "outbox"),
				el("nav", append([]any{attr("aria-label", "Pages")}, links...)...),
				el("div.who", el("span.database", attr("title", name), name), when(who != "", el("span", foreign(who, 60))),
					el("button.live", attr("type", "button"), attr("id", "live"), attr("hidden", ""), attr("aria-live", "off"), "Live"))),
			el("main", append(main, body)...),
			el("footer", when(v.report != nil, v.asOf()), el("span.hint", attr("hidden", ""), "Press ", el("kbd", "?"), " for the keys"))))
}

// crumb leads up from a page that no entry of the navigation leads to.
func (v *view) crumb() any {
	parent, below := under[v.path]
	if !below {
		return nil
	}
	return el("p.crumb", el("a", here(parent), v.pages[parent].title), " / ", foreign(v.page.title, 100))
}

// flash says what an action has done, on the page that it leads back to.
func (v *view) flash() any {
	if v.get("_did") == "" {
		return nil
	}
	text := list{foreign(v.get("_did"), 300)}
	if job := v.get("_job"); job != "" {
		pairs := append(v.given("destination"), "id", job)
		text = append(text, " ", v.button("jobs undo", "Undo…", pairs...), " ", el("a", here("ask-jobs-show", "id", job), "Progress"))
	}
	return el("p.said", append([]any{attr("role", "status")}, text...)...)
}

// asOf says how old what the page shows is.
func (v *view) asOf() any {
	if v.report == nil {
		return nil
	}
	switch {
	case v.report.At.IsZero():
		return region("age", attr("data-stale", ""), "The database has not been read yet.")
	case v.stale():
		text := "The database has not been read for " + printed.Span(v.age)
		if v.err != nil {
			text += ": " + foreign(v.err.Error(), 300)
		}
		return region("age", attr("data-stale", ""), el("b.state.late", text))
	}
	return region("age", "As of ", clock(v.now.Add(-v.age)), " UTC.")
}

// fail answers with a page that says what is wrong.
func (v *view) fail(w http.ResponseWriter, status int, title string, err error) {
	v.write(w, status, title, list{el("h1", title), el("p.lead", foreign(err.Error(), 2000))})
}

// write answers with a page.
func (v *view) write(w http.ResponseWriter, status int, title string, body any) {
	d := &document{}
	d.WriteString("<!doctype html>")
	d.add(v.layout(title, body))
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(d.Bytes()) // the client has gone
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return foreign(err.Error(), 1000)
}
