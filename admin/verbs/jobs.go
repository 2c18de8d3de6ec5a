package verbs

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/pgoutbox/outbox/admin/sheet"
	"github.com/pgoutbox/outbox/internal/printed"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/jobs"
)

// Bulk are the parameters of every verb that is a job.
type Bulk struct {
	All  bool  `json:"all,omitempty" help:"all of them"`
	Job  int64 `json:"job,omitempty" min:"0" help:"start this job, which a dry run has listed, instead of a selection"`
	Rate int   `json:"rate,omitempty" min:"0" max:"1000000" help:"messages a second at most; 0 is as fast as it goes"`
	Now  bool  `json:"now,omitempty" help:"begin at once, without the ten seconds in which it can be undone"`
	Intent
}

// bulkHelp is the end of the help of every verb that is a job.
const bulkHelp = `What is selected is listed first and counted, and you are asked. Without a terminal, say --yes. The list is a job
(outbox jobs), which begins after ten seconds, in which outbox jobs undo leaves no trace of it; with --now it begins at
once. It goes on if the command ends, by a relay that has http.listen or by outbox jobs run. With --dry-run the list is
kept for an hour, and --job starts it.`

func (b Bulk) options(most int64) jobs.Options {
	o := jobs.Options{Max: most, Rate: b.Rate, Job: b.Job, Delay: jobs.UndoWindow}
	if b.Now {
		o.Delay = 0
	}
	return o
}

// listed are the parameters that start the job which a dry run has listed.
func (b Bulk) listed(job jobs.Job) Bulk {
	return Bulk{Job: job.ID, Rate: b.Rate, Now: b.Now, Intent: b.Intent}
}

// jobTexts describe a verb that is a job.
func jobTexts[P any](v Verb) texts[P, jobs.Job] {
	return texts[P, jobs.Job]{
		done: func(job jobs.Job) string { return outcome(v, job) },
		preview: func(job jobs.Job) sheet.Parts {
			if job.Total == 0 {
				return sheet.Parts{sheet.Hint("nothing matches: somebody was faster, or it was delivered")}
			}
			parts := sheet.Parts{sheet.List("What it would change", "", job.Groups, jobGroupRow)}
			for _, text := range []string{job.Note, fmt.Sprintf("listed as job %d, for an hour", job.ID)} {
				if text != "" {
					parts = append(parts, sheet.Hint(text))
				}
			}
			return parts
		},
	}
}

func jobGroupRow(g jobs.JobGroup) sheet.Row {
	return sheet.Of("Messages", g.N, route, sheet.Route(g.Topic, g.Destination), "Cause", g.Reason)
}

// past are the verbs of jobs that have ended.
var past = map[jobs.BulkVerb]string{jobs.BulkRequeue: "requeued", jobs.BulkDiscard: "discarded", jobs.BulkAcknowledge: "acknowledged",
	jobs.BulkRestore: "restored", jobs.BulkReplay: "replayed"}

// outcome is what a job has done, or when it will.
func outcome(v Verb, job jobs.Job) string {
	text := past[job.Verb] + " " + printed.Many(job.Done, "message", "messages")
	switch {
	case job.State == jobs.Waiting:
		return fmt.Sprintf("%s: %s, as job %d, which begins in %s", v.Label(), printed.Many(job.Total, "message", "messages"), job.ID,
			printed.Span(time.Until(job.Next).Round(time.Second)))
	case job.State == jobs.Undone:
		text = fmt.Sprintf("job %d was undone", job.ID)
	case job.Ended.IsZero() && job.ID > 0:
		return state(job)
	case job.State == jobs.Stopped:
		text += fmt.Sprintf("; the rest, %s, was stopped", printed.Number(job.Left))
	}
	if job.Skipped > 0 {
		text += fmt.Sprintf("; %s were left as they are", printed.Number(job.Skipped))
	}
	if job.Note != "" {
		text += ": " + job.Note
	}
	return text
}

// state is how a job stands.
func state(job jobs.Job) string {
	return fmt.Sprintf("job %d is %s: %s", job.ID, job.State, Progress(job))
}

