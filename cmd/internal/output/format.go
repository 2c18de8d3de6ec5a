// Package output has the forms in which commands print data.
package output

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// Streams are where a command prints: data to Stdout, everything else to Stderr.
type Streams struct{ Stdout, Stderr io.Writer }

// IsTerminal reports whether a person sits at the stream.
func IsTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Format is how data is printed.
type Format string

const (
	AsTable Format = "table"
	AsJSON  Format = "json"
	AsJSONL Format = "jsonl"
)

// FormatFlag adds -o with the given choices, the first of which is the default.
func FormatFlag(cmd *cobra.Command, f *Format, choices ...Format) {
	*f = choices[0]
	names := make([]string, len(choices))
	for i, c := range choices {
		names[i] = string(c)
	}
	cmd.Flags().VarP(&choice{f, choices}, "output", "o", "output as "+list(choices))
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp))
}

// choice is the flag's value.
type choice struct {
	value   *Format
	choices []Format
}

func (c *choice) String() string { return string(*c.value) }
func (c *choice) Type() string   { return "string" }

func (c *choice) Set(s string) error {
	if !slices.Contains(c.choices, Format(s)) {
		return fmt.Errorf("want %s", list(c.choices))
	}
	*c.value = Format(s)
	return nil
}

func list(choices []Format) string {
	text := string(choices[0])
	for i, c := range choices[1:] {
		if i == len(choices)-2 {
			text += " or " + string(c)
		} else {
			text += ", " + string(c)
		}
	}
	return text
}

// JSON writes v, indented.
func JSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// JSONL writes one line per value.
func JSONL[T any](w io.Writer, values []T) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	for _, v := range values {
		if err := e.Encode(v); err != nil {
			return err
		}
	}
	return nil
}
