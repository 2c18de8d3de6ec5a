// Package verbs is the table of what an operator may ask and do: one entry per verb, with its name, its parameters, its
// result and its run. The command line, the REST API and its description are made from the table, so they can't
// disagree.
//
// To add a verb, write its parameters as a struct, its result as a struct of plain JSON, an entry, and a line in [All].
package verbs

import (
	"fmt"
	"slices"
	"sync"
)

// All returns the table.
func All() []Verb { return slices.Clone(all()) }

// all makes the table once: a process may serve it for a thousand databases.
var all = sync.OnceValue(func() []Verb {
	return []Verb{
		Status(), checkStatus(), doctor(), canary(),
		deadList(), deadGroup(), deadShow(), deadEdit(), deadAck(), deadRequeue(), deadDiscard(), deadRestore(),
		tablesDead(), tablesRequeue(), tablesAck(),
		jobsList(), jobsShow(), jobsRun(), jobsStop(), jobsUndo(),
		messagesFind(), messagesShow(), replayMessages(),
		destinationsList(), destinationsMove(), destinationsDrop(),
		inboxStatus(), inboxWindow(),
		holdsList(), relaysList(), retention(), audit(),
		pause(), resume(), throttle(), controls(), retry(),
		rebase(), handover(),
	}
})

// ByName finds a verb.
func ByName(name string) (Verb, error) {
	for _, v := range all() {
		if v.Name == name {
			return v, nil
		}
	}
	return Verb{}, fmt.Errorf("there is no verb %q", name)
}
