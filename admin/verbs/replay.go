package verbs

import (
	"context"
	"time"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/jobs"
)

// Replay are the parameters of "replay".
type Replay struct {
	IDs         []string `json:"ids,omitempty" arg:"ID" help:"message ids"`
	Destination string   `json:"destination" required:"true" help:"that has got them"`
	To          string   `json:"to,omitempty" of:"destination" help:"send them to this destination instead"`
	Written
	Max int64 `json:"max,omitempty" default:"10000000" min:"1" help:"refuse to send more"`
	Bulk

	// Archived, if not nil, are the messages to choose from, in place of the segments. Only a process that can read
	// them, and that feeds the job, gives it.
	Archived *jobs.Archived `json:"-"`
}

// Start makes the parameters start the job that a dry run has listed.
func (p *Replay) Start(job jobs.Job) {
	*p = Replay{Destination: p.Destination, To: p.To, Max: p.Max, Bulk: p.listed(job), Archived: p.Archived}
}

func (p *Replay) check() error {
	f, err := p.filter("ids", p.IDs...)
	switch {
	case err != nil:
	case p.Job > 0 && (!f.Everything() || p.All):
		err = fault("job", "has its messages already: leave the selection out")
	case p.Job == 0 && f.Everything() && !p.All:
		err = fault("", "nothing is selected: give ids, a key, a topic, a header or a time, or say all")
	}
	return err
}

func replayMessages() Verb {
	v := Verb{
		Name:  "replay",
		Lists: true,
		Cost:  "They are sent as they were, in order per key among themselves. Those that wait, are held or dead are left as they are",
		Short: "Send once more what a destination has got",
		Long: `Messages that the destination has passed are sent to it once more, or to another one with --to, from the segments
that are still there: a segment is emptied when every destination has passed it. They are what they were, with the same
message id, so a consumer with an inbox takes them for repeats. Those of a key come in order among themselves; what is
new comes between them. The filter of the destination that they are sent to leaves out what it leaves out of new ones.

What the destination has not passed yet will be delivered anyway, and is not sent twice. What is held or dead at one of
both destinations, or has a key that is blocked, is left as it is: outbox dead requeue.

What the segments have no more comes from the archive of a destination, with --archive DIR on the machine that has it.
Such a job begins at once, and this command carries it out until it ends. If it doesn't come to its end, the same archive
with --job goes on. What is as new as something that a destination has not passed yet is left out.

` + bulkHelp,
		Example: `  outbox replay --destination kafka --since 2026-05-01T12:00:00Z --until 2026-05-01T13:00:00Z --reason "they lost an hour"
  outbox replay --destination kafka --key customer-42 --dry-run
  outbox replay --destination kafka 0190a4f8-3c5e-7cc3-98c4-dc0c0c07398f --now
  outbox replay --destination kafka --to warehouse --topic orders --rate 200
  outbox replay --destination kafka --archive /var/lib/outbox/archive --since 2026-05-01T12:00:00Z --until 2026-05-01T13:00:00Z`,
		Timeout: 5 * time.Minute, // it may look at all that is there
	}
	return changes(v, func(ctx context.Context, db admin.DB, action admin.Action, p Replay) (jobs.Job, error) {
		f, _ := p.filter("ids", p.IDs...) // checked
		r := jobs.Replay{Destination: p.Destination, To: p.To, Messages: f, All: p.All}
		if p.Archived != nil {
			return jobs.StartArchived(ctx, db, r, *p.Archived, p.options(p.Max), action)
		}
		job, err := jobs.StartReplay(ctx, db, r, p.options(p.Max), action)
		return p.begun(ctx, db, action, job, err)
	}, jobTexts[Replay](v))
}
