package console

import (
	"net/url"

	"github.com/pgoutbox/outbox/admin/sheet"
	"github.com/pgoutbox/outbox/admin/verbs"
)

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
