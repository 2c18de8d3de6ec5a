package console

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/internal/printed"
)

// databasesAtOnce is how many databases a page lists, so that it stays small whatever their number.
const databasesAtOnce = 50

// databases lists those that the program delivers from, the worst first: all, or those that the query selects.
func (v *view) databases() any {
	all := slices.DeleteFunc(v.options.Databases(), func(db Database) bool { return !v.caller.Within(db.Name) })
	slices.SortStableFunc(all, func(a, b Database) int {
		return cmp.Or(elsewhereLast(a, b), worse(a.Report.Verdict, b.Report.Verdict),
			strings.Compare(a.Name, b.Name))
	})
	found := slices.DeleteFunc(slices.Clone(all), func(db Database) bool { return !v.selects(db) })
	pages := max((len(found)+databasesAtOnce-1)/databasesAtOnce, 1)
	page, _ := strconv.Atoi(v.get("page"))
	page = min(max(page, 1), pages)
	first := (page - 1) * databasesAtOnce
	shown := found[first:min(first+databasesAtOnce, len(found))]

	members := v.members(all)
	columns := []column{{"Database", ""}, {"State", "what"}, {"Destinations", "n"}, {"Pending", "n"}, {"Oldest", "n"}, {"Held", "n"},
		{"Dead", "n"}, {"Read", "n"}}
	if len(members) > 0 {
		columns = append(columns, column{"Member", ""})
	}
	var rows [][]any
	for _, db := range shown {
		row := v.databaseCells(db)
		if len(members) > 0 {
			row = append(row, v.cell(db.Member))
		}
		rows = append(rows, row)
	}
	listed := any(table("Databases", columns, rows))
	if len(rows) == 0 {
		listed = blank("No database is like this.")
	}
	return list{
		region("verdict", v.summary(all)),
		when(len(all) > few, v.databaseFilter(members)),
		region("databases", when(len(found) < len(all), el("p.lead", printed.Number(len(found)), " of ",
			printed.Many(len(all), "database", "databases"), ". ", el("a", here(v.path), "Show all"))), listed,
			v.pager(page, pages, first, len(found))),
	}
}

// few is how many databases need no search.
const few = 5

func (v *view) databaseCells(db Database) []any {
	verdict := db.Report.Verdict
	cause := verdict.Cause
	if cause != "" && verdict.Destination != "" {
		cause = verdict.Destination + ": " + cause
	}
	if db.Elsewhere {
		text := "no part is here"
		if db.Member != "" {
			text = "with " + foreign(db.Member, 60)
		}
		return []any{db.link("a.name", ""), none(text), none("–"), none("–"), none("–"), none("–"), none("–"), none("–")}
	}
	sums, count := totalsOf(db.Report), admin.Count.String
	if db.Report.At.IsZero() {
		count = func(admin.Count) string { return "–" }
	}
	return []any{db.link("a.name", ""), stateWhy(verdict.State, cause), printed.Number(len(db.Report.Destinations)), count(sums.pending),
		oldest(db.Report, sums.oldest), count(sums.held), count(sums.dead), v.readAgo(db)}
}

// selects reports whether the query selects the database.
func (v *view) selects(db Database) bool {
	state, member := v.get("state"), v.get("member")
	return strings.Contains(strings.ToLower(db.Name), strings.ToLower(strings.TrimSpace(v.get("name")))) &&
		(state == "" || !db.Elsewhere && (string(db.Report.Verdict.State) == state || state == needy && !db.Report.Verdict.State.OK())) &&
		(member == "" || db.Member == member)
}

// needy selects all that need a person.
const needy = "need_you"

