package verbs

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/sheet"
	"github.com/pgoutbox/outbox/internal/printed"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/find"
	"github.com/pgoutbox/outbox/admin/jobs"
)

// Filter are the parameters that select dead letters. Those that are given must all match.
type Filter struct {
	Blocked     bool      `json:"blocked,omitempty" help:"messages that keep their keys held, instead of dead letters"`
	Destination string    `json:"destination,omitempty" help:"of this destination"`
	Topic       string    `json:"topic,omitempty" help:"of this topic"`
	Key         string    `json:"key,omitempty" help:"with this ordering key"`
	Cause       string    `json:"cause,omitempty" enum:"invalid,refused,exhausted" help:"set aside as invalid, refused or exhausted"`
	Group       string    `json:"group,omitempty" help:"of the group with this fingerprint, see dead group"`
	New         bool      `json:"new,omitempty" help:"not acknowledged"`
	Until       time.Time `json:"until,omitzero" help:"set aside before this time"`
	Discarded   bool      `json:"discarded,omitempty" help:"dead letters in the trash, instead of others"`
}

// selection adds the ids to the filter.
func (f Filter) selection(ids []string) (find.Selection, error) {
	s := find.Selection{Blocked: f.Blocked, Destination: f.Destination, Topic: f.Topic, Key: f.Key, Reason: f.Cause,
		Fingerprint: f.Group, New: f.New, Discarded: f.Discarded, Before: f.Until}
	if s.Blocked && s.Discarded {
		return s, fault("discarded", "and blocked exclude each other")
	}
	if s.Blocked && s.Reason != "" {
		return s, fault("cause", "and blocked exclude each other: blocked messages are no dead letters yet")
	}
	if s.Blocked && s.Fingerprint != "" {
		return s, fault("group", "and blocked exclude each other: blocked messages are in no group")
	}
	if s.Blocked && s.New {
		return s, fault("new", "and blocked exclude each other: blocked messages are no dead letters yet")
	}
	for _, text := range ids {
		if position, err := strconv.ParseInt(text, 10, 64); err == nil {
			s.Positions = append(s.Positions, position)
			continue
		}
		id, err := outbox.ParseID(text)
		if err != nil {
			return s, fault("ids", "has %q, which is neither a message id such as 0190a4f8-3c5e-7cc3-98c4-dc0c0c07398f "+
				"nor a position such as 1234", text)
		}
		s.MessageIDs = append(s.MessageIDs, id)
	}
	if len(s.Positions) > 0 && len(s.MessageIDs) > 0 {
		return s, fault("ids", "has both message ids and positions: give either")
	}
	return s, nil
}

// DeadList are the parameters of "dead ls".
type DeadList struct {
	Filter
	Limit   int    `json:"limit,omitempty" default:"100" min:"1" max:"1000" help:"how many to list, 1 to 1000"`
	After   string `json:"after,omitempty" help:"go on after this DESTINATION:POSITION:MESSAGE_ID"`
	Payload bool   `json:"payload,omitempty" role:"operator" help:"with payloads"`
}

func (p *DeadList) check() error {
	_, err := p.selection(nil)
	if err == nil {
		_, err = p.page()
	}
	return err
}

// page reads what follows the last line of a page. A destination may have colons in its name.
func (p *DeadList) page() (find.Page, error) {
	page := find.Page{Limit: p.Limit, Payload: p.Payload}
	if p.After == "" {
		return page, nil
	}
	rest, message := cutLast(p.After)
	destination, position := cutLast(rest)
	var err error
	if page.AfterPosition, err = strconv.ParseInt(position, 10, 64); err == nil {
		page.AfterMessageID, err = outbox.ParseID(message)
	}
	if page.AfterDestination = destination; err != nil {
		return page, fault("after", "is %q: want DESTINATION:POSITION:MESSAGE_ID, of the last line of the page before", p.After)
	}
	return page, nil
}

func cutLast(s string) (before, after string) {
	i := strings.LastIndexByte(s, ':')
	return s[:max(i, 0)], s[i+1:]
}

