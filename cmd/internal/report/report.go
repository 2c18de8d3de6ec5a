// Package report prints what commands have found about a whole: a database, all of them, a table, the consumers.
package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/cmd/internal/output"
	"github.com/pgoutbox/outbox/internal/printed"
)

func writeReport(w io.Writer, r *health.Report, colours bool) error {
	word := r.Verdict.State.Word()
	verdict := strings.ToUpper(word)
	if colours {
		verdict = colourOf(r.Verdict.State) + verdict + "\x1b[0m"
	}
	fmt.Fprintln(w, verdict+printed.Text(strings.TrimPrefix(r.Verdict.Sentence(), word)))
	if remedy := r.Verdict.Remedy(); remedy != "" {
		fmt.Fprintln(w, "next:", output.Clean(remedy))
	}
	if r.Database != "" {
		fmt.Fprintf(w, "database %s at %s\n", output.Clean(r.Database), r.At.Local().Format(time.DateTime))
	}

	sections := []struct {
		some  bool
		write func(io.Writer, *health.Report) error
	}{
		{len(r.Destinations) > 0, Destinations},
		{slices.ContainsFunc(r.Destinations, func(d health.Destination) bool { return d.Slot != nil }), writeSlots},
		{len(r.Relays) > 0, Relays},
		{len(r.Segments) > 0, writeSegments},
		{len(r.Open) > 0, writeOpen},
		{len(r.Unselected) > 0, writeUnselected},
	}
	for _, s := range sections {
		if !s.some {
			continue
		}
		fmt.Fprintln(w)
		if err := s.write(w, r); err != nil {
			return err
		}
	}
	return nil
}

func colourOf(s health.State) string {
	switch s.Tone() {
	case health.Calm:
		return "\x1b[1;32m"
	case health.Attention:
		return "\x1b[1;33m"
	}
	return "\x1b[1;31m"
}

func writeSegments(w io.Writer, r *health.Report) error {
	t := output.NewTable(w, "SEGMENT", "SIZE", "NEEDED BY")
	var empty int
	for _, s := range r.Segments {
		if len(s.NeededBy) == 0 && s.Bytes < 64<<10 { // an empty one has its index
			empty++
			continue
		}
		t.Row(s.Name, printed.Bytes(s.Bytes), strings.Join(s.NeededBy, ", "))
	}
	if empty > 0 {
		t.Row(fmt.Sprintf("%d more", empty), "empty", "")
	}
	return t.Flush()
}

func writeOpen(w io.Writer, r *health.Report) error {
	t := output.NewTable(w, "OPEN TRANSACTION", "AGE", "USER", "APPLICATION", "STATE", "QUERY")
	for _, o := range r.Open {
		id := fmt.Sprintf("pid %d", o.PID)
		if o.Prepared != "" {
			id, o.State = o.Prepared, "prepared"
		}
		t.Row(id, output.Ago(r.At, o.Since), o.User, o.Application, o.State, output.Short(o.Query, 60))
	}
	return t.Flush()
}

// writeUnselected names what no destination selects, and what to do about it.
func writeUnselected(w io.Writer, r *health.Report) error {
	t := output.NewTable(w, "SELECTED BY NO DESTINATION", "MESSAGES", "LATEST", "EVENT TYPE", "SEEN BY")
	for _, u := range r.Unselected {
		t.Row(u.Topic, printed.Number(u.Messages), output.Ago(r.At, u.Last)+" ago", output.Short(u.EventType, 40), u.Relay)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, "add these topics to a destination's topics or filter, or drop them by a rule to say that this is meant")
	return err
}

// writeSlots shows how destinations read the write-ahead log.
func writeSlots(w io.Writer, r *health.Report) error {
	t := output.NewTable(w, "DESTINATION", "READ BY", "SLOT", "POSITION", "WAL", "KEPT", "LOST")
	for _, d := range r.Destinations {
		s := d.Slot
		if s == nil {
			continue
		}
		by, lost := "the log", ""
		if s.Position == "" {
			by = "the table"
		}
		if !s.LostAt.IsZero() && s.Position == "" { // otherwise there is another one
			lost = fmt.Sprintf("%s ago: %s", output.Ago(r.At, s.LostAt), s.LostReason)
		}
		t.Row(d.Name, by, s.Name, s.Position, s.Status, printed.Bytes(s.Kept), lost)
	}
	return t.Flush()
}

// Destinations writes the table of destinations, and below it what is wrong with them.
func Destinations(w io.Writer, r *health.Report) error {
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

// Relays writes the table of relays.
func Relays(w io.Writer, r *health.Report) error {
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
