package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/internal/check"
)

// verdict is what the demo has to say at its end.
type verdict struct {
	OK      bool
	Reasons []string // why not

	Report check.Report
	// Pending counts what was committed and had no time to arrive, where the demo ended without draining.
	Pending  uint64
	Took     time.Duration
	Latency  latencies // of all
	Calm     latencies // of what was committed while nothing was broken
	Faults   []result
	Dead     []deadLetter
	Postgres string
	Broker   string
	Seed     uint64
}

const (
	// drainPatience is how long the drain goes on without any event's arrival.
	drainPatience = 30 * time.Second
	// drainLimit is how long it goes on at all.
	drainLimit = 5 * time.Minute
)

// drain ends the load, mends what is broken and waits until everything committed has arrived or is a dead letter. What
// doesn't arrive in time is for the verdict.
func (d *demo) drain(ctx context.Context) error {
	d.phase.Store(phaseDraining)
	d.story.add("drain", fmt.Sprintf("no more load: %s events are under way", number(d.checker.Outstanding())))
	d.stopWriters()
	d.writers.Wait()

	limited, cancel := context.WithTimeoutCause(ctx, drainLimit, errDrainLimit)
	defer cancel()
	d.spawn(func() { d.faults.finish(limited) })
	return d.awaitDrained(limited)
}

func (d *demo) awaitDrained(ctx context.Context) error {
	if err := d.drained(ctx); err != nil {
		return err
	}
	// Relays that have ended can't send anything any more: what the broker has now is all.
	if err := d.relays.stop(ctx); err != nil {
		d.story.fault("relay_stop", err.Error())
	}
	last, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		up, err := d.broker.caughtUp(last)
		if err == nil && up {
			break
		}
		select {
		case <-last.Done():
			if ctx.Err() != nil && !errors.Is(context.Cause(ctx), errDrainLimit) {
				return ctx.Err()
			}
			d.story.fault("drain", "the consumer has not seen all that the broker has")
			return nil
		case <-time.After(20 * time.Millisecond):
		}
	}
	return d.look(ctx) // the last dead letters
}

var errDrainLimit = errors.New("the drain took too long")

// drained waits, and shows meanwhile what goes on. It returns an error only when the demo can't go on.
func (d *demo) drained(ctx context.Context) error {
	frames := time.NewTicker(d.out.interval())
	defer frames.Stop()
	looks := time.NewTicker(20 * time.Millisecond)
	defer looks.Stop()
	progress, since := uint64(0), time.Now()
	for {
		select {
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), errDrainLimit) {
				d.story.fault("drain", "not drained after "+duration(drainLimit)+": giving up")
				return nil
			}
			return ctx.Err()
		case err := <-d.failed:
			return err
		case <-frames.C:
			d.show()
		case key := <-d.out.keys():
			if key == 'q' || key == ctrlC {
				return ErrInterrupted
			}
		case <-looks.C:
			counts := d.arrived.Counts()
			if d.faults.over() && counts.Outstanding == 0 {
				return nil
			}
			if now := counts.Delivered + counts.DeadLettered; now != progress || !d.faults.over() {
				progress, since = now, time.Now()
			} else if time.Since(since) > drainPatience {
				d.story.fault("drain", fmt.Sprintf("nothing has arrived for %s, and %s events are missing: giving up",
					duration(drainPatience), number(counts.Outstanding)))
				return nil
			}
		}
	}
}

// verdict judges what has happened.
func (d *demo) verdict(how end) verdict {
	v := verdict{
		Report:   d.checker.Report(),
		Took:     time.Since(d.story.started),
		Faults:   d.faults.all(),
		Dead:     d.deadLetters(),
		Postgres: "PostgreSQL " + d.db.version,
		Broker:   d.broker.describe(),
		Seed:     d.cfg.Seed,
	}
	v.Latency, v.Calm = d.latency.total()
	if how == endNow {
		// What is under way is not lost, and whose commit isn't known yet no phantom.
		counts := d.arrived.Counts()
		v.Pending = counts.Outstanding
		v.Report.Lost, v.Report.Examples.Lost = 0, nil
		v.Report.Phantom, v.Report.Examples.Phantom = counts.Phantom, nil
	}
	v.judge(how, d.faults.missingPoisons())
	return v
}

