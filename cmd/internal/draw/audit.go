package draw

import (
	"fmt"
	"time"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/output"
)

func audit() View {
	return lists("none", []any{"ID", "AT", "BY", "VERB", "DESTINATION", "REASON", "DETAIL"},
		func(_ time.Time, e admin.AuditEntry) []any {
			return []any{e.ID, e.At.Local().Format(time.DateTime), e.Actor, e.Verb, e.Destination, output.Short(e.Reason, 60),
				output.Short(string(e.Detail), 80)}
		}, func(p *verbs.Audit, last admin.AuditEntry) (int, string) {
			return p.Limit, fmt.Sprint("--before ", last.ID)
		})
}
