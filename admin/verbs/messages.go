package verbs

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/admin/sheet"
	"github.com/pgoutbox/outbox/internal/printed"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/find"
)

// Written are the parameters that select messages of the segments, besides ids. Those that are given must all match.
type Written struct {
	Key         string    `json:"key,omitempty" help:"with this ordering key"`
	Topic       string    `json:"topic,omitempty" help:"of this topic"`
	Since       time.Time `json:"since,omitzero" help:"written at this time or later"`
	Until       time.Time `json:"until,omitzero" help:"written before this time"`
	Header      string    `json:"header,omitempty" help:"with this header, as NAME=VALUE, or NAME for any value"`
	Transaction int64     `json:"transaction,omitempty" min:"0" help:"written by the transaction with this id (xid)"`
}

// filter adds ids to what is selected; those of the parameter that is named.
func (w Written) filter(name string, ids ...string) (f find.MessageFilter, err error) {
	for _, text := range ids {
		id, err := outbox.ParseID(text)
		if f.MessageIDs = append(f.MessageIDs, id); err != nil {
			return f, fault(name, "is %q: want a message id such as 0190a4f8-3c5e-7cc3-98c4-dc0c0c07398f", text)
		}
	}
	f.Header, f.HeaderValue, _ = strings.Cut(w.Header, "=")
	if f.Header == "" && w.Header != "" {
		return f, fault("header", "is %q: want NAME=VALUE or NAME", w.Header)
	}
	f.Key, f.Topic, f.Since, f.Until, f.Transaction = w.Key, w.Topic, w.Since, w.Until, w.Transaction
	return f, nil
}

// MessagesFind are the parameters of "messages find".
type MessagesFind struct {
	Message string `json:"message,omitempty" help:"with this message id"`
	Written
	Within Duration `json:"within,omitempty" default:"1s" min:"10ms" help:"how long to look, 20s at most"`
	Limit  int      `json:"limit,omitempty" default:"100" min:"1" max:"1000" help:"how many to list, 1 to 1000"`
	After  string   `json:"after,omitempty" help:"go on at this SEGMENT:TRANSACTION:POSITION"`
}

func (p *MessagesFind) search() (s find.Search, err error) {
	if p.After != "" {
		if s, err = find.ParseNext(p.After); err != nil {
			return s, fault("after", "is %q: %v", p.After, err)
		}
	}
	if p.Within > Duration(20*time.Second) {
		return s, fault("within", "is %v, it must be at most 20s: go on by after", p.Within)
	}
	var ids []string
	if p.Message != "" {
		ids = []string{p.Message}
	}
	s.MessageFilter, err = p.filter("message", ids...)
	s.Within, s.Limit = time.Duration(p.Within), p.Limit
	return s, err
}

func (p *MessagesFind) check() error {
	_, err := p.search()
	return err
}

func messagesFind() Verb {
	return reads(Verb{
		Name:  "messages find",
		Short: "Find messages in the segments that are still there",
		Long: `A message is there until every destination has passed its segment. By id, key and transaction messages are found by an
index. By topic, header and time alone one message after the other is looked at, the newest first. The search ends after
--within, and tells how far it has come and how to go on. Payloads are not searched.`,
		Example: `  outbox messages find --key customer-42
  outbox messages find --topic orders --since 2026-05-01T12:00:00Z --within 5s
  outbox messages find --header tenant=acme -o json`,
	}, func(ctx context.Context, db admin.DB, p MessagesFind) (find.FoundMessages, error) {
		s, _ := p.search() // checked
		return find.Messages(ctx, db, s)
	}, func(_ MessagesFind, found find.FoundMessages) sheet.Parts {
		looked := fmt.Sprintf("%s in %d of %s looked at in %s", printed.Many(found.Looked, "message", "messages"), found.Segments,
			printed.Many(found.Of, "segment", "segments"), printed.Span(time.Duration(found.Seconds*float64(time.Second))))
		parts := sheet.Parts{sheet.List("Messages", "", found.Messages, func(m find.Message) sheet.Row {
			return sheet.Of("Message", sheet.To(m.MessageID, "messages show", "message", m.MessageID.String()),
				"Position", sheet.ID(m.Position), "Transaction", m.Transaction, "Segment", segment(m.Segment),
				"Topic", m.Topic, "Key", sheet.Key(m.Key),
				"Event type", m.EventType, "Written", m.CreatedAt)
		}), sheet.Hint(looked)}
		if found.Next != "" {
			parts = append(parts, sheet.More{Param: "after", Value: found.Next})
		}
		return parts
	})
}

