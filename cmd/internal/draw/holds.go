package draw

import (
	"time"

	"github.com/pgoutbox/outbox/admin/find"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/output"
	"github.com/pgoutbox/outbox/internal/printed"
)

func holds() View {
	return lists("none", []any{"DESTINATION", "KEY", "MESSAGES", "FIRST", "TOPIC", "ATTEMPTS", "SINCE", "NEXT TRY", "ERROR"},
		func(now time.Time, h find.HeldLane) []any {
			next := "blocked"
			if !h.Blocked {
				next = "in " + printed.Span(h.Due.Sub(now))
			}
			return []any{h.Destination, output.Short(h.Lane, 40), h.Messages, h.MessageID, h.Topic, h.Attempts,
				output.Ago(now, h.Since) + " ago", next, output.Short(h.Error, output.ErrorWidth)}
		}, func(p *verbs.Holds, last find.HeldLane) (int, string) {
			return p.Limit, "--after " + output.Clean(last.Destination+"/"+last.Lane)
		})
}
