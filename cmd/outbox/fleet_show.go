package main

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/cmd/internal/config/load"
	"github.com/pgoutbox/outbox/cmd/internal/connect"
	"github.com/pgoutbox/outbox/cmd/internal/exit"
	"github.com/pgoutbox/outbox/cmd/internal/fleet"
	"github.com/pgoutbox/outbox/cmd/internal/fleet/home"
	"github.com/pgoutbox/outbox/cmd/internal/output"
	"github.com/pgoutbox/outbox/cmd/internal/report"
	"github.com/pgoutbox/outbox/cmd/internal/session"
)

// fleetOverview is "outbox fleet" itself.
func (a *app) fleetOverview(cmd *cobra.Command) {
	var out output.Format
	var strict bool
	cmd.Annotations = map[string]string{isVerb: "fleet"}
	cmd.Long = `Shows who has what: the members of the fleet with their ordinals, shares and beats, what moves and why, and databases that
no member has. It reads the fleet's home and the configuration; with --server a member tells it.

A part is a shard group of a destination of a database. Its first choice has it, or takes it next; its second choice
takes it over if the first one is gone.`
	cmd.Example = `  outbox fleet
  outbox fleet parts --member relay-2
  outbox fleet moves
  outbox fleet --server http://relay-0:9187 -o json`
	output.FormatFlag(cmd, &out, output.AsTable, output.AsJSON)
	cmd.Flags().BoolVar(&strict, "exit-code", false, "exit with 1 if a member is gone, a database has none, or the placement is frozen")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		f, err := a.fleet(cmd.Context())
		if err != nil {
			return err
		}
		if out == output.AsJSON {
			err = output.JSON(a.Stdout, f)
		} else {
			err = f.Overview(a.Streams)
		}
		if fault := f.Fault(); err == nil && strict && fault != "" {
			return errors.New(fault)
		}
		return err
	}
}

func (a *app) fleetPartsCommand() *cobra.Command {
	var out output.Format
	var member string
	var database string
	cmd := &cobra.Command{
		Use:   "parts",
		Short: "List who has each part, those that move first",
		Example: `  outbox fleet parts --member relay-2
  outbox fleet parts --of orders`,
		Args: cobra.NoArgs, Annotations: map[string]string{isVerb: "fleet"},
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := a.fleet(cmd.Context())
			if err != nil {
				return err
			}
			parts := f.PartsOf(member, database)
			switch {
			case len(parts) == 0 && len(f.Parts) > 0:
				return exit.With(exit.NotFound,
					errors.New("no part is like this: outbox fleet lists the members, outbox fleet plan the databases"))
			case out == output.AsJSON:
				return output.JSON(a.Stdout, parts)
			case out == output.AsJSONL:
				return output.JSONL(a.Stdout, parts)
			}
			return f.PrintParts(a.Streams, parts)
		},
	}
	output.FormatFlag(cmd, &out, output.AsTable, output.AsJSON, output.AsJSONL)
	cmd.Flags().StringVar(&member, "member", "", "parts that this member has or is to have")
	cmd.Flags().StringVar(&database, "of", "", "parts of this database")
	return cmd
}

func (a *app) fleetMovesCommand() *cobra.Command {
	var out output.Format
	var limit int
	cmd := &cobra.Command{
		Use:   "moves",
		Short: "List the last move of each part, the latest first, and why",
		Args:  cobra.NoArgs, Annotations: map[string]string{isVerb: "fleet"},
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := a.fleet(cmd.Context())
			if err != nil {
				return err
			}
			moves := f.Moves[:min(len(f.Moves), max(limit, 0))]
			switch out {
			case output.AsJSON:
				return output.JSON(a.Stdout, moves)
			case output.AsJSONL:
				return output.JSONL(a.Stdout, moves)
			}
			return f.PrintMoves(a.Streams, moves)
		},
	}
	output.FormatFlag(cmd, &out, output.AsTable, output.AsJSON, output.AsJSONL)
	cmd.Flags().IntVar(&limit, "limit", 100, "at most so many")
	return cmd
}

// fleet is what the home has, or a member says.
func (a *app) fleet(ctx context.Context) (*report.Fleet, error) {
	if a.Server() != "" {
		var f report.Fleet
		body, err := a.Ask(ctx, report.FleetPath)
		if err == nil {
			err = json.Unmarshal(body, &f)
		}
		return &f, err
	}
	loaded, err := a.Load(load.Input{Unopened: true}, nil)
	if err != nil {
		return nil, err
	}
	section := loaded.Config.Fleet
	switch {
	case section == nil:
		return nil, exit.Usagef("the configuration has no fleet: its relays share nothing; outbox relays lists those of a database")
	case section.Home.URL.Empty():
		return nil, exit.Usagef("the fleet has no home: who has what follows from fleet.count and each member's ordinal; " +
			"ask one with --server")
	}
	conn, err := a.Open(ctx, session.Address{URL: section.Home.URL.Text(), Origin: "fleet.home.url"})
	if err != nil {
		return nil, err
	}
	defer connect.Close(conn)
	state, err := home.Read(ctx, conn, section.Name)
	if err != nil {
		return nil, err
	}
	cfg, _ := a.Discovered(ctx, loaded)
	var parts []fleet.Part
	for _, db := range cfg.All() {
		for _, d := range db.Destinations {
			for group := range d.ShardGroups {
				parts = append(parts, fleet.Part{Database: db.Name, Destination: d.Name, Group: group})
			}
		}
	}
	f := report.FleetOf(section.Name, state, parts)
	slices.Sort(f.Nobody)
	return f, nil
}
