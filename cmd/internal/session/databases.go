package session

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/connect"
	"github.com/pgoutbox/outbox/cmd/internal/exit"
)

// Databases are those on which a verb that only looks is run: the only one or several.
type Databases []*database

type database struct {
	name         string   // "" if the configuration has no other
	destinations []string // of the configuration
	open         func(context.Context) (Runner, error)
	runner       Runner  // nil if it isn't open
	server       *server // nil: there is one database
}

// Databases are those that the flags, the environment or the configuration name. If there are several and a destination
// is given, they are those that have it.
func (s *Session) Databases(ctx context.Context, destination string) (Databases, error) {
	if s.Server() != "" {
		return Databases{{name: s.databaseName, open: s.Runner}}, nil
	}
	all, err := s.addresses(ctx)
	if err != nil {
		return nil, err
	}
	without := func(at Address) bool { return at.Err == nil && !slices.Contains(at.Destinations, destination) }
	having := slices.DeleteFunc(slices.Clone(all), without)
	if slices.ContainsFunc(having, func(at Address) bool { return at.Err == nil }) {
		all = having
	}
	var list Databases
	of := make(map[string]*server)
	for _, at := range all {
		server := s.serverOf(of, at)
		open := func(ctx context.Context) (Runner, error) {
			conn, err := s.operateOn(ctx, at)
			return Direct{conn}, err
		}
		list = append(list, &database{name: at.Name, destinations: at.Destinations, server: server, open: open})
	}
	return list, nil
}

// Result is what a verb returned for one database.
type Result struct {
	Name      string // "" if the configuration has no other
	Value     any
	Err       error
	Elsewhere bool // the relay that was asked delivers nothing from it: others do
}

// Run runs a verb on all databases, some of each server at once. Each has a time limit of its own, so that one which
// hangs costs the others nothing.
func (all Databases) Run(ctx context.Context, v verbs.Verb, params any) []Result {
	results := make([]Result, len(all))
	var running sync.WaitGroup
	for i, d := range all {
		running.Go(func() {
			value, err := d.run(ctx, v, params)
			if r, ok := value.(*health.Report); ok && err == nil {
				r.Expect(d.destinations)
			}
			results[i] = Result{Name: d.name, Value: value, Err: err}
		})
	}
	running.Wait()
	return results
}

// Close closes what is open.
func (all Databases) Close() {
	for _, d := range all {
		d.close()
	}
}

func (d *database) run(ctx context.Context, v verbs.Verb, params any) (any, error) {
	if err := d.server.begin(ctx); err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, v.Timeout)
	defer cancel()
	value, err := d.try(limited, v, params)
	d.server.end(err)
	if err != nil || d.server.crowded() {
		d.close()
		if limited.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("no answer within %v: %w", v.Timeout, err)
		}
	}
	return value, err
}

func (d *database) try(ctx context.Context, v verbs.Verb, params any) (any, error) {
	if d.runner == nil {
		runner, err := d.open(ctx)
		if err != nil {
			return nil, err
		}
		d.runner = runner
	}
	return d.runner.Run(ctx, v, "", params)
}

func (d *database) close() {
	if d.runner != nil {
		d.runner.Close()
		d.runner = nil
	}
}

// Failed is an error that names the databases whose result is an error, nil if there are none.
func Failed(results []Result) error {
	var names []string
	for _, r := range results {
		if r.Err != nil {
			names = append(names, r.Name)
		}
	}
	switch {
	case len(names) == 0:
		return nil
	case len(results) == 1:
		return exit.ErrPrinted // the verdict names the cause
	}
	return fmt.Errorf("%d of %d databases could not be asked: %s", len(names), len(results), Some(names))
}

// Unreachable reports whether it is the database that can't be reached, and not a server's API.
func (s *Session) Unreachable(err error) bool { return s.Server() == "" && connect.Unreachable(err) }

// Unknown is the report of a database whose result is err.
func (s *Session) Unknown(err error) *health.Report {
	now := time.Now()
	cause := health.Finding{State: health.StateUnknown, Cause: s.Redact(err.Error())}
	if s.Unreachable(err) { // as a relay is that can't reach it
		cause.State, cause.Advice = health.StateBroken, "check the database"
	}
	return &health.Report{At: now, Verdict: health.Verdict{Finding: cause, At: now}}
}
