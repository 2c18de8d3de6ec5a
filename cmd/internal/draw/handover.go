package draw

import (
	"fmt"

	"github.com/pgoutbox/outbox/admin/destinations"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/output"
)

func handover() View {
	return asks(shows(func(to output.Streams, _ *verbs.Handover, done verbs.HandedOver) error {
		_, err := fmt.Fprintf(to.Stdout, "%s is read by %s\n", output.Clean(done.Destination), done.To)
		return err
	}), nil, func(p *verbs.Handover, _ verbs.HandedOver) (string, bool) {
		if p.To == destinations.ByLog {
			return "", true // nothing is lost by it
		}
		return "Stop reading the write-ahead log for " + output.Clean(p.Destination) + ", and drop its slot?", true
	})
}
