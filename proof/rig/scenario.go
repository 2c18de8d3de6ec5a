package rig

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pgoutbox/outbox/internal/check"
)

// Scenario is one history: a load on a table, relays as processes, what goes wrong meanwhile, and a verdict.
type Scenario struct {
	Workload LoadConfig
	// Backlog has everything written before a relay starts.
	Backlog bool
	Target  Target
	// Checker is told what was committed and what arrived. Default: a new one.
	Checker *check.Checker

	// Binary is the outbox that runs, Dir has the configurations and logs of its relays. Configs are one for each
	// relay; their names are those of [RelayName].
	Binary, Dir string
	Configs     []string

	// Faults happen one after the other, while there is load.
	Faults []func(context.Context) error
	// Until returns when the writers may end. Default: when they have written all that they are to write.
	Until func(context.Context) error

	// Starts is how long a relay may take to start, and how long nothing may be written. Within is how long everything
	// may take to be delivered when the writers have ended.
	Starts, Within time.Duration
}

// RelayName is the name of a scenario's relay.
func RelayName(i int) string { return fmt.Sprint("relay-", i+1) }

// History is a scenario that happens.
type History struct {
	Scenario
	Load   *Load
	Relays []*Relay
	Losses Losses // what a fault has the servers themselves lose
}

// Open makes the topic and the tables.
func (s Scenario) Open(ctx context.Context) (*History, error) {
	if s.Checker == nil {
		s.Checker = check.New(check.Config{})
	}
	h := &History{Scenario: s}
	if err := s.Target.Create(ctx); err != nil {
		return h, err
	}
	load, err := NewLoad(ctx, s.Workload)
	if err == nil {
		h.Load = load
	}
	return h, err
}

// Start starts the relays and the load.
func (h *History) Start(ctx context.Context) error {
	if h.Backlog {
		h.Load.Start()
		if err := h.Load.Wait(h.Starts); err != nil {
			return err
		}
	}
	for i, config := range h.Configs {
		relay, err := StartRelay(h.Binary, h.Dir, RelayName(i), config)
		if err != nil {
			return err
		}
		h.Relays = append(h.Relays, relay)
	}
	for _, relay := range h.Relays {
		if err := relay.Up(ctx, h.Starts); err != nil {
			return err
		}
	}
	if !h.Backlog {
		h.Load.Start()
	}
	return nil
}

// Run has the faults happen, ends writers and relays, and judges.
func (h *History) Run(ctx context.Context) (Verdict, error) {
	for _, fault := range h.Faults {
		if err := fault(ctx); err != nil {
			return Verdict{}, err
		}
	}
	until := func(context.Context) error { return h.Load.Wait(h.Starts) }
	if h.Until != nil {
		until = h.Until
	}
	if err := until(ctx); err != nil {
		return Verdict{}, err
	}
	return h.Load.Judge(ctx, h.Target, h.Checker, h.Losses, h.Within, h.stop)
}

// stop ends the relays in good order. They must all still be running, whatever has happened to them.
func (h *History) stop() error {
	var errs []error
	for _, relay := range h.Relays {
		if !relay.Running() {
			errs = append(errs, fmt.Errorf("relay %s has ended by itself; its log ends with:\n%s", relay.Name, relay.Log()))
			continue
		}
		errs = append(errs, relay.Stop(time.Minute))
	}
	return errors.Join(errs...)
}

// Restart starts a relay that has ended.
func (h *History) Restart(ctx context.Context, relay *Relay) error {
	if err := relay.Start(); err != nil {
		return err
	}
	return relay.Up(ctx, h.Starts)
}

// Close ends what still runs.
func (h *History) Close() error {
	var errs []error
	for _, relay := range h.Relays {
		errs = append(errs, relay.Kill())
	}
	if h.Load != nil {
		h.Load.Close()
	}
	return errors.Join(errs...)
}
