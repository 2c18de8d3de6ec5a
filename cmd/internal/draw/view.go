// Package draw shows the results of verbs to a person, by the names in Views.
package draw

import (
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

// asks adds to a view what is shown and asked before something is changed.
func asks[P, R any](v View, preview func(to output.Streams, p *P, found R) error, question func(p *P, found R) (string, bool)) View {
	if preview != nil {
		v.Preview = func(to output.Streams, params, found any) error { return preview(to, params.(*P), found.(R)) }
	}
	v.Question = func(params, found any) (string, bool) {
		r, _ := found.(R)
		return question(params.(*P), r)
	}
	return v
}
