package console

import (
	"slices"
	"time"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/internal/printed"
)

// databases lists those that the program delivers from, the worst first.
func (v *view) databases() any {
	all := slices.DeleteFunc(v.options.Databases(), func(db Database) bool { return !v.caller.Within(db.Name) })
	slices.SortStableFunc(all, func(a, b Database) int { return worse(a.Report.Verdict, b.Report.Verdict) })
	well := 0
	var rows [][]any
	for _, db := range all {
		verdict := db.Report.Verdict
		if verdict.State.OK() {
			well++
		}
		cause := verdict.Cause
		if cause != "" && verdict.Destination != "" {
			cause = verdict.Destination + ": " + cause
		}
		sums, count := totalsOf(db.Report), admin.Count.String
		if db.Report.At.IsZero() {
			count = func(admin.Count) string { return "–" }
		}
		rows = append(rows, []any{db.link("a.name", ""), stateWhy(verdict.State, cause),
			printed.Number(len(db.Report.Destinations)), count(sums.pending), oldest(db.Report, sums.oldest),
			count(sums.held), count(sums.dead), v.readAgo(db)})
	}
	return list{
		region("verdict", v.summary(all, well)),
		region("databases", table("Databases", []column{{"Database", ""}, {"State", "what"}, {"Destinations", "n"}, {"Pending", "n"},
			{"Oldest", "n"}, {"Held", "n"}, {"Dead", "n"}, {"Read", "n"}}, rows)),
	}
}

// link leads to the database's console, if it has one.
func (db Database) link(kind, text string) *element {
	name := text + foreign(db.Name, 60)
	if db.Path == "" {
		return el("span.name", name)
	}
	return el(kind, address(db.Path), name)
}

// summary tells how the worst database is, and how many are well. all is sorted and not empty.
func (v *view) summary(all []Database, well int) *element {
	worst := all[0].Report.Verdict
	sentence, lead := "All is well", printed.Many(len(all), "database", "databases")
	if well < len(all) {
		sentence = "Database " + all[0].Name + ": " + health.Verdict{Finding: worst.Finding, At: worst.At}.Sentence()
		lead = printed.Number(well) + " of " + printed.Many(len(all), "database is well", "databases are well")
	}
	parts := []any{heading(worst.State, sentence), el("p.lead", lead, ".")}
	if worst.Next != "" {
		parts = append(parts, el("div.buttons", command(worst.Next), all[0].link("a.button", "Show ")))
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
