package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/load"
	"github.com/pgoutbox/outbox/cmd/internal/discover"
	"github.com/pgoutbox/outbox/cmd/internal/fleet"
	"github.com/pgoutbox/outbox/cmd/internal/output"
	"github.com/pgoutbox/outbox/cmd/internal/session"
	"github.com/pgoutbox/outbox/internal/printed"
)

func (a *app) fleetPlanCommand() *cobra.Command {
	var sets []string
	var out output.Format
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Print the databases that the configuration and its sources have now",
		Long: `Reads the configuration, looks where it discovers databases, and prints those that a relay which starts now delivers
from. It changes nothing. With --server it compares them with those of a relay that runs:

  added     the relay takes it in with its next look
  changed   its settings are others (secrets are not compared): it drains, and begins again with these
  removed   no source has it any more: it drains and ends
  withheld  no source has it any more, and the relay keeps it, because more vanish at once than max_vanish allows
  left out  a source has it, and it can't be delivered from as the source says

In a fleet, MEMBERS are those that deliver from each: as the relay of --server knows them, or by fleet.count.

What is withheld goes when max_vanish of its source allows it: change that, have the relay read its configuration again
(SIGHUP), and set it back. Or start the relay again: then it knows of no other.

Exits with 1 if a source does not answer, or a database is left out.`,
		Example: `  outbox fleet plan
  outbox fleet plan --server https://relay.example.com:9187 -o json`,
		Args: cobra.NoArgs, Annotations: map[string]string{isVerb: "fleet"},
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := a.plan(cmd.Context(), sets)
			if err != nil {
				return err
			}
			if out == output.AsJSON {
				err = output.JSON(a.Stdout, p)
			} else {
				err = p.print(a.Streams)
			}
			return cmp.Or(err, p.err())
		},
	}
	session.SetFlag(cmd, &sets)
	output.FormatFlag(cmd, &out, output.AsTable, output.AsJSON)
	return cmd
}

// plan is what a relay that starts now delivers from, and how that differs from one that runs.
type plan struct {
	Compared  bool              `json:"compared"` // with a relay that runs
	Counts    map[string]int    `json:"counts"`   // of changes
	Databases []planned         `json:"databases"`
	Sources   []discover.Status `json:"sources"`
}

// planned is a database of a plan.
type planned struct {
	Name         string   `json:"name"`
	Source       string   `json:"source,omitempty"` // that it was discovered by
	Change       string   `json:"change,omitempty"`
	Destinations []string `json:"destinations,omitempty"`
	Members      []string `json:"members,omitempty"` // that deliver from it
	Reason       string   `json:"reason,omitempty"`
}

const (
	planAdded    = "added"
	planChanged  = "changed"
	planRemoved  = "removed"
	planWithheld = "withheld"
	planLeftOut  = "left out"
)

func (a *app) plan(ctx context.Context, sets []string) (*plan, error) {
	loaded, err := a.Load(load.Input{Unopened: true}, sets)
	if err != nil {
		return nil, err
	}
	var running *session.Running
	if a.Server() != "" {
		if running, err = a.Running(ctx); err != nil {
			return nil, err
		}
	}
	cfg, sources := a.Discovered(ctx, loaded)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	for i := range sources {
		sources[i].Error = a.Redact(sources[i].Error)
	}
	p := newPlan(cfg.All(), sources, running)
	var members []fleet.Member
	if f := loaded.Config.Fleet; f != nil && f.Home.URL.Empty() {
		for ordinal := range f.Count {
			members = append(members, fleet.Member{Name: fmt.Sprintf("ordinal %d", ordinal), Ordinal: ordinal})
		}
	}
	if running != nil && running.Members != nil {
		members = running.Members
	}
	p.place(cfg.All(), members)
	return p, nil
}

