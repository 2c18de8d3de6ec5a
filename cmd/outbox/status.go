package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/exit"
	"github.com/pgoutbox/outbox/cmd/internal/output"
	"github.com/pgoutbox/outbox/cmd/internal/report"
	"github.com/pgoutbox/outbox/cmd/internal/session"
)

// statusCommand is the verb, once or again and again, with an exit code.
func (a *app) statusCommand(v verbs.Verb) *cobra.Command {
	var watch, strict, all bool
	var interval time.Duration
	cmd := a.verb(v, special{
		formats: []output.Format{output.AsTable, output.AsJSON},
		run: func(ctx context.Context, _ any, out output.Format) error {
			if interval < 100*time.Millisecond {
				return exit.Usagef("--interval is %v, it must be at least 100ms", interval)
			}
			return a.status(ctx, v, report.Form{Out: out, Watch: watch, Colours: a.Colours(a.Stdout), All: all}, strict, interval)
		},
	})
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "repeat until interrupted")
	cmd.Flags().DurationVar(&interval, "interval", 2*time.Second, "pause between two looks with --watch")
	cmd.Flags().BoolVar(&all, "all", false, "every database with all there is, also of very many")
	cmd.Flags().BoolVar(&strict, "exit-code", false, "exit with 1 unless it is idle or flowing, on each database")
	return cmd
}

func (a *app) status(ctx context.Context, v verbs.Verb, form report.Form, strict bool, interval time.Duration) error {
	whole := form.All || form.Out == output.AsJSON
	results, several, err := a.Known(ctx, whole)
	if err != nil {
		return err
	}
	var databases session.Databases
	if !several {
		if databases, err = a.Databases(ctx, ""); err != nil {
			return err
		}
		defer databases.Close()
	}
	for again := false; ; again = true {
		switch {
		case !several:
			results = databases.Run(ctx, v, v.New())
		case again:
			if results, _, err = a.Known(ctx, whole); err != nil && ctx.Err() == nil {
				return err
			}
		}
		if form.Watch && ctx.Err() != nil {
			return nil
		}
		reports, elsewhere, err := a.reports(results)
		if err != nil {
			return err
		}
		form.Elsewhere = elsewhere
		if err := report.Status(a.Streams, form, reports); err != nil {
			return err
		}
		if !form.Watch {
			return verdictOf(reports, results, strict)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(interval):
		}
	}
}

// reports are the results, in their order, and how many databases others deliver from. An only database that can't be
// asked is an error; one that can't be reached has that as its state, as in a relay and on its page.
func (a *app) reports(results []session.Result) (list []report.DatabaseReport, elsewhere int, err error) {
	if len(results) == 1 && results[0].Err != nil && !a.Unreachable(results[0].Err) {
		return nil, 0, results[0].Err
	}
	for _, result := range results {
		if result.Elsewhere {
			elsewhere++
			continue
		}
		if result.Err != nil {
			list = append(list, report.DatabaseReport{Name: result.Name, Report: a.Unknown(result.Err)})
			continue
		}
		r := result.Value.(*health.Report)
		r.OnDatabase(result.Name)
		list = append(list, report.DatabaseReport{Name: result.Name, Report: r})
	}
	return list, elsewhere, nil
}

// verdictOf is the error with which a command ends that has printed reports.
func verdictOf(reports []report.DatabaseReport, results []session.Result, strict bool) error {
	worst := report.WorstFirst(reports)[0]
	switch {
	case strict && !worst.Verdict.State.OK() && worst.Name != "":
		return fmt.Errorf("%s: %s", worst.Name, worst.Verdict)
	case strict && !worst.Verdict.State.OK():
		return errors.New(worst.Verdict.String())
	}
	return session.Failed(results)
}
