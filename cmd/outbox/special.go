package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/output"
)

// commandOf makes the command of a verb.
func (a *app) commandOf(v verbs.Verb) *cobra.Command {
	switch v.Name {
	case "status":
		return a.statusCommand(v)
	case "check":
		return a.checkCommand(v)
	case "doctor":
		return a.doctorCommand(v)
	case "replay":
		return a.replayCommand(v)
	}
	return a.verb(v, a.specials()[v.Name])
}

// specials are what commands do beside what the table of verbs says, by the verbs' names.
func (a *app) specials() map[string]special {
	return map[string]special{
		"dead ls":         {aliases: []string{"list"}, prepare: refusePayloads},
		"dead group":      {aliases: []string{"groups"}},
		"dead edit":       {prepare: a.readPayload},
		"dead requeue":    {choose: chooseListed, follow: a.follow},
		"dead ack":        {choose: chooseListed, follow: a.follow},
		"dead discard":    {choose: chooseListed, follow: a.follow},
		"dead restore":    {choose: chooseListed, follow: a.follow},
		"jobs ls":         {aliases: []string{"list"}},
		"jobs undo":       {follow: a.follow},
		"destinations ls": {aliases: []string{"list"}},
		"handover":        {prepare: a.printWaiting},
	}
}

// printWaiting prints what a handover waits for.
func (a *app) printWaiting(params any, _ output.Format) error {
	params.(*verbs.Handover).Observe = func(waitsFor string) { fmt.Fprintln(a.Stderr, "waiting:", output.Clean(waitsFor)) }
	return nil
}
