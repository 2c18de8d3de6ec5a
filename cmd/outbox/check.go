package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/daemon"
	"github.com/pgoutbox/outbox/cmd/internal/exit"
	"github.com/pgoutbox/outbox/cmd/internal/output"
	"github.com/pgoutbox/outbox/cmd/internal/report"
)

const (
	asPlugin     output.Format = "nagios"
	asPrometheus output.Format = "prometheus"
)

// checkCommand is the verb with the exit codes of a plugin, also where it fails: then the result is unknown.
func (a *app) checkCommand(v verbs.Verb) *cobra.Command {
	var result health.Result
	cmd := a.verb(v, special{
		formats: []output.Format{asPlugin, asPrometheus, output.AsJSON},
		run: func(ctx context.Context, params any, out output.Format) (err error) {
			result, err = a.check(ctx, v, params.(*verbs.Check), out)
			return err
		},
	})
	unknown := func(err error) error {
		fmt.Fprintln(a.Stdout, output.Clean(health.Checked{Result: health.ResultUnknown, Text: a.Redact(err.Error())}.Plugin()))
		return exit.With(int(health.ResultUnknown), exit.ErrPrinted)
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return unknown(err) })
	accepts, run := cmd.Args, cmd.RunE
	cmd.Args = nil
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := accepts(cmd, args)
		if err == nil {
			err = run(cmd, args)
		}
		switch {
		case err != nil:
			return unknown(err)
		case result != health.ResultOK:
			return exit.With(int(result), exit.ErrPrinted)
		}
		return nil
	}
	return cmd
}

// check asks all databases, and prints what each is, or in one line what they are together.
func (a *app) check(ctx context.Context, v verbs.Verb, p *verbs.Check, out output.Format) (health.Result, error) {
	results, several, err := a.Known(ctx, true)
	if err != nil {
		return 0, err
	}
	if !several {
		databases, err := a.Databases(ctx, p.Destination)
		if err != nil {
			return 0, err
		}
		defer databases.Close()
		results = databases.Run(ctx, v, p)
	}
	if len(results) == 1 && results[0].Err != nil && !a.Unreachable(results[0].Err) {
		return 0, results[0].Err
	}
	var all []report.DatabaseCheck
	elsewhere := 0
	for _, found := range results {
		if found.Elsewhere {
			elsewhere++
			continue
		}
		if found.Err != nil {
			r := a.Unknown(found.Err)
			all = append(all, report.DatabaseCheck{Name: found.Name, Checked: health.Checked{
				Result: r.Verdict.Result(), Text: r.Verdict.Cause, Measures: []health.Measure{}, Report: r}})
			continue
		}
		r, known := found.Value.(*health.Report) // as a relay knows it
		if !known {
			r = found.Value.(*health.Checked).Report
		}
		r.OnDatabase(found.Name)
		if known && p.Destination != "" && len(results) > 1 && !slices.ContainsFunc(r.Destinations, func(d health.Destination) bool {
			return d.Name == p.Destination
		}) {
			continue
		}
		all = append(all, report.DatabaseCheck{Name: found.Name, Checked: p.Of(r)})
	}
	if len(all) == 0 {
		return 0, exit.With(exit.NotFound, fmt.Errorf("no database has the destination %q", p.Destination))
	}
	sum, line := report.Together(all, elsewhere)
	var document any = sum
	if len(all) == 1 {
		line, document = all[0].Checked, all[0].Checked
	}
	switch out {
	case output.AsJSON:
		return line.Result, output.JSON(a.Stdout, document)
	case asPrometheus:
		reports := make(map[string]*health.Report)
		for _, c := range all {
			if c.Report.Database == "" {
				fmt.Fprintf(a.Stdout, "# %s: %s\n", c.Name, output.Clean(c.Text))
				continue
			}
			reports[cmp.Or(c.Name, config.DefaultDatabase)] = c.Report
		}
		return line.Result, daemon.WriteReports(a.Stdout, reports)
	}
	_, err = fmt.Fprintln(a.Stdout, output.Clean(line.Plugin()))
	return line.Result, err
}