// segment is where a message is.
func segment(n int) any {
	if n < 0 {
		return "emptied"
	}
	return sheet.ID(n)
}

// MessagesShow are the parameters of "messages show".
type MessagesShow struct {
	Message string `json:"message" arg:"ID" required:"true" help:"the message id"`
	Payload bool   `json:"payload,omitempty" role:"operator" help:"with the payload"`
}

func (p *MessagesShow) check() error {
	if _, err := outbox.ParseID(p.Message); err != nil {
		return fault("message", "is %q: want a message id such as 0190a4f8-3c5e-7cc3-98c4-dc0c0c07398f", p.Message)
	}
	return nil
}

func messagesShow() Verb {
	return reads(Verb{
		Name:  "messages show",
		Short: "Show a message and what became of it at each destination",
		Long: `At a destination a message is waiting, held, blocked or dead, or the cursor has passed it: then it was delivered, or the
destination doesn't select it, or an operator discarded it. When it was committed is known if the server has
track_commit_timestamp.`,
		Example: `  outbox messages show 0190a4f8-3c5e-7cc3-98c4-dc0c0c07398f
  outbox messages show --payload 0190a4f8-3c5e-7cc3-98c4-dc0c0c07398f`,
	}, func(ctx context.Context, db admin.DB, p MessagesShow) ([]find.MessageLife, error) {
		id, _ := outbox.ParseID(p.Message) // checked
		return find.ShowMessage(ctx, db, id, p.Payload)
	}, func(p MessagesShow, lives []find.MessageLife) (parts sheet.Parts) {
		for _, m := range lives {
			parts = append(parts, p.life(m)...)
		}
		return parts
	})
}

// life describes a message, and what became of it.
func (p MessagesShow) life(m find.MessageLife) sheet.Parts {
	title := m.Topic
	if m.Key != "" {
		title += ", key " + m.Key
	}
	transaction := m.Transaction
	if transaction == "" {
		transaction = "unknown: its segment has been emptied"
	}
	life := sheet.Life{{At: m.CreatedAt, What: "written", Text: "by transaction " + transaction}}
	if !m.CommittedAt.IsZero() {
		life = append(life, sheet.Step{At: m.CommittedAt, What: "committed"})
	}
	if !m.DeliverAt.IsZero() {
		life = append(life, sheet.Step{At: m.DeliverAt, What: "to be delivered"})
	}
	passed := false
	for _, a := range m.Destinations {
		life = append(life, arrival(m.MessageID.String(), a))
		passed = passed || a.State == find.StatePassed
	}
	parts := sheet.Parts{sheet.Head(title), life, sheet.Facts(sheet.Of("Message", m.MessageID, "Position", sheet.ID(m.Position),
		"Transaction", transaction, "Segment", segment(m.Segment), "Topic", m.Topic, "Key", sheet.Key(m.Key),
		"Aggregate", strings.TrimSpace(m.AggregateType+" "+m.AggregateID), "Event type", m.EventType,
		"Content type", m.ContentType, "Trace", sheet.Code(m.TraceID))),
		sheet.Block{Title: "Headers", Text: m.Headers}, payload(p.Payload, m.Payload)}
	if passed {
		parts = append(parts, sheet.Hint("Passed: it was delivered, or the destination didn't select it, or an "+
			"operator discarded it: what the destination selected at that time isn't recorded"))
	}
	return parts
}

// arrival describes what became of a message at a destination.
func arrival(id string, a find.Arrival) sheet.Step {
	at := []any{sheet.Destination(a.Destination)}
	if a.Attempts > 0 {
		at = append(at, printed.Many(a.Attempts, "attempt", "attempts"))
	}
	if !a.Due.IsZero() {
		at = append(at, sheet.Series{Between: " ", Values: []any{"tried again", a.Due}})
	}
	if a.Error != "" {
		at = append(at, sheet.Error(a.Error))
	}
	step := sheet.Step{At: a.Since, What: a.State, Text: sheet.Series{Between: ", ", Values: at}}
	switch a.State {
	case find.StateDead:
		step.Wrong, step.What = true, sheet.To(a.State, "dead show", "ids", id, "destination", a.Destination)
	case find.StateHeld, find.StateBlocked:
		step.Wrong = true
	case find.StatePassed, find.StateDelivered, find.StateDiscarded:
		step.Acts = []sheet.Act{{Verb: "replay", Label: "Send once more…", Params: []string{"ids", id, "destination", a.Destination}}}
	}
	return step
}

// payload is a message's, if it was asked for.
func payload(asked bool, text []byte) sheet.Block {
	if asked && text == nil {
		text = []byte("NULL")
	}
	return sheet.Block{Title: "Payload", Text: text}
}
