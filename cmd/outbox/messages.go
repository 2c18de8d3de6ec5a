package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/admin/find"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/internal/printed"
)

func listMessages(a *app, _ *verbs.MessagesFind, found find.FoundMessages) error {
	if len(found.Messages) > 0 {
		t := newTable(a.stdout, "MESSAGE ID", "POSITION", "TRANSACTION", "SEGMENT", "TOPIC", "KEY", "EVENT TYPE", "AGE")
		now := time.Now()
		for _, m := range found.Messages {
			t.row(m.MessageID, m.Position, m.Transaction, m.Segment, m.Topic, short(m.Key, 40), m.EventType, ago(now, m.CreatedAt))
		}
		if err := t.flush(); err != nil {
			return err
		}
	} else {
		fmt.Fprintln(a.stderr, "none")
	}
	fmt.Fprintf(a.stderr, "looked through %d of %d segments, %s, in %s\n", found.Segments, found.Of,
		printed.Many(found.Looked, "message", "messages"), printed.Span(time.Duration(found.Seconds*float64(time.Second))))
	if found.Next != "" {
		fmt.Fprintf(a.stderr, "there may be more: add --after %s\n", found.Next)
	}
	return nil
}

func showMessage(a *app, p *verbs.MessagesShow, lives []find.MessageLife) error {
	for i, l := range lives {
		if i > 0 {
			fmt.Fprintln(a.stdout)
		}
		t := newTable(a.stdout, "message id", l.MessageID.String())
		t.row("position", l.Position)
		if l.Transaction == "" {
			t.row("transaction", "unknown: its segment has been emptied")
		} else {
			t.row("transaction", l.Transaction)
			t.row("segment", l.Segment)
		}
		t.row("topic", l.Topic)
		t.row("key", l.Key)
		t.row("aggregate", strings.TrimSpace(l.AggregateType+" "+l.AggregateID))
		t.row("event type", l.EventType)
		t.row("content type", l.ContentType)
		t.row("headers", string(l.Headers))
		t.row("trace", l.TraceID)
		t.row("created at", l.CreatedAt.Local().Format(time.RFC3339Nano))
		if !l.CommittedAt.IsZero() {
			t.row("committed at", l.CommittedAt.Local().Format(time.RFC3339Nano))
		}
		if p.Payload {
			t.row("payload", payloadText(l.Payload))
		}
		if err := t.flush(); err != nil {
			return err
		}
		if len(l.Destinations) == 0 {
			continue
		}
		fmt.Fprintln(a.stdout)
		t = newTable(a.stdout, "DESTINATION", "STATE", "ATTEMPTS", "SINCE", "NEXT TRY", "ERROR")
		now := time.Now()
		for _, d := range l.Destinations {
			since, next := "", ""
			if !d.Since.IsZero() {
				since = ago(now, d.Since) + " ago"
			}
			if !d.Due.IsZero() {
				next = "in " + printed.Span(d.Due.Sub(now))
			}
			t.row(d.Destination, d.State, d.Attempts, since, next, short(d.Error, errorWidth))
		}
		if err := t.flush(); err != nil {
			return err
		}
	}
	return nil
}
