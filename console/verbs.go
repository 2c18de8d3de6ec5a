package console

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/pgoutbox/outbox/admin/rest"
	"github.com/pgoutbox/outbox/admin/verbs"
)

// Each verb has a page that is made from the table of verbs, as its command and its path of the API are. So what the
// pages above don't show in a form of its own can be asked and done here.

// slug is a verb in an address.
func slug(name string) string { return strings.ReplaceAll(name, " ", "-") }

// named finds the verb of an address.
func named(slug string) (verbs.Verb, error) {
	for _, v := range verbs.All() {
		if strings.ReplaceAll(v.Name, " ", "-") == slug {
			return v, nil
		}
	}
	return verbs.Verb{}, fmt.Errorf("%q is no verb", slug)
}

// verbs lists all that can be asked and done.
func (v *view) verbs() any {
	var asks, acts [][]any
	for _, verb := range verbs.All() {
		about := h("span", foreign(verb.Short, 200), ".")
		switch {
		case verb.Role == verbs.Viewer:
			asks = append(asks, []any{h("a", here("ask-"+slug(verb.Name)), verb.Name), about})
		case v.operates():
			acts = append(acts, []any{h("a", here("do-"+slug(verb.Name)), verb.Name), about})
		}
	}
	columns := []column{{"Verb", ""}, {"What it does", "wide"}}
	return list{h("h1", "Verbs"), h("p.lead", "All that the command line can do, too."), table("Verbs that ask", columns, asks),
		when(len(acts) > 0, h("h2", "Verbs that act"), table("Verbs that act", columns, acts))}
}

// ask is the page of a verb that reads: its parameters, and what it finds.
func (c *Console) ask(w http.ResponseWriter, r *http.Request, v *view) {
	v.ctx = r.Context()
	verb, err := named(strings.TrimPrefix(v.at, "ask-"))
	if err == nil && verb.Role != verbs.Viewer {
		err = fmt.Errorf("%q acts", verb.Name)
	}
	if err != nil || r.Method != http.MethodGet && r.Method != http.MethodHead {
		v.fail(w, http.StatusNotFound, "There is no such question",
			errors.Join(err, errors.New("the page of verbs lists those that there are")))
		return
	}
	rest.ExtendDeadlines(w, verb)
	params, wrong := v.params(verb)
	form := []any{here(v.at), at("method", "get"), at("class", "act")}
	needs := false
	for _, p := range verb.Params {
		needs = needs || p.Required && len(p.Texts(params)) == 0
		form = append(form, v.input(p, params))
	}
	form = append(form, h("div.buttons", h("button.first", at("type", "submit"), "Ask")))
	var answer any
	status := http.StatusOK
	switch {
	case wrong == nil && !needs:
		var result any
		if result, wrong = c.options.API.Run(v.ctx, v.caller, verb, params); wrong == nil {
			answer = list{h("h2", "Answer"), v.shape(result)}
		} else {
			status = rest.StatusOf(wrong)
		}
	case wrong != nil:
		status = http.StatusBadRequest
	}
	v.write(w, status, verb.Name, list{h("p.crumb", h("a", here("verbs"), "Verbs"), " / ", verb.Name), h("h1", verb.Short), explained(verb),
		when(wrong != nil, h("p.problem", at("role", "alert"), message(wrong))), when(len(verb.Params) > 0, h("form", form...)),
		command(verb.Command(params)), answer})
}

// explained is a verb's help.
func explained(verb verbs.Verb) any {
	var parts []any
	for _, paragraph := range strings.Split(verb.Long, "\n\n") {
		if paragraph != "" {
			parts = append(parts, h("p.lead", foreign(strings.ReplaceAll(paragraph, "\n", " "), 2000)))
		}
	}
	return list(parts)
}

