package console

// problem is what stands where a part of a page can't be shown.
func problem(err error) *element {
	return el("p.problem", attr("role", "alert"), el("b", "This could not be read. "), foreign(err.Error(), 1000))
}

// command is a command line to copy.
func command(line string) *element {
	return el("div.command", el("code", foreign(line, 2000)),
		el("button", attr("type", "button"), attr("data-copy", line), attr("hidden", ""), "Copy"))
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
		head[i] = el("th."+c.class, attr("scope", "col"), c.title)
		if c.class == "" {
			head[i] = el("th", attr("scope", "col"), c.title)
		}
	}
	var body []any
	for _, cells := range rows {
		var row []any
		for i, content := range cells {
			td := []any{attr("data-label", columns[i].title), content}
			if columns[i].class != "" {
				td = append(td, attr("class", columns[i].class))
			}
			row = append(row, el("td", td...))
		}
		body = append(body, el("tr", row...))
	}
	return el("div.scroll", attr("tabindex", "0"), attr("role", "region"), attr("aria-label", caption),
		el("table", el("caption", caption), el("thead", el("tr", head...)), el("tbody", body...)))
}

// facts is a list of names and values.
func facts(pairs ...any) *element {
	var parts []any
	for i := 0; i+1 < len(pairs); i += 2 {
		parts = append(parts, el("div", el("dt", pairs[i]), el("dd", pairs[i+1])))
	}
	return el("dl.facts", parts...)
}

// blank is what stands where there is nothing to list.
func blank(texts ...any) *element { return el("p.blank", texts...) }