// members lists the names of those that have databases.
func (v *view) members(all []Database) (names []string) {
	for _, db := range all {
		if db.Member != "" {
			names = append(names, db.Member)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// databaseFilter is a form that selects databases.
func (v *view) databaseFilter(members []string) *element {
	choose := func(name, title string, options ...[2]string) list {
		parts := []any{attr("id", "f-"+name), attr("name", name), el("option", attr("value", ""), "–")}
		for _, o := range options {
			option := []any{attr("value", o[0]), foreign(o[1], 60)}
			if o[0] == v.get(name) {
				option = append(option, attr("selected", ""))
			}
			parts = append(parts, el("option", option...))
		}
		return list{el("label", attr("for", "f-"+name), title), el("select", parts...)}
	}
	states := [][2]string{{needy, "needs you"}}
	for _, s := range health.States() {
		states = append(states, [2]string{string(s), s.Word()})
	}
	form := []any{here(v.path), attr("method", "get"), attr("class", "filter"), attr("role", "search"),
		el("label", attr("for", "f-name"), "Name"), el("input", attr("id", "f-name"), attr("name", "name"), attr("value", v.get("name")),
			attr("type", "search"), attr("autocomplete", "off"), attr("spellcheck", "false"), attr("title", "a part of the name")),
		choose("state", "State", states...)}
	if len(members) > 0 {
		var options [][2]string
		for _, name := range members {
			options = append(options, [2]string{name, name})
		}
		form = append(form, choose("member", "Member", options...))
	}
	return el("form", append(form, el("button", attr("type", "submit"), "Show"))...)
}

// pager leads to the other pages of a list; nil if there are none.
func (v *view) pager(page, pages, first, all int) any {
	if pages == 1 {
		return nil
	}
	parts := []any{attr("aria-label", "Pages of the list"), el("span", printed.Number(first+1)+" to "+
		printed.Number(min(first+databasesAtOnce, all))+" of "+printed.Number(all))}
	if page > 1 {
		parts = append(parts, el("a.button", v.again("page", strconv.Itoa(page-1)), "Before"))
	}
	if page < pages {
		parts = append(parts, el("a.button", v.again("page", strconv.Itoa(page+1)), "Next"))
	}
	return el("p.buttons", append(parts, attr("role", "navigation"))...)
}

// link leads to the database's console, if it has one.
func (db Database) link(kind, text string) *element {
	name := text + foreign(db.Name, 60)
	if db.Path == "" {
		return el("span.name", name)
	}
	return el(kind, address(db.Path), name)
}

// summary is the verdict on all databases that are delivered from here. all is sorted, the worst first, and not empty.
func (v *view) summary(all []Database) *element {
	var named []health.Named
	elsewhere := 0
	for _, db := range all {
		if db.Elsewhere {
			elsewhere++
			continue
		}
		named = append(named, health.Named{Name: db.Name, Verdict: db.Report.Verdict})
	}
	over := health.Over(named)
	worst := over.Verdict()
	lead := over.Counted()
	if elsewhere > 0 {
		lead = strings.TrimPrefix(lead+"; ", "; ") + printed.Number(elsewhere) + " with other members of the fleet"
	}
	parts := []any{heading(worst.State, over.Sentence())}
	if len(over.Need) > 0 {
		sentence := health.Verdict{Finding: worst.Finding, At: worst.At}.Sentence()
		parts = append(parts, el("p.lead", foreign("the worst is "+over.Need[0].Name+": "+sentence, 600)))
	}
	parts = append(parts, el("p.lead", lead, "."))
	if worst.Next != "" {
		i := slices.IndexFunc(all, func(db Database) bool { return db.Name == over.Need[0].Name })
		parts = append(parts, el("div.buttons", command(worst.Next), all[i].link("a.button", "Show ")))
	}
	return el("div.verdict."+hue(worst.State), parts...)
}

// readAgo tells how old what is known of a database is.
func (v *view) readAgo(db Database) any {
	if db.Report.At.IsZero() {
		return el("b.state.late", "not yet")
	}
	if text := printed.Span(db.Age) + " ago"; db.Age > health.ReadWithin {
		return el("b.state.late", text)
	} else if db.Age >= time.Second {
		return text
	}
	return "now"
}

// elsewhereLast sorts what other members have behind what this one knows.
func elsewhereLast(a, b Database) int {
	switch {
	case a.Elsewhere == b.Elsewhere:
		return 0
	case a.Elsewhere:
		return 1
	}
	return -1
}
