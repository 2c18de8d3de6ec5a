package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/exit"
	"github.com/pgoutbox/outbox/cmd/internal/output"
	"github.com/pgoutbox/outbox/internal/printed"
)

// statusCommand is the verb, once or again and again, with an exit code.
func (a *app) statusCommand(v verbs.Verb) *cobra.Command {
	var watch, strict bool
	var interval time.Duration
	cmd := a.verb(v, view{write: func(*app, any, any) error { return nil }})
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if interval < 100*time.Millisecond {
			return exit.Usagef("--interval is %v, it must be at least 100ms", interval)
		}
		return a.status(cmd.Context(), v, output.Format(cmd.Flag("output").Value.String()), watch, strict, interval)
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "repeat until interrupted")
	cmd.Flags().DurationVar(&interval, "interval", 2*time.Second, "pause between two looks with --watch")
	cmd.Flags().BoolVar(&strict, "exit-code", false, "exit with 1 unless it is idle or flowing, on each database")
	return cmd
}

func (a *app) status(ctx context.Context, v verbs.Verb, out output.Format, watch, strict bool, interval time.Duration) error {
	places, err := a.places("")
	if err != nil {
		return err
	}
	defer leave(places)
	for {
		answers := a.ask(ctx, v, v.New(), places)
		if watch && ctx.Err() != nil {
			return nil
		}
		reports, err := a.reports(answers)
		if err != nil {
			return err
		}
		if err := a.printStatus(out, watch, reports); err != nil {
			return err
		}
		if !watch {
			return judged(reports, answers, strict)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(interval):
		}
	}
}

// named is the report of one of several databases.
type named struct {
	Name string `json:"name"`
	*health.Report
}

// reports are what the databases answered, in their order. Where there is only one, that it can't be asked is an error,
// unless it can't be reached: that is its state, as a relay and its page have it.
func (a *app) reports(answers []answer) ([]named, error) {
	if len(answers) == 1 && answers[0].err != nil && !a.unreachable(answers[0].err) {
		return nil, answers[0].err
	}
	var list []named
	for _, from := range answers {
		if from.err != nil {
			list = append(list, named{from.name, a.unknown(from.err)})
			continue
		}
		r := from.result.(*health.Report)
		r.OnDatabase(from.name)
		list = append(list, named{from.name, r})
	}
	return list, nil
}

// worstFirst orders reports by their verdicts.
func worstFirst(reports []named) []named {
	return slices.SortedStableFunc(slices.Values(reports), func(a, b named) int {
		return health.Compare(b.Verdict.State, a.Verdict.State)
	})
}

// judged is the end of a command that has shown reports.
func judged(reports []named, answers []answer, strict bool) error {
	worst := worstFirst(reports)[0]
	switch {
	case strict && !worst.Verdict.State.OK() && worst.Name != "":
		return fmt.Errorf("%s: %s", worst.Name, worst.Verdict)
	case strict && !worst.Verdict.State.OK():
		return errors.New(worst.Verdict.String())
	}
	return unasked(answers)
}

func (a *app) printStatus(out output.Format, watch bool, reports []named) error {
	if out == output.AsJSON {
		var document any = reports
		if len(reports) == 1 {
			document = reports[0].Report
		}
		if watch {
			return output.JSONL(a.stdout, []any{document})
		}
		return output.JSON(a.stdout, document)
	}
	// One write, so that a watched screen doesn't flicker.
	var b strings.Builder
	if watch && output.IsTerminal(a.stdout) {
		b.WriteString("\x1b[H\x1b[2J")
	}
	if len(reports) > 1 {
		var states []string
		sorted := worstFirst(reports)
		for _, r := range sorted {
			states = append(states, r.Verdict.State.Word())
		}
		fmt.Fprintf(&b, "%d databases: %s", len(reports), counted(states))
		if !sorted[0].Verdict.State.OK() {
			fmt.Fprintf(&b, "; the worst is %s", sorted[0].Name)
		}
		fmt.Fprintln(&b)
	}
	for _, r := range reports {
		if len(reports) > 1 {
			fmt.Fprintf(&b, "\n%s: ", r.Name)
		}
		if err := writeReport(&b, r.Report, a.colours(a.stdout)); err != nil {
			return err
		}
	}
	_, err := io.WriteString(a.stdout, b.String())
	return err
}

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
