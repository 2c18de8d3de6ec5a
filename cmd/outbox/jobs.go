package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/admin/jobs"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/exit"
	"github.com/pgoutbox/outbox/cmd/internal/output"
	"github.com/pgoutbox/outbox/internal/printed"
)

// previewJob shows what a dry run has listed.
func previewJob[P any](a *app, _ *P, job jobs.Job) error {
	if job.ID == 0 {
		fmt.Fprintln(a.stderr, "nothing matches")
		return nil
	}
	t := output.NewTable(a.stdout, "MESSAGES", "DESTINATION", "TOPIC", "CAUSE")
	for _, g := range job.Groups {
		t.Row(printed.Number(g.N), g.Destination, g.Topic, g.Reason)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if job.Note != "" {
		fmt.Fprintln(a.stderr, job.Note)
	}
	fmt.Fprintf(a.stderr, "listed as job %d, for an hour\n", job.ID)
	return nil
}

// replayed is the view of "replay".
func replayed() view {
	v := asks(shows(func(a *app, _ *verbs.Replay, job jobs.Job) error { return writeOutcome(a, job) }), previewJob,
		func(p *verbs.Replay, found jobs.Job) (string, bool) {
			*p = verbs.Replay{Destination: p.Destination, To: p.To, Max: p.Max,
				Bulk: verbs.Bulk{Job: found.ID, Rate: p.Rate, Now: p.Now, Intent: p.Intent}, Archived: p.Archived}
			return fmt.Sprintf("Send %s once more?", printed.Many(found.Total, "message", "messages")), found.Total > 0
		})
	var dirs []string
	var from *jobs.Archived
	v.command = func(a *app, verb verbs.Verb) *cobra.Command {
		v.command = nil
		cmd := a.verb(verb, v)
		cmd.Flags().StringArrayVar(&dirs, "archive", nil,
			"choose from the archive in this directory of this machine, not from the segments; may be repeated")
		_ = cmd.MarkFlagDirname("archive")
		return cmd
	}
	v.complete = func(a *app, params any) (err error) {
		p := params.(*verbs.Replay)
		switch {
		case len(dirs) == 0:
			return nil
		case a.server() != "":
			return exit.Usagef("--archive is read on this machine: leave out --server")
		}
		from, err = fromArchive(dirs)
		p.Archived = from
		return err
	}
	v.follow = func(ctx context.Context, a *app, at seat, actor string, result any) (any, error) {
		job := result.(jobs.Job)
		if from == nil || job.ID == 0 {
			return follow(ctx, a, at, actor, result)
		}
		job, err := jobs.FeedReplay(ctx, at.(direct).conn, job.ID, *from, func(job jobs.Job) { fmt.Fprintln(a.stderr, progress(job)) })
		if err != nil {
			id := result.(jobs.Job).ID
			err = fmt.Errorf("%w: the rest of job %d is not sent: give this command once more with --job %d, or: outbox jobs stop %d",
				err, id, id, id)
		}
		return job, err
	}
	return v
}

// follow carries out a job that was started, and says how far it is.
func follow(ctx context.Context, a *app, at seat, actor string, result any) (any, error) {
	job := result.(jobs.Job)
	table := verbs.All()
	run := table[slices.IndexFunc(table, func(v verbs.Verb) bool { return v.Name == "jobs run" })]
	if job.State == jobs.Waiting {
		fmt.Fprintf(a.stderr, "job %d begins in %s; to take it back: outbox jobs undo %d\n", job.ID,
			printed.Span(time.Until(job.Next).Round(time.Second)), job.ID)
	}
	for job.ID > 0 && job.Ended.IsZero() {
		params := run.New().(*verbs.JobRun)
		params.ID, params.For = job.ID, verbs.Duration(2*time.Second)
		next, err := at.run(ctx, run, actor, params)
		if err != nil {
			return nil, fmt.Errorf("%w: job %d is not done; a relay goes on with it, or: outbox jobs run %d", err, job.ID, job.ID)
		}
		if job = next.(jobs.Job); job.Ended.IsZero() && job.Done+job.Skipped > 0 {
			fmt.Fprintln(a.stderr, progress(job))
		}
	}
	return job, nil
}

// progress is a job in a line.
func progress(job jobs.Job) string {
	text := fmt.Sprintf("%s of %s", printed.Number(job.Done), printed.Number(job.Total))
	if job.Skipped > 0 {
		text += fmt.Sprintf(", %s skipped", printed.Number(job.Skipped))
	}
	if job.State == jobs.Running && job.PerSecond > 0 {
		text += fmt.Sprintf(", %.0f a second, %s left", job.PerSecond,
			printed.Span(time.Duration(job.Remaining*float64(time.Second)).Round(time.Second)))
	}
	return text
}

// past says what a verb has done.
var past = map[jobs.BulkVerb]string{jobs.BulkRequeue: "requeued", jobs.BulkDiscard: "discarded", jobs.BulkAcknowledge: "acknowledged",
	jobs.BulkRestore: "restored", jobs.BulkReplay: "replayed"}

func writeOutcome(a *app, job jobs.Job) error {
	text := fmt.Sprintf("%s %s", past[job.Verb], printed.Many(job.Done, "message", "messages"))
	switch {
	case job.State == jobs.Undone:
		text = fmt.Sprintf("job %d was undone", job.ID)
	case job.Ended.IsZero() && job.ID > 0:
		text = fmt.Sprintf("job %d is %s: %s", job.ID, job.State, progress(job))
	case job.State == jobs.Stopped:
		text += fmt.Sprintf("; the rest, %s, was stopped", printed.Number(job.Left))
	}
	if job.Skipped > 0 {
		text += fmt.Sprintf("; %s were left as they are", printed.Number(job.Skipped))
	}
	if job.Note != "" {
		text += ": " + job.Note
	}
	_, err := fmt.Fprintln(a.stdout, text)
	return err
}

func listJobs(a *app, p *verbs.JobsList, jobs []jobs.Job) error {
	if len(jobs) == 0 {
		fmt.Fprintln(a.stderr, "none")
		return nil
	}
	t := output.NewTable(a.stdout, "JOB", "VERB", "STATE", "DONE", "SKIPPED", "LEFT", "DESTINATION", "BY", "AGE", "REASON")
	now := time.Now()
	for _, j := range jobs {
		t.Row(j.ID, j.Verb, j.State, printed.Number(j.Done), printed.Number(j.Skipped), printed.Number(j.Left), j.Destination,
			j.Actor, output.Ago(now, j.Planned), output.Short(j.Reason, 60))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if len(jobs) == p.Limit {
		fmt.Fprintf(a.stderr, "there may be more: add --before %d\n", jobs[len(jobs)-1].ID)
	}
	return nil
}

func showJob(a *app, _ *verbs.JobShow, d jobs.JobDetail) error {
	t := output.NewTable(a.stdout, "job", fmt.Sprint(d.ID))
	t.Row("verb", d.Verb)
	t.Row("state", d.State)
	t.Row("progress", progress(d.Job))
	t.Row("note", d.Note)
	t.Row("to", d.To)
	t.Row("selection", string(d.Selection))
	t.Row("by", d.Actor)
	t.Row("reason", d.Reason)
	t.Row("listed", d.Planned.Local().Format(time.RFC3339))
	if !d.Started.IsZero() {
		t.Row("started", d.Started.Local().Format(time.RFC3339))
	}
	if !d.Ended.IsZero() {
		t.Row("ended", d.Ended.Local().Format(time.RFC3339))
	}
	for _, g := range d.Groups {
		t.Row("messages", fmt.Sprintf("%s of %s, %s, %s", printed.Number(g.N), g.Destination, g.Topic, g.Reason))
	}
	for _, m := range d.Sample {
		t.Row("such as", m.MessageID)
	}
	return t.Flush()
}

// actOnJob is the view of a verb that acts on a job.
func actOnJob() view {
	return asks(shows(func(a *app, _ *verbs.JobAct, job jobs.Job) error { return writeJob(a, job) }), nil,
		func(*verbs.JobAct, jobs.Job) (string, bool) { return "", true })
}

func undoJob() view {
	v := actOnJob()
	v.follow = follow
	return v
}

func runJob() view {
	return asks(shows(func(a *app, _ *verbs.JobRun, job jobs.Job) error { return writeJob(a, job) }), nil,
		func(*verbs.JobRun, jobs.Job) (string, bool) { return "", true })
}

func writeJob(a *app, job jobs.Job) error {
	text := fmt.Sprintf("job %d is %s: %s", job.ID, job.State, progress(job))
	if job.Note != "" {
		text += ": " + job.Note
	}
	_, err := fmt.Fprintln(a.stdout, text)
	return err
}
