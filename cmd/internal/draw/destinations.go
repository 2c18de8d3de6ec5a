package draw

import (
	"fmt"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/admin/destinations"
	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/output"
	"github.com/pgoutbox/outbox/cmd/internal/report"
	"github.com/pgoutbox/outbox/internal/printed"
)

func listDestinations(to output.Streams, _ *struct{}, list []health.Destination) error {
	if len(list) == 0 {
		fmt.Fprintln(to.Stderr, "none: a destination appears when a relay first delivers to it")
		return nil
	}
	return report.Destinations(to.Stdout, &health.Report{At: time.Now(), Destinations: list})
}

func moveDestination() View {
	broker := func(m destinations.Moved) string {
		if len(m.To) == 0 {
			return "the broker that the next relay has"
		}
		return strings.Join(m.To, ", ")
	}
	return asks(shows(func(to output.Streams, _ *verbs.DestinationsMove, done destinations.Moved) error {
		_, err := fmt.Fprintf(to.Stdout, "moved %s to %s\n", output.Clean(done.Destination), output.Clean(broker(done)))
		return err
	}), func(to output.Streams, _ *verbs.DestinationsMove, found destinations.Moved) error {
		t := output.NewTable(to.Stdout, "DESTINATION", "FROM", "TO")
		t.Row(found.Destination, strings.Join(found.From, ", "), broker(found))
		return t.Flush()
	}, func(p *verbs.DestinationsMove, _ destinations.Moved) (string, bool) {
		return fmt.Sprintf("Move destination %s? What the old broker has got isn't sent again.", output.Clean(p.Destination)), true
	})
}

func dropDestination() View {
	return asks(shows(func(to output.Streams, _ *verbs.DestinationsDrop, done destinations.Dropped) error {
		_, err := fmt.Fprintf(to.Stdout, "dropped %s\n", output.Clean(done.Destination))
		return err
	}), func(to output.Streams, _ *verbs.DestinationsDrop, found destinations.Dropped) error {
		t := output.NewTable(to.Stdout, "DESTINATION", "CURSORS", "UNDELIVERED", "HELD", "DEAD")
		t.Row(found.Destination, found.Cursors, found.Pending, printed.Number(found.Holds), printed.Number(found.DeadLetters))
		return t.Flush()
	}, func(p *verbs.DestinationsDrop, _ destinations.Dropped) (string, bool) {
		return fmt.Sprintf("Drop destination %s for ever?", output.Clean(p.Destination)), true
	})
}
