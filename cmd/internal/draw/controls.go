package draw

import (
	"fmt"
	"time"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/jobs"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/output"
	"github.com/pgoutbox/outbox/internal/printed"
)

func pause() View {
	return asks(shows(func(to output.Streams, _ *verbs.Pause, c admin.Control) error {
		_, err := fmt.Fprintf(to.Stdout, "paused %s %s; relays obey within about a second\n", output.Clean(c.Target.String()), untilText(c))
		return err
	}), nil, func(p *verbs.Pause, _ admin.Control) (string, bool) {
		return fmt.Sprintf("Pause %s?", output.Clean(admin.Target{Destination: p.Destination, Topic: p.Topic, Key: p.Key}.String())), true
	})
}

func resume() View {
	return asks(shows(func(to output.Streams, _ *verbs.Resume, ended []admin.Control) error {
		for _, c := range ended {
			fmt.Fprintf(to.Stdout, "resumed %s, which %s had paused %s ago\n", output.Clean(c.Target.String()), output.Clean(c.Actor),
				printed.Span(time.Since(c.Since)))
		}
		return nil
	}), nil, func(*verbs.Resume, []admin.Control) (string, bool) { return "", true })
}

func retry() View {
	return asks(shows(func(to output.Streams, _ *verbs.Retry, r jobs.Retried) error {
		more := ""
		if r.More {
			more = "; there may be more: run it again"
		}
		_, err := fmt.Fprintf(to.Stdout, "%d keys of %s are due; relays notice within about five seconds%s\n", r.Keys,
			output.Clean(r.Destination), more)
		return err
	}), nil, func(_ *verbs.Retry, r jobs.Retried) (string, bool) {
		return fmt.Sprintf("Try %d keys of %s again at once?", r.Keys, output.Clean(r.Target.String())), true
	})
}

func throttle() View {
	return asks(shows(func(to output.Streams, _ *verbs.Throttle, c admin.Control) error {
		text := fmt.Sprintf("%s gets at most %v messages a second %s", output.Clean(c.Destination), c.Rate, untilText(c))
		if c.Rate == 0 {
			text = output.Clean(c.Destination) + " is bound by its configuration alone"
		}
		_, err := fmt.Fprintln(to.Stdout, text+"; relays obey within about a second")
		return err
	}), nil, func(p *verbs.Throttle, _ admin.Control) (string, bool) {
		if p.Rate == 0 {
			return "", true
		}
		return fmt.Sprintf("Bound %s to %s a second?", output.Clean(p.Destination), printed.Many(p.Rate, "message", "messages")), true
	})
}

func listControls(to output.Streams, _ *verbs.Controls, list []admin.Control) error {
	if len(list) == 0 {
		fmt.Fprintln(to.Stderr, "none: nothing is paused or throttled")
		return nil
	}
	t := output.NewTable(to.Stdout, "DESTINATION", "TOPIC", "KEY", "RATE", "SINCE", "UNTIL", "BY", "REASON")
	now := time.Now()
	for _, c := range list {
		rate := "paused"
		if c.Rate > 0 {
			rate = fmt.Sprintf("%v/s", c.Rate)
		}
		until := ""
		if !c.Until.IsZero() {
			until = c.Until.Local().Format(time.DateTime)
		}
		t.Row(c.Destination, c.Topic, output.Short(c.Key, 40), rate, output.Ago(now, c.Since)+" ago", until, c.Actor, output.Short(c.Reason, 60))
	}
	return t.Flush()
}

func untilText(c admin.Control) string {
	if c.Until.IsZero() {
		return "until it is ended"
	}
	return "until " + c.Until.Local().Format(time.DateTime)
}
