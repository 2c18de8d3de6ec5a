package verbs

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/sheet"
	"github.com/pgoutbox/outbox/internal/printed"
)

// Status is the verb "status", which is streamed as well.
func Status() Verb {
	return reads(Verb{
		Name:  "status",
		Short: "Is it flowing? And if not, why, and what to do",
		Long: `Shows one verdict with its cause and the next step, then every destination with its lease, backlog, held
messages and dead letters, the running relays, the segments of the table with who keeps them from being
emptied, and open transactions whose messages are still to come.

States, from best to worst: idle, flowing; at risk (it flows, but a clock, an index or the kept log is wrong), lagging (a message has waited for longer than lag_objective), blocked (some
keys wait for an operator), dead (there are dead letters that no operator has acknowledged: outbox dead ack), paused (a person
wants it so); failing (the broker refuses messages again and again, or all that goes to a topic), stalled (the broker
does not answer), broken (the relay can't work with the database), no relay, stopped (a relay gave up). The verdict is
the worst, and names the others.

Where the configuration has several databases, all are asked at once unless --database names one: a block for each, below
a line that counts the states and names the worst. One that can't be asked is unknown, and the exit code is 1 then.`,
		Example: `  outbox status
  outbox status --watch
  outbox status -o json | jq .verdict
  outbox status --exit-code && deploy`,
	}, func(ctx context.Context, db admin.DB, _ struct{}) (*health.Report, error) {
		return health.Status(ctx, db)
	}, func(_ struct{}, r *health.Report) sheet.Parts {
		parts := sheet.Parts{sheet.Verdict{Verdict: r.Verdict}}
		if r.Database != "" {
			parts = append(parts, sheet.Line("database "+r.Database+" at "+r.At.Local().Format(time.DateTime)))
		}
		if len(r.Destinations) > 0 {
			parts = append(parts, DestinationParts(r)...)
		}
		for _, t := range []sheet.Table{SlotTable(r), relayTable(r.Relays), segmentTable(r), OpenTable(r)} {
			if len(t.Rows) > 0 {
				parts = append(parts, t)
			}
		}
		if len(r.Unselected) > 0 {
			parts = append(parts, sheet.List("Selected by no destination", "", r.Unselected, func(u health.Unselected) sheet.Row {
				return sheet.Of("Selected by no destination", u.Topic, "Messages", u.Messages, "Latest", u.Last,
					"Event type", sheet.Key(u.EventType), "Seen by", u.Relay)
			}), sheet.Line("add these topics to a destination's topics or filter, or drop them by a rule to say that this is meant"))
		}
		return parts
	})
}

// DestinationParts describes the destinations, and what is wrong with them that the verdict doesn't say.
func DestinationParts(r *health.Report) sheet.Parts {
	const empty = "a destination appears when a relay first delivers to it"
	t := sheet.List("Destinations", empty, r.Destinations, func(d health.Destination) sheet.Row {
		return groupCells(r, d, health.Group{}, true)
	})
	t.Rows = nil
	for _, d := range r.Destinations {
		for i, g := range d.Groups {
			t.Rows = append(t.Rows, groupCells(r, d, g, i == 0))
		}
		if len(d.Groups) == 0 {
			t.Rows = append(t.Rows, groupCells(r, d, health.Group{}, true))
		}
	}
	parts := sheet.Parts{t}
	// What is written already isn't written again.
	written := []string{r.Verdict.Cause}
	write := func(text, cause string) {
		if cause != "" && !slices.ContainsFunc(written, func(s string) bool { return strings.Contains(s, cause) }) {
			written, parts = append(written, text), append(parts, sheet.Line(text))
		}
	}
	for _, f := range r.Verdict.Causes()[1:] { // one line for one cause
		write(health.Verdict{Finding: f, At: r.At}.String(), f.Cause)
	}
	for _, d := range r.Destinations {
		write(d.Name+": "+d.Verdict.Cause, d.Verdict.Cause)
		if d.Table != nil && len(d.Table.Untold) > 0 {
			untold := strings.Join(d.Table.Untold, "; ")
			write(fmt.Sprintf("%s: can't be told of table %s: %s", d.Name, d.Table.Name, untold), untold)
		}
		for _, g := range d.Groups {
			if !g.Recovered() {
				write(fmt.Sprintf("%s: last error %s: %s", d.Name, printed.Ago(r.At, g.LastErrorAt), g.LastError), g.LastError)
			}
		}
	}
	return parts
}

// groupCells describes a shard group of a destination. What belongs to the destination as a whole is in its first row.
func groupCells(r *health.Report, d health.Destination, g health.Group, first bool) sheet.Row {
	name, oldest, lease := d.Name, d.Oldest, "none"
	if g.Groups > 1 {
		name, oldest = fmt.Sprintf("%s %d/%d", d.Name, g.Group, g.Groups), g.Oldest
	}
	switch {
	case g.Live && d.Table != nil:
		lease = "its sessions"
	case g.Live:
		lease = printed.Span(g.LeaseUntil.Sub(r.At)) + " left"
	}
	row := sheet.Of("Destination", sheet.To(name, "destinations ls", "name", d.Name),
		"State", sheet.Mark{State: d.Verdict.State, Word: d.Verdict.Words()},
		"Owner", g.Owner, "Epoch", sheet.ID(g.Epoch), "Lease", lease, "Pending", g.Pending, "Oldest", oldest,
		"Held", "", "Blocked", "", "Dead", "", "Delivered", "")
	if first {
		for i, value := range []any{d.Held.Messages, d.Held.Blocked, d.Dead.Messages, d.Delivered} {
			row.Cells[7+i].Value = value
		}
	}
	return row
}

