package verbs

import (
	"context"
	"fmt"
	"time"

	"github.com/pgoutbox/outbox/admin/sheet"
	"github.com/pgoutbox/outbox/internal/printed"
	"github.com/pgoutbox/outbox/schema"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/health"
)

func inboxStatus() Verb {
	return reads(Verb{
		Name:  "inbox status",
		Short: "Show for how long records are kept, and every consumer with what waits for it",
	}, func(ctx context.Context, db admin.DB, _ struct{}) (*health.Inbox, error) {
		return health.InboxStatus(ctx, db)
	}, showInbox)
}

// InboxWindow are the parameters of "inbox window".
type InboxWindow struct {
	Window Duration `json:"window" arg:"DURATION" required:"true" min:"1s" help:"for how long records are kept at least"`
	Intent
}

// Window is for how long records are kept at least.
type Window struct {
	Window time.Duration `json:"window_ns"`
}

func inboxWindow() Verb {
	return changes(Verb{
		Name:  "inbox window",
		Cost:  "Older records may be forgotten",
		Short: "Say for how long records are kept at least",
		Long: `A message that comes again within the window has no effect. Make it longer than brokers keep what isn't
acknowledged, and than anybody goes back in a topic. The tables hold up to two windows.`,
		Example: `  outbox inbox window 336h --reason "topics are kept for ten days"`,
	}, func(ctx context.Context, db admin.DB, action admin.Action, p InboxWindow) (Window, error) {
		w := Window{time.Duration(p.Window)}
		return w, health.SetInboxWindow(ctx, db, w.Window, action)
	}, texts[InboxWindow, Window]{done: func(w Window) string { return "records are kept for at least " + printed.Span(w.Window) }})
}

func showInbox(_ struct{}, i *health.Inbox) sheet.Parts {
	now, closed := time.Now(), "still written to by an open transaction, or no retention has run since"
	if !i.Closed.IsZero() {
		closed = "closed " + printed.Ago(now, i.Closed)
	}
	parts := sheet.Parts{sheet.Line(fmt.Sprintf("records are kept for at least %s; current table since %s; the one before: %s",
		printed.Span(i.Window), printed.Span(now.Sub(i.Turned)), closed))}
	if i.Due {
		parts = append(parts, sheet.Line("the oldest records could be forgotten: no retention runs (inbox.Retention in a consumer, "+
			"or: outbox inbox retain)"))
	}
	return append(parts, sheet.List("Tables", "", i.Tables, func(t health.InboxTable) sheet.Row {
		return sheet.Of("Table", sheet.Code(t.Name), "Role", t.Role, "Size", sheet.Bytes(t.Bytes))
	}), sheet.List("Consumers", "no consumer has recorded anything in this database", i.Consumers, func(c health.InboxConsumer) sheet.Row {
		stored := any("")
		if c.Stored {
			stored = c.Pending
		}
		destination := schema.InboxPrefix + c.Name
		return sheet.Of("Consumer", c.Name, "Keys", c.Keys, "Gaps", c.Gaps, "Stored", stored,
			"Held", sheet.To(c.Held, "holds", "destination", destination),
			"Dead", sheet.To(c.Dead, "dead group", "destination", destination))
	}))
}