func deadList() Verb {
	return reads(Verb{
		Name:  "dead ls",
		Short: "List dead letters",
		Example: `  outbox dead ls --destination kafka --cause refused
  outbox dead ls --blocked
  outbox dead ls -o jsonl --payload | jq .error`,
	}, func(ctx context.Context, db admin.DB, p DeadList) ([]find.DeadLetter, error) {
		s, _ := p.selection(nil) // checked
		page, _ := p.page()
		return find.DeadLetters(ctx, db, s, page)
	}, func(p DeadList, letters []find.DeadLetter) sheet.Parts {
		return listPage("Dead letters", "all that was committed has been delivered, or is on its way", letters, p.row, p.Limit, "after",
			func(l find.DeadLetter) string { return fmt.Sprintf("%s:%d:%s", l.Destination, l.Position, l.MessageID) })
	})
}

// row describes a dead letter, or a blocked message, of a list.
func (f Filter) row(l find.DeadLetter) sheet.Row {
	cause, known := []any{"Cause", l.Reason}, []any{"Known to", l.AcknowledgedBy}
	if f.Blocked {
		cause, known = []any{"Behind", l.Behind}, nil
	}
	row := sheet.Of(slices.Concat([]any{"Message", sheet.To(l.MessageID, "dead show", f.names(l)...), "Position", sheet.ID(l.Position),
		route, sheet.Route(l.Topic, l.Destination), "Key", sheet.Key(l.Key)}, cause,
		[]any{"Attempts", l.Attempts, "Set aside", l.At}, known, []any{"Error", sheet.Error(l.Error)})...)
	row.Pick = l.MessageID.String()
	return row
}

// names are the parameters of verbs about one dead letter, or one blocked message.
func (f Filter) names(l find.DeadLetter) []string {
	params := []string{"ids", l.MessageID.String(), "destination", l.Destination}
	if f.Blocked {
		params = append(params, "blocked", "true")
	}
	return params
}

func deadGroup() Verb {
	return reads(Verb{
		Name:  "dead group",
		Short: "Group dead letters by cause",
		Long: `Dead letters whose errors differ in ids, numbers and quoted names alone are one group. Its fingerprint selects it for the
other commands: --group. AGAIN counts those that were requeued before, and failed again.`,
		Example: `  outbox dead group --new
  outbox dead requeue --group 7c1e09ab`,
	}, func(ctx context.Context, db admin.DB, p Filter) (find.DeadGroups, error) {
		s, _ := p.selection(nil) // checked
		return find.GroupDead(ctx, db, s)
	}, func(_ Filter, found find.DeadGroups) sheet.Parts {
		parts := sheet.Parts{sheet.List("Groups of dead letters", "all that was committed has been delivered, or is on its way",
			found.Groups, groupRow)}
		if len(found.Groups) > 0 {
			text := printed.Many(len(found.Groups), "group", "groups") + ", " + printed.Many(found.Looked, "message", "messages")
			if found.Partial {
				text += ", and there are more: select fewer"
			}
			parts = append(parts, sheet.Hint(text))
		}
		return parts
	})
}

func groupRow(g find.DeadGroup) sheet.Row {
	group := []string{"group", g.Fingerprint, "destination", g.Destination, "topic", g.Topic}
	return sheet.Of("Group", sheet.To(g.Fingerprint, "dead ls", group...), "Cause", sheet.Mark{State: health.StateDead, Word: g.Reason},
		route, sheet.Route(g.Topic, g.Destination), "Messages", g.Messages, "New", g.New, "Again", g.Again, "First", g.First,
		"Last", g.Last, "Error of the last", sheet.Error(g.Error)).
		Can("dead requeue", "Requeue…", group...).Can("dead ack", "Acknowledge…", group...).Can("dead discard", "Discard…", group...)
}

