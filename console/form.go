package console

import (
	"net/url"
	"slices"
	"strings"

	"github.com/pgoutbox/outbox/admin/sheet"
	"github.com/pgoutbox/outbox/admin/verbs"
)

// filter is a form of some parameters of the page's verb that select what the page lists.
func (v *view) filter() *element {
	verb, err := verbs.ByName(v.page.verb)
	if err != nil {
		return problem(err)
	}
	parts := []any{here(v.path), attr("method", "get"), attr("class", "filter"), attr("role", "search")}
	for _, p := range verb.Params {
		if slices.Contains(v.page.filter, p.Name) {
			parts = append(parts, label(p, "f-"), v.control(p, "f-", v.get(p.Name), attr("title", p.Help)))
		}
	}
	return el("form", append(parts, el("button", attr("type", "submit"), "Show"))...)
}

// input is a field for a parameter, with its label and help.
func (v *view) input(p verbs.Param, params any) any {
	more := []any{attr("aria-describedby", "h-"+p.Name)}
	if p.Required || p.Name == "reason" {
		more = append(more, attr("required", ""))
	}
	return list{label(p, "p-"), el("span", v.control(p, "p-", strings.Join(p.Texts(params), " "), more...),
		el("small", attr("id", "h-"+p.Name), foreign(p.Help, 300)))}
}

func label(p verbs.Param, prefix string) *element {
	return el("label", attr("for", prefix+p.Name), words(p.Name))
}

// words are a parameter's name as a person reads it.
func words(name string) string {
	return strings.ToUpper(name[:1]) + strings.ReplaceAll(name[1:], "_", " ")
}

// control is where a parameter's value is given: one of a few, or a text.
func (v *view) control(p verbs.Param, prefix, value string, more ...any) *element {
	choices := p.Enum
	switch {
	case p.Want() == "true or false":
		choices = []string{"true"}
	case p.Name == "destination" && prefix == "f-":
		choices = v.destinations()
	}
	parts := append([]any{attr("id", prefix+p.Name), attr("name", p.Name)}, more...)
	if len(choices) == 0 {
		return el("input", append(parts, attr("value", value), attr("autocomplete", "off"), attr("spellcheck", "false"))...)
	}
	parts = append(parts, el("option", attr("value", ""), "–"))
	for _, choice := range choices {
		o := []any{attr("value", choice), foreign(choice, 60)}
		if choice == value {
			o = append(o, attr("selected", ""))
		}
		parts = append(parts, el("option", o...))
	}
	return el("select", parts...)
}

func hidden(name, value string) *element {
	return el("input", attr("type", "hidden"), attr("name", name), attr("value", value))
}

// buttons lead to what may be done; those that the caller may not do are left out.
func (v *view) buttons(acts []sheet.Act) (drawn list) {
	for _, a := range acts {
		drawn = append(drawn, v.button(a.Verb, a.Label, a.Params...))
	}
	return drawn
}

// button links to an action; nil if the caller may not run it.
func (v *view) button(name, label string, pairs ...string) any {
	verb, params, err := prepared(name, pairs...)
	if err != nil || verb.Role != verbs.Operator {
		return nil
	}
	return v.actionLink(verb, params, "a.button", label)
}

// actionLink links to an action, which leads back to this page; nil if the caller may not run it.
func (v *view) actionLink(verb verbs.Verb, params any, kind, label string) any {
	if v.options.API.Allowed(v.caller, verb, params) != nil {
		return nil
	}
	query := url.Values{}
	for name, values := range v.query {
		if name != "_did" && name != "_job" {
			query[name] = values
		}
	}
	var pairs []string
	for _, p := range verb.Given(params) {
		for _, value := range p.Texts(params) {
			pairs = append(pairs, p.Name, value)
		}
	}
	where, separator := to("do-"+slug(verb.Name), pairs...), address("?")
	if len(pairs) > 0 {
		separator = "&"
	}
	return el(kind, where+separator+address("_back="+url.QueryEscape(v.path+"?"+query.Encode())), attr("data-dialog", ""), label)
}
