package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/internal/printed"
)

// format is how data is printed.
type format string

const (
	asTable format = "table"
	asJSON  format = "json"
	asJSONL format = "jsonl"
)

// formatFlag adds -o with the given choices, the first of which is the default.
func formatFlag(cmd *cobra.Command, f *format, choices ...format) {
	*f = choices[0]
	cmd.Flags().VarP(&choice[format]{f, choices}, "output", "o", "output as "+list(choices, " or "))
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(texts(choices), cobra.ShellCompDirectiveNoFileComp))
}

// choice is a flag with a few values.
type choice[T ~string] struct {
	value   *T
	choices []T
}

func (c *choice[T]) String() string {
	if c.value == nil {
		return ""
	}
	return string(*c.value)
}

func (c *choice[T]) Set(s string) error {
	for _, v := range c.choices {
		if s == string(v) {
			*c.value = v
			return nil
		}
	}
	return fmt.Errorf("want %s", list(c.choices, " or "))
}

func (c *choice[T]) Type() string { return "string" }

func texts[T ~string](values []T) []string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = string(v)
	}
	return out
}

func list[T ~string](values []T, last string) string {
	t := texts(values)
	if len(t) < 2 {
		return strings.Join(t, "")
	}
	return strings.Join(t[:len(t)-1], ", ") + last + t[len(t)-1]
}

// printJSON writes v, indented.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// printJSONL writes one line per value.
func printJSONL[T any](w io.Writer, values []T) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	for _, v := range values {
		if err := e.Encode(v); err != nil {
			return err
		}
	}
	return nil
}

// table aligns columns.
type table struct{ w *tabwriter.Writer }

func newTable(w io.Writer, columns ...string) *table {
	t := &table{tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)}
	t.row(toAny(columns)...)
	return t
}

func toAny(s []string) []any {
	out := make([]any, len(s))
	for i, v := range s {
		out[i] = v
	}
	return out
}

func (t *table) row(cells ...any) {
	for i, c := range cells {
		if i > 0 {
			fmt.Fprint(t.w, "\t")
		}
		fmt.Fprint(t.w, clean(fmt.Sprint(c)))
	}
	fmt.Fprintln(t.w)
}

func (t *table) flush() error { return t.w.Flush() }

// clean makes a text from the database safe for a terminal: what can't be printed is escaped.
func clean(s string) string {
	if s == "" {
		return "-"
	}
	return printed.Text(s)
}

// errorWidth bounds an error in the last column of a table, in runes. The repair stands at its end.
const errorWidth = 300

// short cuts s to n runes.
func short(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + "…"
}

// ago says how long before now t was, "-" for the zero time.
func ago(now, t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return printed.Span(now.Sub(t))
}
