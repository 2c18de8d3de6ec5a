package draw

import (
	"fmt"
	"time"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/output"
	"github.com/pgoutbox/outbox/internal/printed"
)

func showInbox(to output.Streams, _ *struct{}, i *health.Inbox) error {
	w := to.Stdout
	now := time.Now()
	state := "closed " + output.Ago(now, i.Closed) + " ago"
	if i.Closed.IsZero() {
		state = "still written to by an open transaction, or no retention has run since"
	}
	fmt.Fprintf(w, "records are kept for at least %s; current table since %s; the one before: %s\n", printed.Span(i.Window),
		output.Ago(now, i.Turned), state)
	if i.Due {
		fmt.Fprintln(w, "the oldest records could be forgotten: no retention runs (inbox.Retention in a consumer, or: outbox inbox retain)")
	}
	fmt.Fprintln(w)
	t := output.NewTable(w, "TABLE", "ROLE", "SIZE")
	for _, table := range i.Tables {
		t.Row(table.Name, table.Role, printed.Bytes(table.Bytes))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if len(i.Consumers) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	t = output.NewTable(w, "CONSUMER", "KEYS", "GAPS", "STORED", "HELD", "DEAD")
	for _, c := range i.Consumers {
		stored := "-"
		if c.Stored {
			stored = c.Pending.String()
		}
		t.Row(c.Name, c.Keys, c.Gaps, stored, c.Held, c.Dead)
	}
	return t.Flush()
}

func inboxWindow() View {
	return asks(shows(func(to output.Streams, _ *verbs.InboxWindow, w verbs.Window) error {
		_, err := fmt.Fprintf(to.Stdout, "records are kept for at least %s\n", printed.Span(w.Window))
		return err
	}), nil, func(p *verbs.InboxWindow, _ verbs.Window) (string, bool) {
		return fmt.Sprintf("Keep records for %s?", printed.Span(time.Duration(p.Window))), true
	})
}