func (f *Filter) check() error {
	_, err := f.selection(nil)
	if err == nil && f.Discarded {
		err = fault("discarded", "can't be used here: list them with dead ls")
	}
	if err == nil && f.Blocked {
		err = fault("blocked", "can't be used here: blocked messages are no dead letters yet")
	}
	return err
}

// DeadShow are the parameters of "dead show".
type DeadShow struct {
	IDs []string `json:"ids" arg:"ID" required:"true" help:"message ids, or positions"`
	Filter
	Payload bool `json:"payload,omitempty" role:"operator" help:"with the payload"`
}

func (p *DeadShow) check() error {
	_, err := p.selection(p.IDs)
	return err
}

func deadShow() Verb {
	return reads(Verb{
		Name:  "dead show",
		Short: "Show dead letters in full",
		Example: `  outbox dead show 0190a4f8-3c5e-7cc3-98c4-dc0c0c07398f
  outbox dead show --payload 1234`,
	}, func(ctx context.Context, db admin.DB, p DeadShow) ([]find.DeadLetter, error) {
		s, _ := p.selection(p.IDs) // checked
		letters, err := find.DeadLetters(ctx, db, s, find.Page{Limit: 1000, Payload: p.Payload})
		if err == nil && len(letters) == 0 {
			kind := "dead letter"
			if s.Blocked {
				kind = "blocked message"
			}
			err = fmt.Errorf("%w: no %s has the id %s: list them with: outbox dead ls", admin.ErrNotFound, kind, strings.Join(p.IDs, ", "))
		}
		return letters, err
	}, func(p DeadShow, letters []find.DeadLetter) (parts sheet.Parts) {
		for _, l := range letters {
			parts = append(parts, p.letter(l)...)
		}
		return parts
	})
}

// letter describes a dead letter, or a blocked message, in full.
func (p DeadShow) letter(l find.DeadLetter) sheet.Parts {
	id := l.MessageID.String()
	about := sheet.Of("Message", sheet.To(l.MessageID, "messages show", "message", id), "Position", sheet.ID(l.Position),
		"Destination", sheet.Destination(l.Destination), "Topic", l.Topic, "Key", sheet.Key(l.Key),
		"Aggregate", strings.TrimSpace(l.AggregateType+" "+l.AggregateID), "Event type", l.EventType, "Content type", l.ContentType,
		"Group", sheet.To(l.Fingerprint, "dead ls", "group", l.Fingerprint)).
		Can("dead requeue", "Requeue…", p.names(l)...).Can("dead discard", "Discard…", p.names(l)...)
	if p.Blocked {
		about.Cells = append(about.Cells, sheet.Cell{Title: "Behind it", Value: l.Behind})
	} else {
		about = about.Can("dead ack", "Acknowledge…", p.names(l)...).Can("dead edit", "Edit…", "message", id, "destination", l.Destination)
	}
	life := sheet.Life{{At: l.CreatedAt, What: "written"}, {At: l.At, What: l.Reason, Wrong: true,
		Text: sheet.Error(printed.Many(l.Attempts, "attempt", "attempts") + ": " + l.Error)}}
	if l.Deaths > 1 {
		life = append(life, sheet.Step{What: "again", Wrong: true, Text: "died " + printed.Many(l.Deaths, "time", "times")})
	}
	if !l.AcknowledgedAt.IsZero() {
		life = append(life, sheet.Step{At: l.AcknowledgedAt, What: "acknowledged", Text: "by " + l.AcknowledgedBy})
	}
	parts := append(sheet.Parts{sheet.Head(l.Topic + " → " + l.Destination), sheet.Facts(about)}, edits(l)...)
	return append(parts, life, sheet.Block{Title: "Headers", Text: l.Headers}, payload(p.Payload, l.Payload))
}

// edits are the differences of a dead letter from its original.
func edits(l find.DeadLetter) sheet.Parts {
	changes := l.Changes()
	if l.Original != nil && len(changes) == 0 {
		return sheet.Parts{sheet.Hint("It was edited; what you may see of it is as it was written")}
	}
	return sheet.Parts{sheet.Changes(changes)}
}

