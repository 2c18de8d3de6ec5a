package draw

import (
	"fmt"

	"github.com/pgoutbox/outbox/admin/destinations"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/output"
)

func handover() View {
	return confirms(says(func(_ *verbs.Handover, done verbs.HandedOver) string {
		return fmt.Sprintf("%s is read by %s", output.Clean(done.Destination), done.To)
	}), func(p *verbs.Handover) string {
		if p.To == destinations.ByLog {
			return "" // nothing is lost by it
		}
		return "Stop reading the write-ahead log for " + output.Clean(p.Destination) + ", and drop its slot?"
	})
}
