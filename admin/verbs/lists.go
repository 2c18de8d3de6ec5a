package verbs

import (
	"strings"

	"github.com/pgoutbox/outbox/admin/sheet"
)

// route is the title of a column that has the way of messages.
const route = "Topic → destination"

// listPage describes a page of things, row by row. If it is full, the parameter leads to the next page by the last
// thing.
func listPage[T any](title, empty string, all []T, row func(T) sheet.Row, limit int, param string, last func(T) string) sheet.Parts {
	parts := sheet.Parts{sheet.List(title, empty, all, row)}
	if len(all) > 0 && len(all) == limit {
		parts = append(parts, sheet.More{Param: param, Value: last(all[len(all)-1])})
	}
	return parts
}

// lines are one for each of some things.
func lines[T any](all []T, line func(T) string) string {
	texts := make([]string, len(all))
	for i, one := range all {
		texts[i] = line(one)
	}
	return strings.Join(texts, "\n")
}