// DeadAct are the parameters of the verbs that act on dead letters.
type DeadAct struct {
	IDs []string `json:"ids,omitempty" arg:"ID" help:"message ids, or positions"`
	Filter
	Max int64 `json:"max,omitempty" default:"100000" min:"1" help:"refuse to act on more"`
	Bulk
}

// Start makes the parameters start the job that a dry run has listed.
func (p *DeadAct) Start(job jobs.Job) {
	*p = DeadAct{Filter: Filter{Destination: job.Destination}, Max: p.Max, Bulk: p.listed(job)}
}

func (p *DeadAct) check() error {
	s, err := p.selection(p.IDs)
	switch {
	case err != nil:
	case p.Job > 0 && (len(p.IDs) > 0 || p.All || p.Filter != Filter{Destination: p.Destination}):
		err = fault("job", "has its messages already: leave the selection out")
	case p.Job == 0 && s.Everything() && !p.All:
		err = fault("", "nothing is selected: give ids, a destination, a topic, a key, a cause, a group or an age, or say all")
	}
	return err
}

// actOnDead completes a verb that acts on dead letters.
func actOnDead(v Verb, verb jobs.BulkVerb) Verb {
	v.Lists = true
	v.Long += `

` + bulkHelp
	v.Example += strings.ReplaceAll(`  outbox VERB 0190a4f8-3c5e-7cc3-98c4-dc0c0c07398f --reason "topic exists now"
  outbox VERB --destination kafka --cause refused --dry-run
  outbox VERB --all --max 5000 --rate 100 --yes`, "VERB", v.Name)
	return changes(v, func(ctx context.Context, db admin.DB, action admin.Action, p DeadAct) (jobs.Job, error) {
		s, _ := p.selection(p.IDs) // checked
		s.All, s.Discarded = p.All, s.Discarded || verb == jobs.BulkRestore
		job, err := jobs.Start(ctx, db, verb, s, p.options(p.Max), action)
		return p.begun(ctx, db, action, job, err)
	}, jobTexts[DeadAct](v))
}

func deadAck() Verb {
	return actOnDead(Verb{
		Name:  "dead ack",
		Cost:  "They stay where they are; the verdict speaks of them no more",
		Short: "Say that you know of dead letters",
		Long: `outbox status speaks of dead letters until they are acknowledged. Acknowledged ones stay where they are, to be
requeued or discarded later; one that dies again is new again.`,
	}, jobs.BulkAcknowledge)
}

func deadRequeue() Verb {
	return actOnDead(Verb{
		Name:  "dead requeue",
		Cost:  "They are sent again, in order among themselves. What was delivered after them stays delivered, so consumers see them late",
		Short: "Deliver dead letters again",
		Long: `Dead letters are sent again, in order among themselves, with no attempt counted. What was delivered after
them stays delivered: consumers that need a key's order see them late. With --blocked, messages that keep
their keys held are tried again, and what waits behind them follows.`,
		Example: "  outbox dead requeue --blocked --key order-42\n",
	}, jobs.BulkRequeue)
}

func deadDiscard() Verb {
	return actOnDead(Verb{
		Name:  "dead discard",
		Cost:  "They go to the trash, from which they can be restored for a day. After that they are gone",
		Short: "Give dead letters up",
		Long: `Dead letters go to the trash, which keeps them for a day: outbox dead ls --discarded lists it, outbox dead restore and
outbox jobs undo bring them back. With --blocked, messages that keep their keys held go there, and what waits behind
them is delivered.`,
		Example: "  outbox dead discard --blocked --key order-42\n",
	}, jobs.BulkDiscard)
}

func deadRestore() Verb {
	return actOnDead(Verb{
		Name:  "dead restore",
		Short: "Bring discarded dead letters back from the trash",
		Long: `What was discarded within the last day becomes what it was, a dead letter. To bring back all that one command has
discarded: outbox jobs undo.`,
	}, jobs.BulkRestore)
}