// Progress is how far a job is.
func Progress(job jobs.Job) string {
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

// begun carries a job out for a moment if it is to begin at once.
func (b Bulk) begun(ctx context.Context, db admin.DB, action admin.Action, job jobs.Job, err error) (jobs.Job, error) {
	if err == nil && b.Now && !action.DryRun && job.ID > 0 {
		return jobs.Run(ctx, db, job.ID, 5*time.Second)
	}
	return job, err
}

// JobsList are the parameters of "jobs ls".
type JobsList struct {
	Destination string `json:"destination,omitempty" help:"only jobs whose selection named this destination"`
	Unfinished  bool   `json:"unfinished,omitempty" help:"only those that are started and have not ended"`
	Limit       int    `json:"limit,omitempty" default:"100" min:"1" max:"1000" help:"how many to list, 1 to 1000"`
	Before      int64  `json:"before,omitempty" min:"0" help:"go on before the job with this number"`
}

func jobsList() Verb {
	return reads(Verb{
		Name:  "jobs ls",
		Short: "List bulk verbs: what they did, what is left, by whom and why",
		Long: `A verb on dead letters, or a replay, is a job: a list of messages that is frozen before you are asked, and how far it has come.
States: planned (by a dry run; it is kept for an hour), waiting (it begins in a few seconds), running, undoing; done,
stopped, undone.`,
		Example: `  outbox jobs ls --unfinished
  outbox jobs ls -o jsonl | jq 'select(.skipped > 0)'`,
	}, func(ctx context.Context, db admin.DB, p JobsList) ([]jobs.Job, error) {
		return jobs.List(ctx, db, jobs.Filter{Destination: p.Destination, Unfinished: p.Unfinished, Before: p.Before, Limit: p.Limit})
	}, func(p JobsList, all []jobs.Job) sheet.Parts {
		return listPage("Jobs", "nobody has begun one", all, func(j jobs.Job) sheet.Row {
			return sheet.Of("Job", sheet.To(sheet.ID(j.ID), "jobs show", "id", strconv.FormatInt(j.ID, 10)), "Verb", string(j.Verb),
				"State", j.State, "Done", j.Done, "Skipped", j.Skipped, "Left", j.Left,
				"Destination", sheet.Destination(j.Destination), "By", j.Actor,
				"Listed", j.Planned, "Reason", sheet.Note(j.Reason))
		}, p.Limit, "before", func(j jobs.Job) string { return strconv.FormatInt(j.ID, 10) })
	})
}

// JobShow are the parameters of "jobs show".
type JobShow struct {
	ID int64 `json:"id" arg:"NUMBER" required:"true" min:"1" help:"the job's number"`
}

func jobsShow() Verb {
	return reads(Verb{
		Name:    "jobs show",
		Short:   "Show a job, with the first of its messages",
		Example: `  outbox jobs show 118`,
	}, func(ctx context.Context, db admin.DB, p JobShow) (jobs.JobDetail, error) {
		return jobs.Show(ctx, db, p.ID)
	}, func(_ JobShow, d jobs.JobDetail) sheet.Parts {
		sample := sheet.Series{Between: ", "}
		for _, m := range d.Sample {
			sample.Values = append(sample.Values, sheet.To(m.MessageID, "messages show", "message", m.MessageID.String()))
		}
		about := sheet.Of("Job", sheet.ID(d.ID), "Verb", string(d.Verb), "State", d.State, "Progress", Progress(d.Job), "Note", d.Note,
			"To", sheet.Destination(d.To), "Selection", sheet.Code(d.Selection), "By", d.Actor, "Reason", sheet.Note(d.Reason),
			"Listed", sheet.Clock(d.Planned), "Started", sheet.Clock(d.Started), "Ended", sheet.Clock(d.Ended), "Such as", sample)
		id := []string{"id", strconv.FormatInt(d.ID, 10), "destination", d.Destination}
		if d.Ended.IsZero() {
			about = about.Can("jobs stop", "Stop…", id...)
		}
		return sheet.Parts{sheet.Facts(about.Can("jobs undo", "Undo…", id...)),
			sheet.List("What it is about", "", d.Groups, jobGroupRow)}
	})
}

// JobAct are the parameters of the verbs that act on a job.
type JobAct struct {
	ID          int64  `json:"id" arg:"NUMBER" required:"true" min:"1" help:"the job's number"`
	Destination string `json:"destination,omitempty" help:"only if its selection named this destination"`
	Intent
}

func jobsStop() Verb {
	return changes(Verb{
		Name:    "jobs stop",
		Short:   "End a job where it stands",
		Long:    `What it has done stays done, and the rest stays as it is.`,
		Example: `  outbox jobs stop 118 --reason "they fail again"`,
	}, func(ctx context.Context, db admin.DB, action admin.Action, p JobAct) (jobs.Job, error) {
		return jobs.Stop(ctx, db, p.ID, p.Destination, action)
	}, jobState[JobAct]())
}

func jobsUndo() Verb {
	return changes(Verb{
		Name:  "jobs undo",
		Short: "Take back what a job has done",
		Long: `A job that has not begun, as in the first ten seconds, leaves no trace. What was discarded returns from the trash, for a
day; what was acknowledged is new again. Of a requeue or a replay that has begun, the rest is stopped: what relays have can't be
called back.`,
		Example: `  outbox jobs undo 118`,
	}, func(ctx context.Context, db admin.DB, action admin.Action, p JobAct) (jobs.Job, error) {
		job, err := jobs.Undo(ctx, db, p.ID, p.Destination, action)
		if err == nil && job.State == jobs.Undoing && !action.DryRun {
			return jobs.Run(ctx, db, p.ID, 5*time.Second)
		}
		return job, err
	}, jobState[JobAct]())
}

// JobRun are the parameters of "jobs run".
type JobRun struct {
	ID          int64    `json:"id" arg:"NUMBER" required:"true" min:"1" help:"the job's number"`
	Destination string   `json:"destination,omitempty" help:"only if its selection named this destination"`
	For         Duration `json:"for,omitempty" default:"5s" min:"1ms" help:"return after this time, though it may not have ended; at most 25s"`
	Intent
}

func jobsRun() Verb {
	return changes(Verb{
		Name:  "jobs run",
		Short: "Carry out a job, until it ends or for a while",
		Long: `Relays that have http.listen carry out every job that is started, so this is for when none runs, and to wait for the end.
Any number may work on a job at once.`,
		Example: `  outbox jobs run 118`,
	}, func(ctx context.Context, db admin.DB, action admin.Action, p JobRun) (jobs.Job, error) {
		d, err := jobs.Show(ctx, db, p.ID)
		if err == nil && p.Destination != "" && p.Destination != d.Destination {
			err = fmt.Errorf("%w: job %d is not of %s alone", admin.ErrNotFound, p.ID, p.Destination)
		}
		if err != nil || action.DryRun {
			return d.Job, err
		}
		return jobs.Run(ctx, db, p.ID, min(time.Duration(p.For), 25*time.Second))
	}, jobState[JobRun]())
}

// jobState describes a verb that acts on a job.
func jobState[P any]() texts[P, jobs.Job] {
	return texts[P, jobs.Job]{done: state, asks: func(P) bool { return false }}
}
