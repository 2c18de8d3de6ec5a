package main

import (
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
)

const (
	asPlugin     output.Format = "nagios"
	asPrometheus output.Format = "prometheus"
)

// checkedNamed is the check of one of several databases.
type checkedNamed struct {
	Name string `json:"name"`
	health.Checked
}

// checkedAll is the check of several databases, and what they are together.
type checkedAll struct {
	Result    health.Result  `json:"result"`
	Text      string         `json:"text"`
	Databases []checkedNamed `json:"databases"`
}

// together is the worst of all, with the measures of each under its name.
func together(all []checkedNamed) (sum checkedAll, line health.Checked) {
	sorted := slices.SortedStableFunc(slices.Values(all), func(a, b checkedNamed) int { return b.Result.Compare(a.Result) })
	var results []string
	for _, c := range sorted {
		results = append(results, c.Result.String())
	}
	for _, c := range all {
		for _, m := range c.Measures {
			m.Destination = c.Name + "/" + m.Destination
			line.Measures = append(line.Measures, m)
		}
	}
	line.Result, line.Text = sorted[0].Result, fmt.Sprintf("%d databases: %s", len(all), counted(results))
	if line.Result != health.ResultOK {
		line.Text = sorted[0].Name + ": " + sorted[0].Text + "; " + line.Text
	}
	return checkedAll{line.Result, line.Text, all}, line
}

// checkCommand is the verb with the exit codes of a plugin, also where it fails: then the result is unknown.
func (a *app) checkCommand(v verbs.Verb) *cobra.Command {
	var result health.Result
	cmd := a.verb(v, view{
		formats: []output.Format{asPlugin, asPrometheus, output.AsJSON},
		all: func(ctx context.Context, a *app, params any, out output.Format) (err error) {
			result, err = a.check(ctx, v, params.(*verbs.Check), out)
			return err
		},
	})
	unknown := func(err error) error {
		fmt.Fprintln(a.stdout, output.Clean(health.Checked{Result: health.ResultUnknown, Text: a.redact(err.Error())}.Plugin()))
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
	places, err := a.places(p.Destination)
	if err != nil {
		return 0, err
	}
	defer leave(places)
	answers := a.ask(ctx, v, p, places)
	if len(answers) == 1 && answers[0].err != nil && !a.unreachable(answers[0].err) {
		return 0, answers[0].err
	}
	var all []checkedNamed
	for _, from := range answers {
		if from.err != nil {
			r := a.unknown(from.err)
			all = append(all, checkedNamed{from.name, health.Checked{Result: r.Verdict.Result(), Text: r.Verdict.Cause,
				Measures: []health.Measure{}, Report: r}})
			continue
		}
		c := from.result.(*health.Checked)
		c.Report.OnDatabase(from.name)
		all = append(all, checkedNamed{from.name, p.Of(c.Report)})
	}
	sum, line := together(all)
	var document any = sum
	if len(all) == 1 {
		line, document = all[0].Checked, all[0].Checked
	}
	switch out {
	case output.AsJSON:
		return line.Result, output.JSON(a.stdout, document)
	case asPrometheus:
		reports := make(map[string]*health.Report)
		for _, c := range all {
			if c.Report.Database == "" {
				fmt.Fprintf(a.stdout, "# %s: %s\n", c.Name, output.Clean(c.Text))
				continue
			}
			reports[orText(c.Name, config.DefaultDatabase)] = c.Report
		}
		return line.Result, daemon.WriteReports(a.stdout, reports)
	}
	_, err = fmt.Fprintln(a.stdout, output.Clean(line.Plugin()))
	return line.Result, err
}