// params are a verb's parameters as the query has them.
func (v *view) params(verb verbs.Verb) (params any, wrong error) {
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

// input is a field for a parameter, with its label and help.
func (v *view) input(p verbs.Param, params any) any {
	id, value := "p-"+p.Name, ""
	if texts := p.Texts(params); len(texts) > 0 {
		value = strings.Join(texts, " ")
	}
	choices := p.Enum
	if p.Want() == "true or false" {
		choices = []string{"true"}
	}
	var control *element
	if len(choices) > 0 {
		options := []any{at("id", id), at("name", p.Name), at("aria-describedby", "h-"+p.Name), h("option", at("value", ""), "–")}
		for _, choice := range choices {
			o := []any{at("value", choice), choice}
			if choice == value {
				o = append(o, at("selected", ""))
			}
			options = append(options, h("option", o...))
		}
		control = h("select", options...)
	} else {
		input := []any{at("id", id), at("name", p.Name), at("value", value), at("autocomplete", "off"), at("aria-describedby", "h-"+p.Name)}
		if p.Required || p.Name == "reason" {
			input = append(input, at("required", ""))
		}
		control = h("input", input...)
	}
	title := strings.ReplaceAll(p.Name, "_", " ")
	return list{h("label", at("for", id), strings.ToUpper(title[:1])+title[1:]),
		h("span", control, h("small", at("id", "h-"+p.Name), foreign(p.Help, 300)))}
}

// shape shows any result: lists of objects as tables, objects as names and values, in the order of their fields.
func (v *view) shape(result any) any {
	text, err := json.Marshal(result)
	if err != nil {
		return problem(err)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	value, err := ordered(d)
	if err != nil {
		return problem(err)
	}
	return v.draw("Answer", value, 0)
}

// object is one of JSON, in its order.
type object struct {
	names  []string
	values map[string]any
}

// ordered reads a value of JSON.
func ordered(d *json.Decoder) (any, error) {
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t {
	case json.Delim('{'):
		o := object{values: map[string]any{}}
		for d.More() {
			name, err := d.Token()
			if err != nil {
				return nil, err
			}
			text, _ := name.(string)
			o.names = append(o.names, text)
			if o.values[text], err = ordered(d); err != nil {
				return nil, err
			}
		}
		_, err = d.Token()
		return o, err
	case json.Delim('['):
		values := []any{}
		for d.More() {
			value, err := ordered(d)
			if err != nil {
				return nil, err
			}
			values = append(values, value)
		}
		_, err = d.Token()
		return values, err
	}
	return t, nil
}

const deepest = 3

func (v *view) draw(title string, value any, depth int) any {
	switch value := value.(type) {
	case nil:
		return h("span.none", "–")
	case object:
		if depth >= deepest {
			return h("span.none", "…")
		}
		var pairs []any
		for _, name := range value.names {
			pairs = append(pairs, words(name), v.draw(words(name), value.values[name], depth+1))
		}
		return facts(pairs...)
	case []any:
		return v.drawList(title, value, depth)
	}
	return h("span", foreign(fmt.Sprint(value), 4000))
}

func (v *view) drawList(title string, values []any, depth int) any {
	if len(values) == 0 {
		return h("span.none", "none")
	}
	var columns []column
	var names []string
	for _, one := range values {
		o, ok := one.(object)
		if !ok || depth >= deepest {
			var items []any
			for _, one := range values {
				items = append(items, h("li", v.draw(title, one, depth+1)))
			}
			return h("ul", items...)
		}
		for _, name := range o.names {
			if !slices.Contains(names, name) {
				names, columns = append(names, name), append(columns, column{words(name), ""})
			}
		}
	}
	var rows [][]any
	for _, one := range values {
		o, _ := one.(object)
		var row []any
		for _, name := range names {
			row = append(row, v.draw(words(name), o.values[name], depth+2))
		}
		rows = append(rows, row)
	}
	return table(title, columns, rows)
}

func words(name string) string {
	name = strings.ReplaceAll(strings.TrimSuffix(name, "_ns"), "_", " ")
	return foreign(strings.ToUpper(name[:min(1, len(name))])+name[min(1, len(name)):], 60)
}
