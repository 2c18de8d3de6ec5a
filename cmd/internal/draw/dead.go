package draw

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pgoutbox/outbox/admin/find"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/output"
)

func listLetters(to output.Streams, p *verbs.DeadList, letters []find.DeadLetter) error {
	if len(letters) == 0 {
		fmt.Fprintln(to.Stderr, "none")
		return nil
	}
	columns := []any{"MESSAGE ID", "POSITION", "DESTINATION", "TOPIC", "KEY", "CAUSE", "ATTEMPTS", "AGE", "ERROR"}
	if p.Blocked {
		columns[5] = "BEHIND"
	} else {
		columns = slices.Insert(columns, 8, any("KNOWN TO"))
	}
	t := output.NewTable(to.Stdout, columns...)
	now := time.Now()
	for _, l := range letters {
		cause := l.Reason
		if p.Blocked {
			cause = fmt.Sprint(l.Behind)
		}
		row := []any{l.MessageID, l.Position, l.Destination, l.Topic, output.Short(l.Key, 40), cause, l.Attempts, output.Ago(now, l.At),
			output.Short(l.Error, output.ErrorWidth)}
		if !p.Blocked {
			row = slices.Insert(row, 8, any(l.AcknowledgedBy))
		}
		t.Row(row...)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if len(letters) == p.Limit {
		last := letters[len(letters)-1]
		fmt.Fprintf(to.Stderr, "there may be more: add --after %s:%d:%s\n", last.Destination, last.Position, last.MessageID)
	}
	return nil
}

func showLetters(to output.Streams, p *verbs.DeadShow, letters []find.DeadLetter) error {
	for i, l := range letters {
		if i > 0 {
			fmt.Fprintln(to.Stdout)
		}
		if err := writeLetter(to.Stdout, l, p.Payload); err != nil {
			return err
		}
	}
	return nil
}

func writeLetter(w io.Writer, l find.DeadLetter, payload bool) error {
	t := output.NewTable(w, "message id", l.MessageID.String())
	t.Row("position", l.Position)
	t.Row("destination", l.Destination)
	t.Row("topic", l.Topic)
	t.Row("key", l.Key)
	t.Row("aggregate", strings.TrimSpace(l.AggregateType+" "+l.AggregateID))
	t.Row("event type", l.EventType)
	t.Row("content type", l.ContentType)
	t.Row("headers", string(l.Headers))
	t.Row("created at", l.CreatedAt.Local().Format(time.RFC3339Nano))
	t.Row("cause", l.Reason)
	t.Row("attempts", l.Attempts)
	t.Row("set aside at", l.At.Local().Format(time.RFC3339Nano))
	t.Row("error", l.Error)
	if !l.AcknowledgedAt.IsZero() {
		t.Row("acknowledged", fmt.Sprintf("%s by %s", l.AcknowledgedAt.Local().Format(time.RFC3339), l.AcknowledgedBy))
	}
	if l.Reason == "blocked" {
		t.Row("behind it", l.Behind)
	}
	if payload {
		t.Row("payload", payloadText(l.Payload))
	}
	writeChanges(t, l)
	return t.Flush()
}

// writeChanges adds the difference from the original.
func writeChanges(t *output.Table, l find.DeadLetter) {
	if l.Original == nil {
		return
	}
	t.Row("edited", "- as it was written, + as it is now")
	for _, c := range l.Changes() {
		t.Row("- "+c.Field, payloadText([]byte(c.Before)))
		t.Row("+ "+c.Field, payloadText([]byte(c.After)))
	}
}

// editLetter is the view of "dead edit". Its preview is the difference.
func editLetter() View {
	difference := func(to output.Streams, _ *verbs.DeadEdit, letters []find.DeadLetter) error {
		for _, l := range letters {
			t := output.NewTable(to.Stdout, "message id", l.MessageID.String())
			t.Row("destination", l.Destination)
			writeChanges(t, l)
			if err := t.Flush(); err != nil {
				return err
			}
		}
		return nil
	}
	return asks(shows(func(to output.Streams, _ *verbs.DeadEdit, letters []find.DeadLetter) error {
		for _, l := range letters {
			fmt.Fprintf(to.Stdout, "edited %s; send it by: outbox dead requeue %s --destination %s\n", l.MessageID,
				l.MessageID, verbs.Word(l.Destination))
		}
		return nil
	}), difference, func(p *verbs.DeadEdit, _ []find.DeadLetter) (string, bool) {
		return "Edit dead letter " + output.Clean(p.Message) + "?", true
	})
}

// payloadText is the payload itself if it is text, otherwise its bytes.
func payloadText(p []byte) string {
	if p == nil {
		return "NULL"
	}
	if utf8.Valid(p) {
		return string(p)
	}
	return fmt.Sprintf("%d bytes, in hexadecimal: %x", len(p), p)
}
