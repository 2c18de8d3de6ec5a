package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/admin/destinations"
	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/output"
	"github.com/pgoutbox/outbox/internal/printed"
)

func listDestinations(a *app, _ *struct{}, list []health.Destination) error {
	if len(list) == 0 {
		fmt.Fprintln(a.stderr, "none: a destination appears when a relay first delivers to it")
		return nil
	}
	return writeDestinations(a.stdout, &health.Report{At: time.Now(), Destinations: list})
}

func moveDestination() view {
	to := func(m destinations.Moved) string {
		if len(m.To) == 0 {
			return "the broker that the next relay has"
		}
		return strings.Join(m.To, ", ")
	}
	return asks(shows(func(a *app, _ *verbs.DestinationsMove, done destinations.Moved) error {
		_, err := fmt.Fprintf(a.stdout, "moved %s to %s\n", output.Clean(done.Destination), output.Clean(to(done)))
		return err
	}), func(a *app, _ *verbs.DestinationsMove, found destinations.Moved) error {
		t := output.NewTable(a.stdout, "DESTINATION", "FROM", "TO")
		t.Row(found.Destination, strings.Join(found.From, ", "), to(found))
		return t.Flush()
	}, func(p *verbs.DestinationsMove, _ destinations.Moved) (string, bool) {
		return fmt.Sprintf("Move destination %s? What the old broker has got isn't sent again.", output.Clean(p.Destination)), true
	})
}

func dropDestination() view {
	return asks(shows(func(a *app, _ *verbs.DestinationsDrop, done destinations.Dropped) error {
		_, err := fmt.Fprintf(a.stdout, "dropped %s\n", output.Clean(done.Destination))
		return err
	}), func(a *app, _ *verbs.DestinationsDrop, found destinations.Dropped) error {
		t := output.NewTable(a.stdout, "DESTINATION", "CURSORS", "UNDELIVERED", "HELD", "DEAD")
		t.Row(found.Destination, found.Cursors, found.Pending, printed.Number(found.Holds), printed.Number(found.DeadLetters))
		return t.Flush()
	}, func(p *verbs.DestinationsDrop, _ destinations.Dropped) (string, bool) {
		return fmt.Sprintf("Drop destination %s for ever?", output.Clean(p.Destination)), true
	})
}
