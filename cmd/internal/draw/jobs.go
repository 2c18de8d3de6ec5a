package draw

import (
	"fmt"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/admin/jobs"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/output"
	"github.com/pgoutbox/outbox/internal/printed"
)

// previewJob shows what a dry run has listed.
func previewJob[P any](to output.Streams, _ *P, job jobs.Job) error {
	if job.ID == 0 {
		fmt.Fprintln(to.Stderr, "nothing matches")
		return nil
	}
	t := output.NewTable(to.Stdout, "MESSAGES", "DESTINATION", "TOPIC", "CAUSE")
	for _, g := range job.Groups {
		t.Row(printed.Number(g.N), g.Destination, g.Topic, g.Reason)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if job.Note != "" {
		fmt.Fprintln(to.Stderr, job.Note)
	}
	fmt.Fprintf(to.Stderr, "listed as job %d, for an hour\n", job.ID)
	return nil
}

// actOnDead is the view of a verb that acts on dead letters.
func actOnDead(verb string) View {
	return bulk[verbs.DeadAct](strings.ToUpper(verb[:1]) + verb[1:] + " %s?")
}

// bulk is the view of a verb that begins a job. The question has a place for its messages.
func bulk[P any](question string) View {
	return asks(shows(func(to output.Streams, _ *P, job jobs.Job) error { return writeOutcome(to, job) }), previewJob,
		func(_ *P, found jobs.Job) (string, bool) {
			return fmt.Sprintf(question, printed.Many(found.Total, "message", "messages")), found.Total > 0
		})
}

// Progress is a job in a line.
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

// past says what a verb has done.
var past = map[jobs.BulkVerb]string{jobs.BulkRequeue: "requeued", jobs.BulkDiscard: "discarded", jobs.BulkAcknowledge: "acknowledged",
	jobs.BulkRestore: "restored", jobs.BulkReplay: "replayed"}

func writeOutcome(to output.Streams, job jobs.Job) error {
	text := fmt.Sprintf("%s %s", past[job.Verb], printed.Many(job.Done, "message", "messages"))
	switch {
	case job.State == jobs.Undone:
		text = fmt.Sprintf("job %d was undone", job.ID)
	case job.Ended.IsZero() && job.ID > 0:
		text = fmt.Sprintf("job %d is %s: %s", job.ID, job.State, Progress(job))
	case job.State == jobs.Stopped:
		text += fmt.Sprintf("; the rest, %s, was stopped", printed.Number(job.Left))
	}
	if job.Skipped > 0 {
		text += fmt.Sprintf("; %s were left as they are", printed.Number(job.Skipped))
	}
	if job.Note != "" {
		text += ": " + job.Note
	}
	_, err := fmt.Fprintln(to.Stdout, text)
	return err
}

func listJobs(to output.Streams, p *verbs.JobsList, jobs []jobs.Job) error {
	if len(jobs) == 0 {
		fmt.Fprintln(to.Stderr, "none")
		return nil
	}
	t := output.NewTable(to.Stdout, "JOB", "VERB", "STATE", "DONE", "SKIPPED", "LEFT", "DESTINATION", "BY", "AGE", "REASON")
	now := time.Now()
	for _, j := range jobs {
		t.Row(j.ID, j.Verb, j.State, printed.Number(j.Done), printed.Number(j.Skipped), printed.Number(j.Left), j.Destination,
			j.Actor, output.Ago(now, j.Planned), output.Short(j.Reason, 60))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if len(jobs) == p.Limit {
		fmt.Fprintf(to.Stderr, "there may be more: add --before %d\n", jobs[len(jobs)-1].ID)
	}
	return nil
}

func showJob(to output.Streams, _ *verbs.JobShow, d jobs.JobDetail) error {
	t := output.NewTable(to.Stdout, "job", fmt.Sprint(d.ID))
	t.Row("verb", d.Verb)
	t.Row("state", d.State)
	t.Row("progress", Progress(d.Job))
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
func actOnJob[P any]() View {
	return asks(shows(func(to output.Streams, _ *P, job jobs.Job) error { return writeJob(to, job) }), nil,
		func(*P, jobs.Job) (string, bool) { return "", true })
}

func writeJob(to output.Streams, job jobs.Job) error {
	text := fmt.Sprintf("job %d is %s: %s", job.ID, job.State, Progress(job))
	if job.Note != "" {
		text += ": " + job.Note
	}
	_, err := fmt.Fprintln(to.Stdout, text)
	return err
}
