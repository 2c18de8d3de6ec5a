package draw

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/output"
)

// canary fails if the message has not arrived everywhere.
func canary() View {
	return asks(shows(func(to output.Streams, _ *verbs.Canary, c health.Canary) error {
		for _, name := range slices.Sorted(maps.Keys(c.Settled)) {
			fmt.Fprintf(to.Stdout, "%s settled it after %v\n", output.Clean(name), c.Settled[name])
		}
		for _, name := range slices.Sorted(maps.Keys(c.Failed)) {
			fmt.Fprintf(to.Stdout, "%s could not deliver it: %s\n", output.Clean(name), output.Clean(c.Failed[name]))
		}
		for _, name := range c.Waiting {
			fmt.Fprintf(to.Stdout, "%s has not come to it\n", output.Clean(name))
		}
		switch {
		case c.MessageID == "":
			fmt.Fprintf(to.Stdout, "a message could be written to topic %s\n", output.Clean(c.Topic))
			return nil
		case len(c.Failed)+len(c.Waiting) > 0:
			return errors.New("the message has not arrived everywhere: look at outbox status")
		case len(c.Settled) == 0:
			return errors.New("no destination is there to settle it: start a relay")
		}
		return nil
	}), nil, func(p *verbs.Canary, _ health.Canary) (string, bool) {
		return fmt.Sprintf("Send a message to topic %q, whose consumers get it?", p.Topic), true
	})
}
