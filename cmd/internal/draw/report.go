package draw

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
		{len(r.Destinations) > 0, writeDestinations},
		{slices.ContainsFunc(r.Destinations, func(d health.Destination) bool { return d.Slot != nil }), writeSlots},
		{len(r.Relays) > 0, writeRelays},
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
