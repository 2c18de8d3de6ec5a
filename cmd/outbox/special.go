package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/admin/health"
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
		"dead requeue":    {follow: a.follow},
		"dead ack":        {follow: a.follow},
		"dead discard":    {follow: a.follow},
		"dead restore":    {follow: a.follow},
		"jobs ls":         {aliases: []string{"list"}},
		"jobs undo":       {follow: a.follow},
		"destinations ls": {aliases: []string{"list"}},
		"handover":        {prepare: a.printWaiting},
		"canary":          {judge: arrivedEverywhere},
	}
}

// printWaiting prints what a handover waits for.
func (a *app) printWaiting(params any, _ output.Format) error {
	params.(*verbs.Handover).Observe = func(waitsFor string) { fmt.Fprintln(a.Stderr, "waiting:", output.Clean(waitsFor)) }
	return nil
}

// arrivedEverywhere is an error if a canary has not.
func arrivedEverywhere(result any) error {
	c := result.(health.Canary)
	switch {
	case len(c.Failed)+len(c.Waiting) > 0:
		return errors.New("the message has not arrived everywhere: look at outbox status")
	case len(c.Settled) == 0:
		return errors.New("no destination is there to settle it: start a relay")
	}
	return nil
}
