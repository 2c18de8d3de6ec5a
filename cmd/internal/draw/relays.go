package draw

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/cmd/internal/output"
)

func listRelays(to output.Streams, _ *struct{}, list []health.Relay) error {
	if len(list) == 0 {
		fmt.Fprintln(to.Stderr, "none: no relay has ever run on this database")
		return nil
	}
	return writeRelays(to.Stdout, &health.Report{At: time.Now(), Relays: list})
}

func writeRelays(w io.Writer, r *health.Report) error {
	t := output.NewTable(w, "RELAY", "LIVE", "HEARTBEAT", "HOST", "PID", "VERSION", "UPTIME", "DELIVERS TO")
	for _, relay := range r.Relays {
		live := "yes"
		if !relay.Live {
			live = "no"
		}
		t.Row(relay.Name, live, output.Ago(r.At, relay.HeartbeatAt)+" ago", relay.Host, relay.PID, relay.Version,
			output.Ago(r.At, relay.StartedAt), output.Short(strings.Join(relay.Owns, ", "), 60))
	}
	return t.Flush()
}
