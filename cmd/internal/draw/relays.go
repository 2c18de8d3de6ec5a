package draw

import (
	"fmt"
	"time"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/cmd/internal/output"
	"github.com/pgoutbox/outbox/cmd/internal/report"
)

func listRelays(to output.Streams, _ *struct{}, list []health.Relay) error {
	if len(list) == 0 {
		fmt.Fprintln(to.Stderr, "none: no relay has ever run on this database")
		return nil
	}
	return report.Relays(to.Stdout, &health.Report{At: time.Now(), Relays: list})
}
