package verbs

import (
	"context"
	"time"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/health"
)

func inboxStatus() Verb {
	return reads(Verb{
		Name:  "inbox status",
		Short: "Show for how long records are kept, and every consumer with what waits for it",
	}, func(ctx context.Context, db admin.DB, _ struct{}) (*health.Inbox, error) {
		return health.InboxStatus(ctx, db)
	})
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
		Short: "Say for how long records are kept at least",
		Long: `A message that comes again within the window has no effect. Make it longer than brokers keep what isn't
acknowledged, and than anybody goes back in a topic. The tables hold up to two windows.`,
		Example: `  outbox inbox window 336h --reason "topics are kept for ten days"`,
	}, func(ctx context.Context, db admin.DB, action admin.Action, p InboxWindow) (Window, error) {
		w := Window{time.Duration(p.Window)}
		return w, health.SetInboxWindow(ctx, db, w.Window, action)
	})
}
