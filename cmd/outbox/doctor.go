package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/config/load"
	"github.com/pgoutbox/outbox/cmd/internal/connect"
	"github.com/pgoutbox/outbox/cmd/internal/daemon"
	"github.com/pgoutbox/outbox/cmd/internal/exit"
	"github.com/pgoutbox/outbox/cmd/internal/output"
	"github.com/pgoutbox/outbox/cmd/internal/report"
	"github.com/pgoutbox/outbox/cmd/internal/session"
	"github.com/pgoutbox/outbox/mapping"
)

// doctorCommand is the verb, with the brokers of this machine's configuration, and without a table the doctor of
// tables.
func (a *app) doctorCommand(v verbs.Verb) *cobra.Command {
	var table string
	var strict bool
	cmd := a.verb(v, special{
		formats: []output.Format{output.AsTable, output.AsJSON},
		run: func(ctx context.Context, _ any, out output.Format) error {
			switch {
			case table != "" && a.ServerURL != "":
				return exit.Usagef("outbox doctor --table works on this machine and its database alone: leave out --server")
			case table != "":
				return a.doctorOfTable(ctx, table, out)
			}
			return a.doctor(ctx, v, out, strict)
		},
	})
	cmd.Flags().StringVar(&table, "table", "", "look at this table, with its schema unless that is in the search path, "+
		"and propose how to deliver from it")
	cmd.Flags().BoolVar(&strict, "exit-code", false, "exit with 1 if there is a fault")
	return cmd
}

// doctorOfTable examines a table that exists.
func (a *app) doctorOfTable(ctx context.Context, table string, out output.Format) error {
	conn, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	defer connect.Close(conn)
	found, err := mapping.Doctor(ctx, conn, table)
	switch {
	case err != nil:
		return err
	case out == output.AsJSON:
		return output.JSON(a.Stdout, found)
	}
	_, err = fmt.Fprint(a.Stdout, report.Table(found))
	return err
}

// doctor examines the database, or all there are, with their brokers.
func (a *app) doctor(ctx context.Context, v verbs.Verb, out output.Format, strict bool) error {
	databases, err := a.Databases(ctx, "")
	if err != nil {
		return err
	}
	defer databases.Close()
	results := databases.Run(ctx, v, v.New())
	if len(results) == 1 && results[0].Err != nil {
		return results[0].Err
	}
	probed, err := a.probeBrokers(ctx)
	if err != nil {
		return err
	}
	var all []report.Examined
	faults := 0
	for _, found := range results {
		e, asked := found.Value.(*health.Examination)
		if !asked {
			e = &health.Examination{Well: []string{}}
			e.Symptoms = append(e.Symptoms, health.Symptom{About: "database", Weight: health.WeightFault,
				Text: a.Redact(found.Err.Error())})
		}
		for _, p := range probed {
			if (p.Database == "" || p.Database == found.Name) && (asked || p.What != "database") {
				a.addProbed(e, p)
			}
		}
		e.OnDatabase(found.Name)
		e.Sort()
		for _, s := range e.Symptoms {
			if s.Weight == health.WeightFault {
				faults++
			}
		}
		all = append(all, report.Examined{Name: found.Name, Examination: e})
	}
	if err := report.Doctor(a.Streams, out, v, all); err != nil {
		return err
	}
	if strict && faults > 0 {
		return fmt.Errorf("%d faults", faults)
	}
	return session.Failed(results)
}

// probeBrokers asks the databases and brokers of the configuration, if there is one on this machine, as a relay would.
func (a *app) probeBrokers(ctx context.Context) ([]daemon.Probed, error) {
	if path := a.ConfigPath(); path == "" || a.Server() != "" {
		return nil, nil
	}
	loaded, err := a.Load(load.Input{}, nil)
	if err != nil {
		return nil, err
	}
	cfg, _ := a.Discovered(ctx, loaded)
	d, err := a.daemon(cfg, nil)
	if err != nil {
		return nil, err
	}
	return d.Probe(ctx), nil
}

func (a *app) addProbed(e *health.Examination, p daemon.Probed) {
	source := strings.HasPrefix(p.What, "source of ")
	if p.Err == nil {
		what := p.What
		if source && p.Untried != "" {
			what += " (" + p.Untried + ")"
		}
		e.Well = append(e.Well, what)
		return
	}
	if source { // its error says what to run
		e.Symptoms = append(e.Symptoms, health.Symptom{About: p.What, Weight: health.WeightFault, Text: a.Redact(p.Err.Error())})
		return
	}
	s := health.Symptom{About: p.What, Weight: health.WeightFault, Text: a.Redact(p.Err.Error()),
		Advice: "correct the configuration, or what it leads to, and look again:", Repair: "outbox config validate --connect"}
	if p.What == "database" {
		s.About, s.Advice, s.Repair = "relay", "", ""
	}
	e.Symptoms = append(e.Symptoms, s)
}
