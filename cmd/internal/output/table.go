package output

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/pgoutbox/outbox/internal/printed"
)

// Table aligns columns.
type Table struct{ w *tabwriter.Writer }

// NewTable begins a table with a row, as a rule the columns' titles; without cells it has no row yet.
func NewTable(w io.Writer, cells ...any) *Table {
	t := &Table{tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)}
	if len(cells) > 0 {
		t.Row(cells...)
	}
	return t
}

// Row adds a row. Its cells may be texts from the database.
func (t *Table) Row(cells ...any) {
	for i, c := range cells {
		if i > 0 {
			fmt.Fprint(t.w, "\t")
		}
		fmt.Fprint(t.w, Clean(fmt.Sprint(c)))
	}
	fmt.Fprintln(t.w)
}

// Flush writes the table.
func (t *Table) Flush() error { return t.w.Flush() }

// Clean makes a text from the database safe for a terminal: what can't be printed is escaped. An empty one is "-".
func Clean(s string) string {
	if s == "" {
		return "-"
	}
	return printed.Text(s)
}
