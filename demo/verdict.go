package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/internal/check"
	"github.com/pgoutbox/outbox/internal/printed"
)

// verdict is the result of the demo.
type verdict struct {
	OK      bool          `json:"ok"`
	Reasons []string      `json:"reasons,omitempty"` // why not
	Took    time.Duration `json:"-"`

	Report check.Report `json:"report"`
	// Pending counts events that were committed and had no time to arrive, if the demo ended without draining.
	Pending  uint64       `json:"under_way"`
	Latency  latencies    `json:"latency_ms"`             // of all events
	Calm     latencies    `json:"undisturbed_latency_ms"` // of events that were committed while nothing was broken
	Faults   []result     `json:"faults"`
	Dead     []deadLetter `json:"dead_letters"`
	Postgres string       `json:"postgres"`
	Broker   string       `json:"broker"`
	Seed     uint64       `json:"seed"`
}

func (v *verdict) json() any {
	return struct {
		Type string  `json:"type"`
		Took seconds `json:"took_seconds"`
		*verdict
	}{"verdict", seconds(v.Took), v}
}

// verdict judges what has happened.
func (d *demo) verdict(how end) verdict {
	v := verdict{
		Took:     time.Since(d.out.started),
		Report:   d.checker.Report(),
		Faults:   d.faults.all(),
		Dead:     append([]deadLetter{}, d.dead...),
		Postgres: "PostgreSQL " + d.db.version,
		Broker:   d.broker.name(),
		Seed:     d.cfg.Seed,
	}
	_, v.Latency, v.Calm = d.service.book.latencies()
	if how == endNow {
		// Events in flight are not lost, and an event whose commit isn't known yet is no phantom.
		counts := d.arrived.Counts()
		v.Pending = counts.Outstanding
		v.Report.Lost, v.Report.Examples.Lost = 0, nil
		v.Report.Phantom, v.Report.Examples.Phantom = counts.Phantom, nil
	}
	v.judge(how)
	return v
}

// Counts that must be 0, with their descriptions.
const (
	lostText     = "committed, and neither delivered nor a dead letter"
	phantomText  = "delivered, though rolled back"
	invertedText = "after a later event of the same order"
)

// judge decides whether v is good.
func (v *verdict) judge(how end) {
	bad := func(n uint64, what, format string, args ...any) {
		if n > 0 {
			v.Reasons = append(v.Reasons, strings.TrimSpace(printed.Many(n, what, what+"s")+" "+fmt.Sprintf(format, args...)))
		}
	}
	r := v.Report
	bad(r.Lost, "event", "lost: %s%s", lostText, examples(r.Examples.Lost))
	bad(r.Phantom, "event", "phantom: %s%s", phantomText, examples(r.Examples.Phantom))
	bad(r.Inverted, "event", "out of order: %s%s", invertedText, examples(r.Examples.Inverted))
	bad(r.Corrupted, "event", "corrupted: not as they were written")
	bad(r.Misrouted, "event", "delivered where they don't belong")
	var unexpected, missing uint64
	for _, letter := range v.Dead {
		if !letter.Expected {
			unexpected++
		}
	}
	performed := map[string]bool{}
	for _, f := range v.Faults {
		performed[f.Fault] = performed[f.Fault] || f.Done
		if f.Fault == "poison" && !f.Done {
			missing++
		}
	}
	bad(unexpected, "dead letter", "that was not poison")
	if how != endNow {
		bad(missing, "poison message", "should be dead letters and are not")
		if r.Delivered == 0 {
			v.Reasons = append(v.Reasons, "nothing was delivered at all")
		}
	}
	for _, fault := range faultTable {
		if how == endScript && !performed[fault.name] {
			v.Reasons = append(v.Reasons,
				fmt.Sprintf("the fault %q was not performed to its end, so nothing is known about it", fault.name))
		}
	}
	v.OK = len(v.Reasons) == 0
}

