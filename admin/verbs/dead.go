package verbs

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

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
	})
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
	})
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
	})
}

// DeadAct are the parameters of the verbs that act on dead letters.
type DeadAct struct {
	IDs []string `json:"ids,omitempty" arg:"ID" help:"message ids, or positions"`
	Filter
	Max int64 `json:"max,omitempty" default:"100000" min:"1" help:"refuse to act on more"`
	Bulk
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
	})
}

func deadAck() Verb {
	return actOnDead(Verb{
		Name:  "dead ack",
		Short: "Say that you know of dead letters",
		Long: `outbox status speaks of dead letters until they are acknowledged. Acknowledged ones stay where they are, to be
requeued or discarded later; one that dies again is new again.`,
	}, jobs.BulkAcknowledge)
}

func deadRequeue() Verb {
	return actOnDead(Verb{
		Name:  "dead requeue",
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
