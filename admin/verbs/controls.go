package verbs

import (
	"context"
	"fmt"
	"time"

	"github.com/pgoutbox/outbox/admin/sheet"
	"github.com/pgoutbox/outbox/internal/printed"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/jobs"
)

// Pause are the parameters of "pause".
type Pause struct {
	Destination string   `json:"destination" arg:"NAME" required:"true" help:"the destination"`
	Topic       string   `json:"topic,omitempty" help:"only what goes to this topic, as the message names it"`
	Key         string   `json:"key,omitempty" help:"only what has this ordering key"`
	For         Duration `json:"for,omitempty" min:"1s" help:"how long; without it, until it is resumed"`
	Unseen      bool     `json:"unseen,omitempty" help:"also a destination that no relay is known to have worked on"`
	Intent
}

func pause() Verb {
	return changes(Verb{
		Name:  "pause",
		Short: "Stop delivering to a destination, or one topic or key of it, for a while",
		Long: `Relays obey within about a second; what is on its way by then arrives. Nothing is lost and no attempt is counted.
A pause survives restarts and take-overs of relays. outbox status shows it, with who, why and until when.

With --topic or --key the rest flows on, also beside a million keys that wait. What is paused is set aside, and
what comes later for the same key waits behind it, whatever its topic. Without them the destination's segments can't be emptied, so the
outbox grows for as long as the pause lasts.`,
		Example: `  outbox pause billing --for 30m --reason "migration of their database"
  outbox pause kafka --topic orders
  outbox pause kafka --key customer-42`,
	}, func(ctx context.Context, db admin.DB, action admin.Action, p Pause) (admin.Control, error) {
		return admin.Pause(ctx, db, admin.Target{Destination: p.Destination, Topic: p.Topic, Key: p.Key},
			admin.ControlOptions{For: time.Duration(p.For), Unseen: p.Unseen}, action)
	}, texts[Pause, admin.Control]{
		done: func(c admin.Control) string {
			return "paused " + c.Target.String() + " " + endText(c) + "; relays obey within about a second"
		},
		preview: func(c admin.Control) sheet.Parts {
			return sheet.Parts{sheet.Line(c.Target.String() + ", " + endText(c))}
		},
	})
}

// endText is when a control ends.
func endText(c admin.Control) string {
	if c.Until.IsZero() {
		return "until it is ended"
	}
	return "until " + c.Until.Local().Format(time.DateTime)
}

// Resume are the parameters of "resume".
type Resume struct {
	Destination string `json:"destination" arg:"NAME" required:"true" help:"the destination"`
	Topic       string `json:"topic,omitempty" help:"end the pause of this topic"`
	Key         string `json:"key,omitempty" help:"end the pause of this ordering key"`
	All         bool   `json:"all,omitempty" help:"end every pause of the destination"`
	Intent
}

func (p *Resume) check() error {
	if p.All && (p.Topic != "" || p.Key != "") {
		return fault("all", "goes without topic and key")
	}
	return nil
}

func resume() Verb {
	return changes(Verb{
		Name:  "resume",
		Short: "End a pause",
		Long: `Name what was paused as it was named then: a destination, or a topic or key of it. What waits is delivered, in order
per key, beginning within about a second.`,
		Example: `  outbox resume billing
  outbox resume kafka --topic orders --reason "they have fixed it"
  outbox resume kafka --all`,
	}, func(ctx context.Context, db admin.DB, action admin.Action, p Resume) ([]admin.Control, error) {
		return admin.Resume(ctx, db, admin.Target{Destination: p.Destination, Topic: p.Topic, Key: p.Key}, p.All, action)
	}, texts[Resume, []admin.Control]{
		done: func(ended []admin.Control) string {
			return lines(ended, func(c admin.Control) string {
				return fmt.Sprintf("resumed %s, which %s had paused %s", c.Target, c.Actor, printed.Ago(time.Now(), c.Since))
			})
		},
		preview: func(found []admin.Control) sheet.Parts { return sheet.Parts{ControlTable(found)} },
		asks:    func(Resume) bool { return false },
	})
}

// Retry are the parameters of "retry".
type Retry struct {
	Destination string `json:"destination" arg:"NAME" required:"true" help:"the destination"`
	Topic       string `json:"topic,omitempty" help:"only what goes to this topic, as the message names it"`
	Key         string `json:"key,omitempty" help:"only this ordering key"`
	Intent
}

