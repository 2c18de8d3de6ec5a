package main

import (
	"context"
	"fmt"
	"time"

	"github.com/pgoutbox/outbox/admin/jobs"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/session"
	"github.com/pgoutbox/outbox/internal/printed"
)

// follow carries out a job that was started, and prints its progress.
func (a *app) follow(ctx context.Context, runner session.Runner, actor string, result any) (any, error) {
	job := result.(jobs.Job)
	run, err := verbs.ByName("jobs run")
	if err != nil {
		return nil, err
	}
	if job.State == jobs.Waiting {
		fmt.Fprintf(a.Stderr, "job %d begins in %s; to take it back: outbox jobs undo %d\n", job.ID,
			printed.Span(time.Until(job.Next).Round(time.Second)), job.ID)
	}
	for job.ID > 0 && job.Ended.IsZero() {
		params := run.New().(*verbs.JobRun)
		params.ID, params.For = job.ID, verbs.Duration(2*time.Second)
		next, err := runner.Run(ctx, run, actor, params)
		if err != nil {
			return nil, fmt.Errorf("%w: job %d is not done; a relay goes on with it, or: outbox jobs run %d", err, job.ID, job.ID)
		}
		if job = next.(jobs.Job); job.Ended.IsZero() && job.Done+job.Skipped > 0 {
			fmt.Fprintln(a.Stderr, verbs.Progress(job))
		}
	}
	return job, nil
}
