package console

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/find"
	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/sheet"
	"github.com/pgoutbox/outbox/internal/printed"
)

// draw draws what a verb shows.
func (v *view) draw(parts sheet.Parts) (drawn list) {
	for _, part := range parts {
		drawn = append(drawn, v.drawPart(part))
	}
	return drawn
}

func (v *view) drawPart(part any) any {
	switch p := part.(type) {
	case sheet.Line:
		return el("p.lead", sentence(string(p)))
	case sheet.Hint:
		return el("p.lead", sentence(string(p)))
	case sheet.Head:
		return el("h2", foreign(string(p), 300))
	case sheet.Block:
		if p.Text == nil {
			return list{el("h2", p.Title), blank("Operators see it, where it is asked for.")}
		}
		return list{el("h2", p.Title, ", ", printed.Bytes(int64(len(p.Text)))), el("pre", printable(p.Text, 64<<10))}
	case sheet.More:
		return el("p.more", el("a.button", v.again(p.Param, p.Value), "More"))
	case sheet.Verdict:
		return v.verdict(p.Verdict, true)
	case sheet.Findings:
		return findings(p)
	case sheet.Changes:
		return changes(p)
	case sheet.Facts:
		return v.facts(p)
	case sheet.Life:
		return v.life(p)
	case sheet.Table:
		return v.table(p)
	}
	panic(fmt.Sprintf("console: a sheet can't have a %T", part)) // every verb in a test would show it
}

// again is the address of this page with another value in its query.
func (v *view) again(name, value string) address {
	query := url.Values{}
	for key, values := range v.query {
		if !strings.HasPrefix(key, "_") {
			query[key] = values
		}
	}
	query.Set(name, value)
	return here(v.path) + address("?"+query.Encode())
}

// table draws a list. What may be done with several rows is below it, in the form that they are ticked in.
func (v *view) table(t sheet.Table) any {
	title := when(t.Title != v.page.title && t.Title != "", el("h2", t.Title))
	switch {
	case len(t.Rows) == 0 && t.Empty == "":
		return list{title, blank("None.")}
	case len(t.Rows) == 0:
		return list{title, blank("None: ", sentence(t.Empty))}
	}
	ticked := t.Rows[0].Pick != "" && len(v.page.acts) > 0 && v.operates()
	acted := v.operates() && slices.ContainsFunc(t.Rows, func(r sheet.Row) bool { return len(r.Acts) > 0 })
	var columns []column
	if ticked {
		columns = append(columns, column{"Select", "tick"})
	}
	for i, name := range t.Columns {
		columns = append(columns, column{name, columnClass(t.Rows[0].Cells[i].Value)})
	}
	if acted {
		columns = append(columns, column{"Actions", "acts"})
	}
	var rows [][]any
	for _, r := range t.Rows {
		var cells []any
		if ticked {
			cells = append(cells, el("label.tick", el("input", attr("type", "checkbox"), attr("name", "ids"), attr("value", r.Pick),
				attr("aria-label", "Select "+r.Pick))))
		}
		for _, c := range r.Cells {
			cells = append(cells, v.cell(c.Value))
		}
		if acted {
			cells = append(cells, el("span.buttons", v.buttons(r.Acts)))
		}
		rows = append(rows, cells)
	}
	drawn := table(t.Title, columns, rows)
	if !ticked {
		return list{title, drawn}
	}
	acts := []any{"Those that are ticked: "}
	for _, a := range v.page.acts {
		acts = append(acts, el("button", here("do-"+slug(a.Verb)), attr("type", "submit"), a.Label))
	}
	form := []any{attr("method", "get"), here("do-" + slug(v.page.acts[0].Verb)), hidden("_back", v.path+"?"+v.query.Encode())}
	for _, name := range []string{"blocked", "destination"} {
		if value := v.get(name); value != "" {
			form = append(form, hidden(name, value))
		}
	}
	return list{title, el("form", append(form, drawn, el("p.buttons", acts...))...)}
}

// columnClass is the class of a column with such values.
func columnClass(value any) string {
	switch value := value.(type) {
	case sheet.Link:
		return columnClass(value.Value)
	case int, int64, sheet.ID, sheet.Bytes, admin.Count, time.Time:
		return "n"
	case sheet.Error, sheet.Note, sheet.Code:
		return "wide"
	}
	return ""
}

