package draw

import (
	"fmt"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/admin/find"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/output"
	"github.com/pgoutbox/outbox/internal/printed"
)

func listMessages(to output.Streams, _ *verbs.MessagesFind, found find.FoundMessages) error {
	if len(found.Messages) > 0 {
		t := output.NewTable(to.Stdout, "MESSAGE ID", "POSITION", "TRANSACTION", "SEGMENT", "TOPIC", "KEY", "EVENT TYPE", "AGE")
		now := time.Now()
		for _, m := range found.Messages {
			t.Row(m.MessageID, m.Position, m.Transaction, m.Segment, m.Topic, output.Short(m.Key, 40), m.EventType, output.Ago(now, m.CreatedAt))
		}
		if err := t.Flush(); err != nil {
			return err
		}
	} else {
		fmt.Fprintln(to.Stderr, "none")
	}
	fmt.Fprintf(to.Stderr, "looked through %d of %d segments, %s, in %s\n", found.Segments, found.Of,
		printed.Many(found.Looked, "message", "messages"), printed.Span(time.Duration(found.Seconds*float64(time.Second))))
	if found.Next != "" {
		fmt.Fprintf(to.Stderr, "there may be more: add --after %s\n", found.Next)
	}
	return nil
}

func showMessages(to output.Streams, p *verbs.MessagesShow, lives []find.MessageLife) error {
	for i, l := range lives {
		if i > 0 {
			fmt.Fprintln(to.Stdout)
		}
		t := output.NewTable(to.Stdout, "message id", l.MessageID.String())
		t.Row("position", l.Position)
		if l.Transaction == "" {
			t.Row("transaction", "unknown: its segment has been emptied")
		} else {
			t.Row("transaction", l.Transaction)
			t.Row("segment", l.Segment)
		}
		t.Row("topic", l.Topic)
		t.Row("key", l.Key)
		t.Row("aggregate", strings.TrimSpace(l.AggregateType+" "+l.AggregateID))
		t.Row("event type", l.EventType)
		t.Row("content type", l.ContentType)
		t.Row("headers", string(l.Headers))
		t.Row("trace", l.TraceID)
		t.Row("created at", l.CreatedAt.Local().Format(time.RFC3339Nano))
		if !l.CommittedAt.IsZero() {
			t.Row("committed at", l.CommittedAt.Local().Format(time.RFC3339Nano))
		}
		if p.Payload {
			t.Row("payload", payloadText(l.Payload))
		}
		if err := t.Flush(); err != nil {
			return err
		}
		if len(l.Destinations) == 0 {
			continue
		}
		fmt.Fprintln(to.Stdout)
		t = output.NewTable(to.Stdout, "DESTINATION", "STATE", "ATTEMPTS", "SINCE", "NEXT TRY", "ERROR")
		now := time.Now()
		for _, d := range l.Destinations {
			since, next := "", ""
			if !d.Since.IsZero() {
				since = output.Ago(now, d.Since) + " ago"
			}
			if !d.Due.IsZero() {
				next = "in " + printed.Span(d.Due.Sub(now))
			}
			t.Row(d.Destination, d.State, d.Attempts, since, next, output.Short(d.Error, output.ErrorWidth))
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	return nil
}
