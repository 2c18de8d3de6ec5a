package main

import (
	"fmt"
	"time"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/internal/printed"
)

func listDestinations(a *app, _ *struct{}, list []admin.Destination) error {
	if len(list) == 0 {
		fmt.Fprintln(a.stderr, "none: a destination appears when a relay first delivers to it")
		return nil
	}
	return writeDestinations(a.stdout, &admin.Report{At: time.Now(), Destinations: list})
}

func dropDestination() view {
	return asks(shows(func(a *app, _ *verbs.DestinationsDrop, done admin.Dropped) error {
		_, err := fmt.Fprintf(a.stdout, "dropped %s\n", clean(done.Destination))
		return err
	}), func(a *app, _ *verbs.DestinationsDrop, found admin.Dropped) error {
		t := newTable(a.stdout, "DESTINATION", "CURSORS", "UNDELIVERED", "HELD", "DEAD")
		t.row(found.Destination, found.Cursors, found.Pending, printed.Number(found.Holds), printed.Number(found.DeadLetters))
		return t.flush()
	}, func(p *verbs.DestinationsDrop, _ admin.Dropped) (string, bool) {
		return fmt.Sprintf("Drop destination %s for ever?", clean(p.Destination)), true
	})
}