func retry() Verb {
	return changes(Verb{
		Name:  "retry",
		Lists: true,
		Short: "Try again at once what has failed and waits for its next attempt",
		Long: `After the cause is cured: the keys need not wait until their time comes. Relays notice within about five seconds.
The attempt counts like any other: what fails again waits longer, and after the last attempt it is a dead letter.

What is blocked or dead is sent by outbox dead requeue, what is paused by outbox resume. A broker or a topic that is
unavailable is asked by the relay itself, again and again. A destination with a table of its own can't be told so: its
relay has the times in memory.`,
		Example: `  outbox retry billing --reason "their certificate is renewed"
  outbox retry kafka --key customer-42`,
	}, func(ctx context.Context, db admin.DB, action admin.Action, p Retry) (jobs.Retried, error) {
		return jobs.Retry(ctx, db, admin.Target{Destination: p.Destination, Topic: p.Topic, Key: p.Key}, action)
	}, texts[Retry, jobs.Retried]{
		done: func(r jobs.Retried) string {
			text := fmt.Sprintf("%d keys of %s are due; relays notice within about five seconds", r.Keys, r.Destination)
			if r.More {
				text += "; there may be more: run it again"
			}
			return text
		},
		preview: func(r jobs.Retried) sheet.Parts {
			return sheet.Parts{sheet.Line(fmt.Sprintf("%d keys of %s wait for their next attempt", r.Keys, r.Target))}
		},
	})
}

// Throttle are the parameters of "throttle".
type Throttle struct {
	Destination string   `json:"destination" arg:"NAME" required:"true" help:"the destination"`
	Rate        int      `json:"rate" min:"0" max:"1000000" help:"messages a second at most, by all relays together; 0 ends the bound"`
	For         Duration `json:"for,omitempty" min:"1s" help:"how long; without it, until it is ended"`
	Unseen      bool     `json:"unseen,omitempty" help:"also a destination that no relay is known to have worked on"`
	Intent
}

func throttle() Verb {
	return changes(Verb{
		Name:  "throttle",
		Short: "Bound the messages a second that a destination gets",
		Long: `Relays obey within about a second. Each shard group has an equal part of the rate. A bound in the configuration
holds as well: the lower one counts.`,
		Example: `  outbox throttle billing --rate 50 --for 1h --reason "they catch up"
  outbox throttle billing --rate 0`,
	}, func(ctx context.Context, db admin.DB, action admin.Action, p Throttle) (admin.Control, error) {
		return admin.Throttle(ctx, db, p.Destination, float64(p.Rate),
			admin.ControlOptions{For: time.Duration(p.For), Unseen: p.Unseen}, action)
	}, texts[Throttle, admin.Control]{
		done:    func(c admin.Control) string { return rateText(c) + "; relays obey within about a second" },
		preview: func(c admin.Control) sheet.Parts { return sheet.Parts{sheet.Line(rateText(c))} },
		asks:    func(p Throttle) bool { return p.Rate > 0 },
	})
}

// rateText is the bound on a destination's rate.
func rateText(c admin.Control) string {
	if c.Rate == 0 {
		return c.Destination + " is bound by its configuration alone"
	}
	return fmt.Sprintf("%s gets at most %v messages a second %s", c.Destination, c.Rate, endText(c))
}

// Controls are the parameters of "controls".
type Controls struct {
	Destination string `json:"destination,omitempty" help:"of this destination"`
}

func controls() Verb {
	return reads(Verb{
		Name:  "controls",
		Short: "List what is paused or throttled, by whom and until when",
	}, func(ctx context.Context, db admin.DB, p Controls) ([]admin.Control, error) {
		return admin.Controls(ctx, db, p.Destination)
	}, func(_ Controls, all []admin.Control) sheet.Parts { return sheet.Parts{ControlTable(all)} })
}

// ControlTable lists pauses and bounds.
func ControlTable(all []admin.Control) sheet.Table {
	return sheet.List("Controls", "nothing is paused or throttled", all, func(c admin.Control) sheet.Row {
		rate := "paused"
		if c.Rate > 0 {
			rate = fmt.Sprintf("%v/s", c.Rate)
		}
		row := sheet.Of("Destination", sheet.Destination(c.Destination), "Topic", c.Topic, "Key", sheet.Key(c.Key), "Rate", rate,
			"Since", c.Since, "Until", sheet.Clock(c.Until), "By", c.Actor, "Reason", sheet.Note(c.Reason))
		if c.Rate > 0 {
			return row.Can("throttle", "End it", "destination", c.Destination, "rate", "0")
		}
		return row.Can("resume", "Resume", "destination", c.Destination, "topic", c.Topic, "key", c.Key)
	})
}
