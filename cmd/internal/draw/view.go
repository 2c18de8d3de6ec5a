// Package draw shows the results of verbs to a person, by the names in Views.
package draw

import (
	"fmt"
	"time"

	"github.com/pgoutbox/outbox/cmd/internal/output"
)

// View shows a verb's result to a person.
type View struct {
	// Write prints the result. A verb without it prints JSON.
	Write func(to output.Streams, params, result any) error

	// Preview prints what a dry run found, and Question asks whether to do it: not proceed if nothing is to be done.
	// Without a preview the question comes first, and found is nil.
	Preview  func(to output.Streams, params, found any) error
	Question func(params, found any) (text string, proceed bool)
}

// shows makes a view of a verb with parameters P and the result R.
func shows[P, R any](write func(to output.Streams, p *P, r R) error) View {
	return View{Write: func(to output.Streams, params, result any) error { return write(to, params.(*P), result.(R)) }}
}

// says makes a view of a verb whose result is a line.
func says[P, R any](line func(p *P, r R) string) View {
	return shows(func(to output.Streams, p *P, r R) error {
		_, err := fmt.Fprintln(to.Stdout, line(p, r))
		return err
	})
}

// lists makes a view of a verb whose result is a list: a row for each. none is printed if the list is empty. more, if
// not nil, returns the limit and the flag that continues behind the last one.
func lists[P, R any](none string, columns []any, row func(now time.Time, r R) []any,
	more func(p *P, last R) (limit int, flag string)) View {
	return shows(func(to output.Streams, p *P, list []R) error {
		if len(list) == 0 && none != "" {
			fmt.Fprintln(to.Stderr, none)
			return nil
		}
		now := time.Now()
		t := output.NewTable(to.Stdout, columns...)
		for _, r := range list {
			t.Row(row(now, r)...)
		}
		if err := t.Flush(); err != nil || more == nil || len(list) == 0 {
			return err
		}
		if limit, flag := more(p, list[len(list)-1]); len(list) == limit {
			fmt.Fprintf(to.Stderr, "there may be more: add %s\n", flag)
		}
		return nil
	})
}

// confirms adds to a view the question that is asked first, "" for none.
func confirms[P any](v View, question func(p *P) string) View {
	v.Question = func(params, _ any) (string, bool) { return question(params.(*P)), true }
	return v
}

// asks adds to a view what is shown and asked before something is changed: whether to proceed.
func asks[P, R any](v View, preview func(to output.Streams, p *P, found R) error, question func(p *P, found R) (string, bool)) View {
	v.Preview = func(to output.Streams, params, found any) error { return preview(to, params.(*P), found.(R)) }
	v.Question = func(params, found any) (string, bool) { return question(params.(*P), found.(R)) }
	return v
}
