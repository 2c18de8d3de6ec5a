package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/connect"
	"github.com/pgoutbox/outbox/cmd/internal/exit"
)

// place is a database where a verb that only looks is run, be it the only one or one of several.
type place struct {
	name         string   // "" if the configuration has no other
	destinations []string // of the configuration
	open         func(context.Context) (seat, error)
	seat         seat // nil if it isn't open
}

// places are the databases that the flags, the environment or the configuration name. If there are several and a
// destination is given, they are those that have it.
func (a *app) places(destination string) ([]*place, error) {
	if a.server() != "" {
		return []*place{{name: a.databaseName, open: a.seat}}, nil
	}
	all, err := a.addresses()
	if err != nil {
		return nil, err
	}
	without := func(at address) bool { return !slices.Contains(at.destinations, destination) }
	if having := slices.DeleteFunc(slices.Clone(all), without); len(having) > 0 {
		all = having
	}
	var list []*place
	for _, at := range all {
		list = append(list, &place{name: at.name, destinations: at.destinations, open: func(ctx context.Context) (seat, error) {
			conn, err := a.operateOn(ctx, at)
			return direct{conn}, err
		}})
	}
	return list, nil
}

// answer is what one of the places said, or why it said nothing.
type answer struct {
	name   string
	result any
	err    error
}

// ask runs a verb at all places at once. Each has a time limit of its own, so that one which hangs costs the others
// nothing.
func (a *app) ask(ctx context.Context, v verbs.Verb, params any, places []*place) []answer {
	answers := make([]answer, len(places))
	var asking sync.WaitGroup
	for i, p := range places {
		asking.Go(func() {
			result, err := p.ask(ctx, v, params)
			if r, ok := result.(*health.Report); ok && err == nil {
				r.Expect(p.destinations)
			}
			answers[i] = answer{p.name, result, err}
		})
	}
	asking.Wait()
	return answers
}

func (p *place) ask(ctx context.Context, v verbs.Verb, params any) (any, error) {
	limited, cancel := context.WithTimeout(ctx, v.Timeout)
	defer cancel()
	result, err := p.try(limited, v, params)
	if err != nil {
		p.close()
		if limited.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("no answer within %v: %w", v.Timeout, err)
		}
	}
	return result, err
}

func (p *place) try(ctx context.Context, v verbs.Verb, params any) (any, error) {
	if p.seat == nil {
		seat, err := p.open(ctx)
		if err != nil {
			return nil, err
		}
		p.seat = seat
	}
	return p.seat.run(ctx, v, "", params)
}

func (p *place) close() {
	if p.seat != nil {
		p.seat.close()
		p.seat = nil
	}
}

// leave closes what is open.
func leave(places []*place) {
	for _, p := range places {
		p.close()
	}
}

// unasked is an error that names the databases which gave no answer, if there are any.
func unasked(answers []answer) error {
	var names []string
	for _, from := range answers {
		if from.err != nil {
			names = append(names, from.name)
		}
	}
	switch {
	case len(names) == 0:
		return nil
	case len(answers) == 1:
		return exit.ErrPrinted // the verdict names the cause
	}
	return fmt.Errorf("%d of %d databases could not be asked: %s", len(names), len(answers), strings.Join(names, ", "))
}

// unreachable reports whether it is the database that can't be reached, and not a server's API.
func (a *app) unreachable(err error) bool { return a.server() == "" && connect.Unreachable(err) }

// unknown is the report of a database that could not be asked.
func (a *app) unknown(err error) *health.Report {
	now := time.Now()
	cause := health.Finding{State: health.StateUnknown, Cause: a.redact(err.Error())}
	if a.unreachable(err) { // as a relay is that can't reach it
		cause.State, cause.Advice = health.StateBroken, "check the database"
	}
	return &health.Report{At: now, Verdict: health.Verdict{Finding: cause, At: now}}
}

// counted says how many there are of each word, the worst first.
func counted(words []string) string {
	var parts []string
	for len(words) > 0 {
		n := len(words)
		word := words[0]
		words = slices.DeleteFunc(words, func(w string) bool { return w == word })
		parts = append(parts, fmt.Sprintf("%d %s", n-len(words), word))
	}
	return strings.Join(parts, ", ")
}
