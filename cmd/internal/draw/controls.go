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
	return confirms(says(func(_ *verbs.Pause, c admin.Control) string {
		return fmt.Sprintf("paused %s %s; relays obey within about a second", output.Clean(c.Target.String()), untilText(c))
	}), func(p *verbs.Pause) string {
		return fmt.Sprintf("Pause %s?", output.Clean(admin.Target{Destination: p.Destination, Topic: p.Topic, Key: p.Key}.String()))
	})
}

func resume() View {
	return confirms(shows(func(to output.Streams, _ *verbs.Resume, ended []admin.Control) error {
		for _, c := range ended {
			fmt.Fprintf(to.Stdout, "resumed %s, which %s had paused %s ago\n", output.Clean(c.Target.String()), output.Clean(c.Actor),
				printed.Span(time.Since(c.Since)))
		}
		return nil
	}), func(*verbs.Resume) string { return "" })
}

func retry() View {
	return asks(says(func(_ *verbs.Retry, r jobs.Retried) string {
		more := ""
		if r.More {
			more = "; there may be more: run it again"
		}
		return fmt.Sprintf("%d keys of %s are due; relays notice within about five seconds%s", r.Keys, output.Clean(r.Destination), more)
	}), func(to output.Streams, _ *verbs.Retry, r jobs.Retried) error {
		_, err := fmt.Fprintf(to.Stdout, "%d keys of %s wait\n", r.Keys, output.Clean(r.Target.String()))
		return err
	}, func(_ *verbs.Retry, r jobs.Retried) (string, bool) {
		return fmt.Sprintf("Try %d keys of %s again at once?", r.Keys, output.Clean(r.Target.String())), true
	})
}

func throttle() View {
	return confirms(says(func(_ *verbs.Throttle, c admin.Control) string {
		text := fmt.Sprintf("%s gets at most %v messages a second %s", output.Clean(c.Destination), c.Rate, untilText(c))
		if c.Rate == 0 {
			text = output.Clean(c.Destination) + " is bound by its configuration alone"
		}
		return text + "; relays obey within about a second"
	}), func(p *verbs.Throttle) string {
		if p.Rate == 0 {
			return ""
		}
		return fmt.Sprintf("Bound %s to %s a second?", output.Clean(p.Destination), printed.Many(p.Rate, "message", "messages"))
	})
}

func controls() View {
	return lists[verbs.Controls]("none: nothing is paused or throttled",
		[]any{"DESTINATION", "TOPIC", "KEY", "RATE", "SINCE", "UNTIL", "BY", "REASON"},
		func(now time.Time, c admin.Control) []any {
			rate, until := "paused", ""
			if c.Rate > 0 {
				rate = fmt.Sprintf("%v/s", c.Rate)
			}
			if !c.Until.IsZero() {
				until = c.Until.Local().Format(time.DateTime)
			}
			return []any{c.Destination, c.Topic, output.Short(c.Key, 40), rate, output.Ago(now, c.Since) + " ago", until, c.Actor,
				output.Short(c.Reason, 60)}
		}, nil)
}

func untilText(c admin.Control) string {
	if c.Until.IsZero() {
		return "until it is ended"
	}
	return "until " + c.Until.Local().Format(time.DateTime)
}
