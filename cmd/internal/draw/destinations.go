package draw

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/admin/destinations"
	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/output"
	"github.com/pgoutbox/outbox/internal/printed"
)

func listDestinations(to output.Streams, _ *struct{}, list []health.Destination) error {
	if len(list) == 0 {
		fmt.Fprintln(to.Stderr, "none: a destination appears when a relay first delivers to it")
		return nil
	}
	return writeDestinations(to.Stdout, &health.Report{At: time.Now(), Destinations: list})
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

func writeDestinations(w io.Writer, r *health.Report) error {
	t := output.NewTable(w, "DESTINATION", "STATE", "OWNER", "EPOCH", "LEASE", "PENDING", "OLDEST", "HELD", "BLOCKED", "DEAD", "DELIVERED")
	for _, d := range r.Destinations {
		for i, g := range d.Groups {
			name, oldest := d.Name, d.Oldest
			if g.Groups > 1 {
				name, oldest = fmt.Sprintf("%s %d/%d", d.Name, g.Group, g.Groups), g.Oldest
			}
			lease := "none"
			if g.Live {
				lease = printed.Span(g.LeaseUntil.Sub(r.At)) + " left"
				if d.Table != nil {
					lease = "its sessions"
				}
			}
			// What belongs to the destination as a whole stands in its first line.
			held, blocked, dead, delivered := "", "", "", ""
			if i == 0 {
				held, blocked = d.Held.Messages.String(), printed.Number(d.Held.Blocked)
				dead, delivered = d.Dead.Messages.String(), printed.Number(d.Delivered)
			}
			t.Row(name, d.Verdict.Words(), g.Owner, g.Epoch, lease, g.Pending, output.Ago(r.At, oldest), held, blocked, dead, delivered)
		}
		if len(d.Groups) == 0 {
			t.Row(d.Name, d.Verdict.Words(), "", "", "none", "", output.Ago(r.At, d.Oldest), d.Held.Messages,
				printed.Number(d.Held.Blocked), d.Dead.Messages, "")
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	// What has been said isn't said again.
	said := []string{r.Verdict.Cause}
	say := func(text, because string) {
		if because != "" && !slices.ContainsFunc(said, func(s string) bool { return strings.Contains(s, because) }) {
			said = append(said, text)
			fmt.Fprintln(w, output.Clean(text))
		}
	}
	for _, f := range r.Verdict.Causes()[1:] { // one line for one cause
		say(health.Verdict{Finding: f, At: r.At}.String(), f.Cause)
	}
	for _, d := range r.Destinations {
		say(d.Name+": "+d.Verdict.Cause, d.Verdict.Cause)
		if d.Table != nil && len(d.Table.Untold) > 0 {
			untold := strings.Join(d.Table.Untold, "; ")
			say(fmt.Sprintf("%s: can't be told of table %s: %s", d.Name, d.Table.Name, untold), untold)
		}
		for _, g := range d.Groups {
			if g.Recovered() {
				continue
			}
			say(fmt.Sprintf("%s: last error %s ago: %s", d.Name, output.Ago(r.At, g.LastErrorAt), output.Short(g.LastError, 300)), g.LastError)
		}
	}
	return nil
}
