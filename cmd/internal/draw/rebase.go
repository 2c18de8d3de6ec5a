package draw

import (
	"fmt"

	"github.com/pgoutbox/outbox/admin/destinations"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/output"
	"github.com/pgoutbox/outbox/internal/printed"
)

func rebase() View {
	return asks(shows(func(to output.Streams, _ *verbs.Rebase, done []destinations.Rebased) error {
		if len(done) == 0 {
			fmt.Fprintln(to.Stderr, "nothing to do: the cursor is of this cluster")
		}
		for _, d := range done {
			fmt.Fprintf(to.Stdout, "rebased %s: %s to be delivered\n", output.Clean(d.Destination), printed.Many(d.Held, "message", "messages"))
		}
		return nil
	}), nil, func(p *verbs.Rebase, _ []destinations.Rebased) (string, bool) {
		return "Are all writers and relays stopped? Rebase destination " + output.Clean(p.Destination) + "?", true
	})
}