// segmentTable lists the segments that have messages. An empty one has its index.
func segmentTable(r *health.Report) sheet.Table {
	used := slices.DeleteFunc(slices.Clone(r.Segments), func(s health.Segment) bool { return len(s.NeededBy) == 0 && s.Bytes < 64<<10 })
	return sheet.List("Segments", "", used, func(s health.Segment) sheet.Row {
		return sheet.Of("Segment", sheet.Code(s.Name), "Size", sheet.Bytes(s.Bytes), "Needed by", sheet.Destinations(s.NeededBy))
	})
}

// OpenTable lists the transactions that may have written messages and have not ended.
func OpenTable(r *health.Report) sheet.Table {
	return sheet.List("Open transactions", "none has been open for long", r.Open, func(o health.OpenTransaction) sheet.Row {
		id := fmt.Sprintf("pid %d", o.PID)
		if o.Prepared != "" {
			id, o.State = o.Prepared, "prepared"
		}
		return sheet.Of("Open transaction", id, "Since", o.Since, "User", o.User, "Application", o.Application, "State", o.State,
			"Query", sheet.Code(o.Query))
	})
}

// SlotTable lists how destinations read the write-ahead log.
func SlotTable(r *health.Report) sheet.Table {
	read := slices.DeleteFunc(slices.Clone(r.Destinations), func(d health.Destination) bool { return d.Slot == nil })
	return sheet.List("Replication slots", "", read, func(d health.Destination) sheet.Row {
		s, by, lost := d.Slot, "the log", ""
		if s == nil {
			s = &health.Slot{}
		}
		if s.Position == "" {
			by = "the table"
		}
		if !s.LostAt.IsZero() && s.Position == "" { // otherwise there is another one
			lost = printed.Ago(r.At, s.LostAt) + ": " + s.LostReason
		}
		return sheet.Of("Destination", sheet.Destination(d.Name), "Read by", by, "Slot", sheet.Code(s.Name), "Position", s.Position,
			"WAL", s.Status, "Kept", sheet.Bytes(s.Kept), "Lost", sheet.Error(lost))
	})
}

// Check are the parameters of "check".
type Check struct {
	Destination     string   `json:"destination,omitempty" help:"only this destination"`
	OldestWarning   Duration `json:"oldest_warning,omitempty" min:"0s" help:"warn when the oldest message has waited for this long"`
	OldestCritical  Duration `json:"oldest_critical,omitempty" min:"0s" help:"critical when the oldest message has waited for this long"`
	PendingWarning  int64    `json:"pending_warning,omitempty" min:"0" help:"warn from this many pending and held messages on"`
	PendingCritical int64    `json:"pending_critical,omitempty" min:"0" help:"critical from this many pending and held messages on"`
	DeadWarning     int64    `json:"dead_warning,omitempty" min:"0" help:"warn from this many new dead letters on; any is a warning anyhow"`
	DeadCritical    int64    `json:"dead_critical,omitempty" min:"0" help:"critical from this many new dead letters on"`
}

func checkStatus() Verb {
	return reads(Verb{
		Name:    "check",
		Timeout: 10 * time.Second, // of which a monitoring system has as much, or little more
		Short:   "The verdict for a monitoring system",
		Long: `Prints the verdict of outbox status as a plugin of Nagios, Icinga or Sensu does: one line with performance data, and an
exit code. OK (0) is idle and flowing; WARNING (1) is at risk, lagging, blocked, dead and paused; CRITICAL (2) is failing,
stalled, broken, no relay and stopped; UNKNOWN (3) means that it could not be found out, be it for a wrong flag.
Limits can make it worse than the verdict, for each destination, and never better.

Where the configuration has several databases, all are asked at once unless --database names one: the line is about the
worst, with a count of each result.

With -o prometheus the numbers are printed as the relay's port has them, for a collector of text files.`,
		Example: `  outbox check
  outbox check --destination kafka --oldest-warning 1m --oldest-critical 10m --dead-critical 100
  outbox check -o prometheus > /var/lib/node_exporter/outbox.prom`,
	}, func(ctx context.Context, db admin.DB, p Check) (*health.Checked, error) {
		r, err := health.Status(ctx, db)
		if err != nil {
			return nil, err
		}
		c := p.Of(r)
		return &c, nil
	}, func(_ Check, c *health.Checked) sheet.Parts {
		return sheet.Parts{sheet.Line(c.Result.String() + ": " + c.Text)}
	})
}

// Of checks a report by the parameters.
func (p Check) Of(r *health.Report) health.Checked {
	return r.Check(p.Destination, health.Limits{
		Oldest:  health.Limit{Warning: time.Duration(p.OldestWarning).Seconds(), Critical: time.Duration(p.OldestCritical).Seconds()},
		Pending: health.Limit{Warning: float64(p.PendingWarning), Critical: float64(p.PendingCritical)},
		Dead:    health.Limit{Warning: float64(p.DeadWarning), Critical: float64(p.DeadCritical)},
	})
}

func (p *Check) check() error {
	for _, l := range []struct {
		name              string
		warning, critical float64
	}{
		{"oldest", float64(p.OldestWarning), float64(p.OldestCritical)},
		{"pending", float64(p.PendingWarning), float64(p.PendingCritical)},
		{"dead", float64(p.DeadWarning), float64(p.DeadCritical)},
	} {
		if l.critical > 0 && l.warning > l.critical {
			return fault(l.name+"_warning", "is beyond %s: it would never be given", fmt.Sprintf("%s_critical", l.name))
		}
	}
	return nil
}
