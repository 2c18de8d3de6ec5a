// Package sheet describes a result as a person sees it, wherever that is. A verb describes its result once, in these
// parts; the command line draws them on a terminal, the console on a page.
package sheet

import (
	"strings"
	"time"

	"github.com/pgoutbox/outbox/admin/find"
	"github.com/pgoutbox/outbox/admin/health"
)

// Parts are what a sheet has, from top to bottom. Each is a value of one of the types below.
type Parts []any

// Line is a sentence that answers the question, such as what was done.
type Line string

// Hint is a sentence about the answer. A terminal prints it to standard error.
type Hint string

// Head begins what is about another thing.
type Head string

// Block is a text with lines of its own. A nil Text is one that the reader may not see.
type Block struct {
	Title string
	Text  []byte
}

// More leads to what a list has left out: the same verb, with one more parameter.
type More struct{ Param, Value string }

// Verdict is a state as a sentence, with what to do.
type Verdict struct{ health.Verdict }

// Findings are what was found, each with its weight and its repair.
type Findings []health.Symptom

// Changes are the differences of what was edited.
type Changes []find.Change

// Facts are names and values of one thing.
type Facts Row

// Life is what happened to a message, in order.
type Life []Step

// Step is one event of a Life. At is zero if it isn't known.
type Step struct {
	At    time.Time
	What  any
	Wrong bool
	Text  any
	Acts  []Act
}

// Table is a list of things. Empty says why there may be none.
type Table struct {
	Title, Empty string
	Columns      []string
	Rows         []Row
}

// Row is one thing of a list.
type Row struct {
	Cells []Cell
	Acts  []Act
	// Pick is the parameter "ids" that selects it, where several may be chosen.
	Pick string
}

// Cell is a value with its name. Values are texts, numbers, the types below, and fmt.Stringers.
type Cell struct {
	Title string
	Value any
}

// Act is what may be done with what is shown: a verb with parameters, as pairs.
type Act struct {
	Verb, Label string
	Params      []string
}

type (
	// ID is a number that names something.
	ID int64
	// Key is an ordering key, or another text of which the beginning is enough.
	Key string
	// Error is what went wrong. Its end has what to do.
	Error string
	// Note is a text that people write.
	Note string
	// Code is a text for machines.
	Code string
	// Bytes is a size.
	Bytes int64
	// Clock is a moment of which the date matters. Another time.Time is shown by how long ago it was.
	Clock time.Time
)

// Mark is a state, or a word with the colour of a state.
type Mark struct {
	State health.State
	Word  string
}

// Link is a value that leads to the result of another verb.
type Link struct {
	Value  any
	Verb   string
	Params []string
}

// Series are several values in one cell, with a text between them.
type Series struct {
	Between string
	Values  []any
}

// Of makes a row of names and values, by turns.
func Of(pairs ...any) (r Row) {
	for i := 0; i < len(pairs); i += 2 {
		r.Cells = append(r.Cells, Cell{pairs[i].(string), pairs[i+1]})
	}
	return r
}

// Can adds what may be done with the row's thing.
func (r Row) Can(verb, label string, params ...string) Row {
	r.Acts = append(r.Acts, Act{verb, label, params})
	return r
}

// List makes a table of things.
func List[T any](title, empty string, all []T, row func(T) Row) Table {
	t := Table{Title: title, Empty: empty}
	for _, cell := range row(*new(T)).Cells {
		t.Columns = append(t.Columns, cell.Title)
	}
	for _, one := range all {
		t.Rows = append(t.Rows, row(one))
	}
	return t
}

// To makes a value that leads to the result of another verb. One without a parameter that has a value leads nowhere.
func To(value any, verb string, params ...string) any {
	if strings.Join(params, "") == "" {
		return value
	}
	return Link{value, verb, params}
}

// Destination makes a destination's name that leads to it.
func Destination(name string) any {
	if name == "" {
		return ""
	}
	return Link{name, "destinations ls", []string{"name", name}}
}

// Destinations are several of them.
func Destinations(names []string) Series {
	s := Series{Between: ", "}
	for _, name := range names {
		destination, _, _ := strings.Cut(name, "/")
		s.Values = append(s.Values, Link{name, "destinations ls", []string{"name", destination}})
	}
	return s
}

// Route is the way of a message.
func Route(topic, destination string) Series { return Series{" → ", []any{topic, destination}} }