// cell is a value as a page shows it.
func (v *view) cell(value any) any {
	switch value := value.(type) {
	case nil:
		return none("–")
	case string:
		if value == "" {
			return none("–")
		}
		return foreign(value, 120)
	case int:
		return printed.Number(value)
	case int64:
		return printed.Number(value)
	case sheet.ID:
		return fmt.Sprint(int64(value))
	case sheet.Bytes:
		return printed.Bytes(int64(value))
	case admin.Count:
		return value.String()
	case outbox.ID:
		id := value.String()
		return el("span", attr("title", id), strings.SplitAfterN(id, "-", 3)[0]+"…")
	case sheet.Key:
		return v.cell(string(value))
	case sheet.Note:
		return foreign(string(value), 200)
	case sheet.Error:
		return el("span.error", foreign(string(value), 300))
	case sheet.Code:
		return el("code", foreign(string(value), 200))
	case time.Time:
		return ago(v.now, value)
	case sheet.Clock:
		return ago(v.now, time.Time(value))
	case sheet.Mark:
		return mark(value.State, value.Word)
	case sheet.Link:
		if where, ok := v.pageOf(value); ok {
			return el("a", where, v.cell(value.Value))
		}
		return v.cell(value.Value)
	case sheet.Series:
		var all list
		for i, one := range value.Values {
			if i > 0 {
				all = append(all, value.Between)
			}
			all = append(all, v.cell(one))
		}
		if len(all) == 0 {
			return none("–")
		}
		return all
	}
	return foreign(fmt.Sprint(value), 300)
}

// pageOf is the address of the page that shows what a link leads to.
func (v *view) pageOf(l sheet.Link) (where address, ok bool) {
	if n, counted := l.Value.(admin.Count); counted && n.N == 0 {
		return "", false
	}
	for path, p := range v.pages {
		if p.verb == l.Verb {
			return here(path, l.Params...), true
		}
	}
	return here("ask-"+slug(l.Verb), l.Params...), true
}

// facts draws the names and values of one thing, with what may be done with it. A name without a value is left out.
func (v *view) facts(f sheet.Facts) any {
	var pairs []any
	for _, c := range f.Cells {
		switch c.Value {
		case nil, "", sheet.Key(""), sheet.Note(""), sheet.Code(""), sheet.Clock{}:
			continue
		}
		pairs = append(pairs, c.Title, v.cell(whole(c.Value)))
	}
	return list{when(v.operates() && len(f.Acts) > 0, el("p.buttons", v.buttons(f.Acts))), facts(pairs...)}
}

// whole is a value that need not be short.
func whole(value any) any {
	switch value := value.(type) {
	case outbox.ID:
		return value.String()
	case sheet.Link:
		return sheet.Link{Value: whole(value.Value), Verb: value.Verb, Params: value.Params}
	}
	return value
}

// life draws what happened to a message.
func (v *view) life(life sheet.Life) any {
	var steps []any
	for _, s := range life {
		name := "li"
		if s.Wrong {
			name = "li.late"
		}
		text := list{}
		if s.Text != nil {
			text = list{v.cell(s.Text)}
		}
		steps = append(steps, el(name, el("span", when(!s.At.IsZero(), clock(s.At))), el("b", v.cell(s.What)),
			el("span", text, " ", v.buttons(s.Acts))))
	}
	return el("ol.life", steps...)
}

// changes draws the differences of what was edited.
func changes(all []find.Change) any {
	if len(all) == 0 {
		return nil
	}
	var rows [][]any
	for _, c := range all {
		rows = append(rows, []any{foreign(c.Field, 200), el("del", foreign(c.Before, 4000)), el("ins", foreign(c.After, 4000))})
	}
	return table("What was edited", []column{{"Field", ""}, {"As written", "wide"}, {"As it is now", "wide"}}, rows)
}

// findings draws what the doctor has found.
func findings(all []health.Symptom) any {
	if len(all) == 0 {
		return blank("Nothing needs you.")
	}
	states := map[health.Weight]health.State{health.WeightFault: health.StateFailing, health.WeightRisk: health.StateBlocked,
		health.WeightAdvice: health.StateIdle}
	var rows [][]any
	for _, s := range all {
		repair := list{foreign(s.Advice, 1000)}
		if s.Repair != "" { // to be copied; words are not
			repair = append(repair, command(s.Repair))
		}
		rows = append(rows, []any{mark(states[s.Weight], string(s.Weight)), foreign(s.About, 100), foreign(s.Text, 1000), repair})
	}
	return list{el("p.lead", printed.Many(len(rows), "finding", "findings"), ", the worst first."),
		table("Findings", []column{{"Weight", ""}, {"About", ""}, {"What", "wide"}, {"Repair", "wide"}}, rows)}
}
