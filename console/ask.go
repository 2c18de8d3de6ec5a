package console

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/pgoutbox/outbox/admin/rest"
	"github.com/pgoutbox/outbox/admin/verbs"
)

// Each verb has a page that is made from the table of verbs, as its command and its path of the API are. So what the
// pages above don't show in a form of its own can be asked and done here.

// verbPage lists all that can be asked and done.
func (v *view) verbPage() any {
	var asks, acts [][]any
	for _, verb := range verbs.All() {
		about := el("span", foreign(verb.Short, 200), ".")
		switch {
		case verb.Role == verbs.Viewer:
			asks = append(asks, []any{el("a", here("ask-"+slug(verb.Name)), verb.Name), about})
		case v.operates():
			acts = append(acts, []any{el("a", here("do-"+slug(verb.Name)), verb.Name), about})
		}
	}
	columns := []column{{"Verb", ""}, {"What it does", "wide"}}
	return list{el("h1", "Verbs"), el("p.lead", "All that the command line can do, too."), table("Verbs that ask", columns, asks),
		when(len(acts) > 0, el("h2", "Verbs that act"), table("Verbs that act", columns, acts))}
}

// question is the page of a verb that reads: its parameters, and what it finds.
func (v *view) question(w http.ResponseWriter, r *http.Request) {
	v.ctx = r.Context()
	verb, err := named(strings.TrimPrefix(v.path, "ask-"))
	if err == nil && verb.Role != verbs.Viewer {
		err = fmt.Errorf("%q acts", verb.Name)
	}
	if err != nil || r.Method != http.MethodGet && r.Method != http.MethodHead {
		v.fail(w, http.StatusNotFound, "There is no such question",
			errors.Join(err, errors.New("the page of verbs lists those that there are")))
		return
	}
	rest.ExtendDeadlines(w, verb)
	params, wrong := v.readParams(verb)
	form := []any{here(v.path), attr("method", "get"), attr("class", "act")}
	needs := false
	for _, p := range verb.Params {
		needs = needs || p.Required && len(p.Texts(params)) == 0
		form = append(form, v.input(p, params))
	}
	form = append(form, el("div.buttons", el("button.first", attr("type", "submit"), "Ask")))
	var answer any
	status := http.StatusOK
	switch {
	case wrong == nil && !needs:
		var result any
		if result, wrong = v.options.API.Run(v.ctx, v.caller, verb, params); wrong == nil {
			answer = list{el("h2", "Answer"), v.draw(verb.Show(params, result))}
		} else {
			status = rest.StatusOf(wrong)
		}
	case wrong != nil:
		status = http.StatusBadRequest
	}
	v.write(w, status, verb.Name, list{el("p.crumb", el("a", here("verbs"), "Verbs"), " / ", verb.Name), el("h1", verb.Short),
		explained(verb),
		when(wrong != nil, el("p.problem", attr("role", "alert"), errorText(wrong))), when(len(verb.Params) > 0, el("form", form...)),
		command(verb.Command(params)), answer})
}

// explained is a verb's help.
func explained(verb verbs.Verb) any {
	var parts []any
	for _, paragraph := range strings.Split(verb.Long, "\n\n") {
		if paragraph != "" {
			parts = append(parts, el("p.lead", foreign(strings.ReplaceAll(paragraph, "\n", " "), 2000)))
		}
	}
	return list(parts)
}

// readParams returns a verb's parameters as the query has them.
func (v *view) readParams(verb verbs.Verb) (params any, wrong error) {
	params = verb.New()
	for name, values := range v.query {
		for _, value := range values {
			if value != "" && !strings.HasPrefix(name, "_") && wrong == nil {
				wrong = set(verb, params, name, value)
			}
		}
	}
	return params, wrong
}
