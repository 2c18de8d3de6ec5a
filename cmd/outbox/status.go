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
	var watch, strict bool
	var interval time.Duration
	cmd := a.verb(v, special{
		formats: []output.Format{output.AsTable, output.AsJSON},
		run: func(ctx context.Context, _ any, out output.Format) error {
			if interval < 100*time.Millisecond {
				return exit.Usagef("--interval is %v, it must be at least 100ms", interval)
			}
			return a.status(ctx, v, out, watch, strict, interval)
		},
	})
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "repeat until interrupted")
	cmd.Flags().DurationVar(&interval, "interval", 2*time.Second, "pause between two looks with --watch")
	cmd.Flags().BoolVar(&strict, "exit-code", false, "exit with 1 unless it is idle or flowing, on each database")
	return cmd
}

func (a *app) status(ctx context.Context, v verbs.Verb, out output.Format, watch, strict bool, interval time.Duration) error {
	databases, err := a.Databases(ctx, "")
	if err != nil {
		return err
	}
	defer databases.Close()
	for {
		results := databases.Run(ctx, v, v.New())
		if watch && ctx.Err() != nil {
			return nil
		}
		reports, err := a.reports(results)
		if err != nil {
			return err
		}
		if err := report.Status(a.Streams, out, watch, a.Colours(a.Stdout), reports); err != nil {
			return err
		}
		if !watch {
			return verdictOf(reports, results, strict)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(interval):
		}
	}
}

// reports are the results, in their order. An only database that can't be asked is an error; one that can't be reached
// has that as its state, as in a relay and on its page.
func (a *app) reports(results []session.Result) ([]report.DatabaseReport, error) {
	if len(results) == 1 && results[0].Err != nil && !a.Unreachable(results[0].Err) {
		return nil, results[0].Err
	}
	var list []report.DatabaseReport
	for _, result := range results {
		if result.Err != nil {
			list = append(list, report.DatabaseReport{Name: result.Name, Report: a.Unknown(result.Err)})
			continue
		}
		r := result.Value.(*health.Report)
		r.OnDatabase(result.Name)
		list = append(list, report.DatabaseReport{Name: result.Name, Report: r})
	}
	return list, nil
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