// place notes on which members of a fleet the databases are.
func (p *plan) place(databases []config.Effective, members []fleet.Member) {
	if len(members) == 0 {
		return
	}
	var parts []fleet.Part
	for _, db := range databases {
		for _, d := range db.Destinations {
			for group := range d.ShardGroups {
				parts = append(parts, fleet.Part{Database: db.Name, Destination: d.Name, Group: group})
			}
		}
	}
	names := make(map[int]string)
	for _, m := range members {
		names[m.Ordinal] = m.Name
	}
	of := make(map[string][]string)
	for part, choice := range fleet.Place(parts, members) {
		if name := names[choice.First]; choice.First != fleet.Spare && !slices.Contains(of[part.Database], name) {
			of[part.Database] = append(of[part.Database], name)
		}
	}
	for i, db := range p.Databases {
		p.Databases[i].Members = of[db.Name]
		slices.Sort(p.Databases[i].Members)
	}
}

// newPlan compares databases with those of a relay that runs, unless that is nil.
func newPlan(databases []config.Effective, sources []discover.Status, running *session.Running) *plan {
	p := &plan{Compared: running != nil, Counts: make(map[string]int), Sources: sources}
	of := make(map[string]string)
	for _, s := range sources {
		for _, name := range s.Databases {
			of[name] = s.Source
		}
	}
	seen := make(map[string]bool)
	add := func(db planned) {
		seen[db.Name] = true
		p.Counts[db.Change]++
		p.Databases = append(p.Databases, db)
	}
	for _, one := range databases {
		db := planned{Name: one.Name, Source: of[one.Name]}
		for _, d := range one.Destinations {
			db.Destinations = append(db.Destinations, d.Name)
		}
		if running != nil {
			switch now, runs := running.Databases[one.Name]; {
			case !runs:
				db.Change = planAdded
			case now.Settings != one.Fingerprint():
				db.Change = planChanged
			}
		}
		add(db)
	}
	for _, s := range sources {
		for _, l := range s.LeftOut {
			add(planned{Name: l.Name, Source: s.Source, Change: planLeftOut, Reason: l.Reason})
		}
	}
	if running != nil {
		withheld := make(map[string]string)
		for _, s := range running.Discovery {
			for _, name := range s.Withheld {
				withheld[name] = s.Source
			}
		}
		failing := slices.ContainsFunc(sources, func(s discover.Status) bool { return s.Error != "" })
		for name := range running.Databases {
			source, kept := withheld[name]
			switch {
			case seen[name]:
			case kept:
				add(planned{Name: name, Source: source, Change: planWithheld})
			case failing:
				add(planned{Name: name, Reason: "a source does not answer now"})
			default:
				add(planned{Name: name, Change: planRemoved})
			}
		}
	}
	delete(p.Counts, "")
	slices.SortFunc(p.Databases, func(a, b planned) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Change, b.Change)) })
	return p
}

func (p *plan) print(to output.Streams) error {
	line := printed.Many(len(p.Databases)-p.Counts[planLeftOut], "database", "databases")
	for _, change := range []string{planAdded, planChanged, planRemoved, planWithheld, planLeftOut} {
		if n := p.Counts[change]; n > 0 {
			line += fmt.Sprintf(", %d %s", n, change)
		}
	}
	if p.Compared && len(p.Counts) == 0 {
		line += ": the relay has the same"
	}
	fmt.Fprintln(to.Stdout, line)
	for _, s := range p.Sources {
		state := printed.Many(len(s.Databases), "database", "databases")
		if s.Error != "" {
			state = "does not answer: " + output.Clean(s.Error)
		}
		fmt.Fprintf(to.Stdout, "source %s: %s\n", s.Source, state)
	}
	if len(p.Databases) == 0 {
		return nil
	}
	fmt.Fprintln(to.Stdout)
	table := output.NewTable(to.Stdout, "DATABASE", "SOURCE", "DESTINATIONS", "MEMBERS", "CHANGE", "REASON")
	for _, db := range p.Databases {
		list := func(names []string) string { return cmp.Or(strings.Join(names, ", "), "-") }
		table.Row(db.Name, cmp.Or(db.Source, "-"), list(db.Destinations), list(db.Members), cmp.Or(db.Change, "-"), db.Reason)
	}
	return table.Flush()
}

// err is what the exit code tells.
func (p *plan) err() error {
	if err := discover.Failed(p.Sources); err != nil {
		return err
	}
	if n := p.Counts[planLeftOut]; n > 0 {
		return fmt.Errorf("%s can't be delivered from as the sources say", printed.Many(n, "database", "databases"))
	}
	return nil
}