// examples names up to three events.
func examples(list []check.Example) string {
	var names []string
	for _, e := range list[:min(3, len(list))] {
		names = append(names, fmt.Sprintf("%s event %d", orderName(e.Key), e.Seq))
	}
	if names == nil {
		return ""
	}
	return " (" + strings.Join(names, ", ") + ")"
}

// text is the verdict for people.
func (v *verdict) text(s style) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	r := v.Report

	line("")
	switch {
	case !v.OK:
		line("%s", s.paint(red, "NOT OK"))
		for _, reason := range v.Reasons {
			line("  %s", s.paint(red, reason))
		}
		line("  The orders and roll-backs were those of --seed %d.", v.Seed)
	case v.Pending > 0:
		line("%s so far; the demo ended with %s under way (d drains first)", s.paint(boldGreen, "OK"),
			printed.Many(v.Pending, "event", "events"))
	default:
		line("%s: all that was committed arrived, in order%s.",
			s.paint(boldGreen, "OK"), map[bool]string{true: ", or is a dead letter"}[r.DeadLettered > 0])
		line("Nothing that was rolled back did.")
	}
	line("")
	line("  committed    %10s     delivered %10s     dead letters %d",
		printed.Number(r.Committed), printed.Number(r.Delivered), r.DeadLettered)
	line("  rolled back  %10s     in %s, %s > %s", printed.Number(r.RolledBack), duration(v.Took), v.Postgres, v.Broker)
	if r.Unknown > 0 {
		line("  unknown      %10s     the connection broke inside COMMIT: delivered or not", printed.Number(r.Unknown))
	}
	line("")
	count := func(name string, n uint64, bad, text string) {
		line("  %s  %s", s.count(pad(name, 14), n, bad), s.paint(dim, text))
	}
	count("lost", r.Lost, red, lostText)
	count("phantom", r.Phantom, red, phantomText)
	count("out of order", r.Inverted, red, invertedText)
	count("corrupted", r.Corrupted, red, "not byte for byte as it was written")
	count("duplicated", r.Duplicated, yellow, "same message id again: may follow a kill, an inbox drops it")
	line("")
	latency := func(title string, l latencies, of string) {
		line("  %s   p50 %s   p95 %s   p99 %s   %s", pad(title, 18), duration(l.P50), duration(l.P95), duration(l.P99), s.paint(dim, of))
	}
	if v.Calm.Count > 0 {
		latency("commit to consumer", v.Calm, "undisturbed")
	}
	if v.Latency.Count > v.Calm.Count {
		latency("", v.Latency, "all together")
	}
	if len(v.Faults) > 0 {
		line("")
	}
	for _, f := range v.Faults {
		outcome := f.Outcome
		if !f.Done {
			outcome = s.paint(yellow, "not over when the demo ended")
		}
		line("  %s  %s", pad(f.What, 30), outcome)
	}
	for i, letter := range v.Dead {
		if i == 5 {
			line("  and %d more dead letters", len(v.Dead)-i)
			break
		}
		line("")
		line("%s", wrapText(fmt.Sprintf("Dead letter of %s (%s): %s. It is kept in PostgreSQL; once the cause "+
			"is gone, outbox dead requeue sends it again.",
			letter.Order, letter.Reason, strings.TrimSuffix(letter.Error, ".")), "  ", 80))
	}
	return b.String()
}

// next tells the user what to do after the demo.
func next(s style) string {
	return fmt.Sprintf(`
%s
  outbox migrate up --database-url postgres://...   the tables, in your database

  In your service, in the transaction that changes the row, after the change:
    w.Write(ctx, tx, outbox.Message{Topic: "orders", Key: id, Payload: body})

  outbox init             writes an outbox.yaml, by your project's compose file
  outbox relay            delivers; run two, as here
  outbox dead ls          what could not be delivered, and why
  https://github.com/pgoutbox/outbox
`, s.paint(bold, "Next"))
}