// judge decides whether v is good.
func (v *verdict) judge(how end, missingPoisons int) {
	bad := func(format string, args ...any) { v.Reasons = append(v.Reasons, fmt.Sprintf(format, args...)) }
	r := v.Report
	for _, fault := range []struct {
		n    uint64
		text string
		list []check.Example
	}{
		{r.Lost, "lost: committed, and neither delivered nor a dead letter", r.Examples.Lost},
		{r.Phantom, "phantom: delivered, though rolled back", r.Examples.Phantom},
		{r.Inverted, "out of order: after a later event of the same order", r.Examples.Inverted},
		{r.Corrupted, "corrupted: not as they were written", nil},
		{r.Misrouted, "delivered where they don't belong", nil},
	} {
		if fault.n > 0 {
			text := plural(fault.n, "event") + " " + fault.text
			for i, e := range fault.list[:min(3, len(fault.list))] {
				text += []string{" (", ", ", ", "}[i] + orderName(e.Key) + " event " + fmt.Sprint(e.Seq)
			}
			if len(fault.list) > 0 {
				text += ")"
			}
			bad("%s", text)
		}
	}
	unexpected := 0
	for _, letter := range v.Dead {
		if !letter.Expected {
			unexpected++
		}
	}
	if unexpected > 0 {
		bad("%s that nobody poisoned", plural(unexpected, "dead letter"))
	}
	if how != endNow && missingPoisons > 0 {
		bad("%s should be dead letters and are not", plural(missingPoisons, "poison message"))
	}
	if how != endNow && r.Delivered == 0 {
		bad("nothing was delivered at all")
	}
	if how == endScript {
		for _, fault := range []string{"rollbacks", "poison", "kill", "long", "broker"} {
			if !v.performed(fault) {
				bad("the fault %q was not performed to its end, so nothing is known about it", fault)
			}
		}
	}
	v.OK = len(v.Reasons) == 0
}

func (v *verdict) performed(fault string) bool {
	for _, r := range v.Faults {
		if r.Fault == fault && r.Done {
			return true
		}
	}
	return false
}

// text is the verdict for a person.
func (v *verdict) text(s style) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	r := v.Report

	line("")
	switch {
	case !v.OK:
		line("%s", s.red("NOT OK"))
		for _, reason := range v.Reasons {
			line("  %s", s.red(reason))
		}
		line("  The orders and roll-backs were those of --seed %d.", v.Seed)
	case v.Pending > 0:
		line("%s so far; the demo ended with %s under way (d drains first)", s.wrap("1;32", "OK"), plural(v.Pending, "event"))
	default:
		line("%s: all that was committed arrived, in order%s.", s.wrap("1;32", "OK"), map[bool]string{true: ", or is a dead letter"}[r.DeadLettered > 0])
		line("Nothing that was rolled back did.")
	}
	line("")
	line("  committed    %10s     delivered %10s     dead letters %d", number(r.Committed), number(r.Delivered), r.DeadLettered)
	line("  rolled back  %10s     in %s, %s > %s", number(r.RolledBack), duration(v.Took), v.Postgres, v.Broker)
	if r.Unknown > 0 {
		line("  unknown      %10s     the connection broke inside COMMIT: delivered or not", number(r.Unknown))
	}
	line("")
	for _, count := range []struct {
		text string
		what string
	}{
		{s.verdict(pad("lost", 14), r.Lost), "committed, and neither delivered nor a dead letter"},
		{s.verdict(pad("phantom", 14), r.Phantom), "delivered, though rolled back"},
		{s.verdict(pad("out of order", 14), r.Inverted), "after a later event of the same order"},
		{s.verdict(pad("corrupted", 14), r.Corrupted), "not byte for byte as it was written"},
		{s.tolerated(pad("duplicated", 14), r.Duplicated), "same message id again: may follow a kill, an inbox drops it"},
	} {
		line("  %s  %s", count.text, s.dim(count.what))
	}
	line("")
	if v.Calm.Count > 0 {
		line("  commit to consumer   p50 %s   p95 %s   p99 %s   %s", duration(v.Calm.P50), duration(v.Calm.P95), duration(v.Calm.P99), s.dim("undisturbed"))
	}
	if v.Latency.Count > v.Calm.Count {
		line("                       p50 %s   p95 %s   p99 %s   %s", duration(v.Latency.P50), duration(v.Latency.P95), duration(v.Latency.P99), s.dim("all together"))
	}
	if len(v.Faults) > 0 {
		line("")
	}
	for _, f := range v.Faults {
		outcome := f.Outcome
		if !f.Done {
			outcome = s.yellow("not over when the demo ended")
		}
		line("  %s  %s", pad(f.What, 30), outcome)
	}
	for i, letter := range v.Dead {
		if i == 5 {
			line("  and %d more dead letters", len(v.Dead)-i)
			break
		}
		line("")
		for _, text := range wrapText(fmt.Sprintf("Dead letter of %s (%s): %s. It is kept in PostgreSQL; once the cause is gone, outbox dead requeue sends it again.",
			letter.Order, letter.Reason, strings.TrimSuffix(letter.Error, ".")), 78) {
			line("  %s", text)
		}
	}
	return b.String()
}

// next says what one does after the demo.
func next(s style) string {
	return fmt.Sprintf(`
%s
  outbox migrate up --database-url postgres://...   the tables, in your database

  In your service, in the transaction that changes the row, after the change:
    w.Write(ctx, tx, outbox.Message{Topic: "orders", Key: id, Payload: body})

  outbox config schema    what outbox.yaml may say: your database, your brokers
  outbox relay            delivers; run two, as here
  outbox dead ls          what could not be delivered, and why
  https://github.com/pgoutbox/outbox
`, s.bold("Next"))
}
