package verbs

import (
	"context"
	"strings"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/sheet"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/find"
)

// Holds are the parameters of "holds".
type Holds struct {
	Destination string `json:"destination,omitempty" help:"of this destination"`
	Key         string `json:"key,omitempty" help:"of this ordering key"`
	Blocked     bool   `json:"blocked,omitempty" help:"only those that wait for an operator"`
	Limit       int    `json:"limit,omitempty" default:"100" min:"1" max:"1000" help:"how many to list, 1 to 1000"`
	After       string `json:"after,omitempty" help:"go on after this DESTINATION/LANE"`
}

func holdsList() Verb {
	return reads(Verb{
		Name:  "holds",
		Short: "List keys whose messages are set aside, and what they wait for",
		Long: `A key's messages are set aside when the first of them has failed and is tried again later, when it is paused, when its
delivery time is still to come, or when an operator has to decide (blocked). What comes later for the key waits behind it.`,
		Example: `  outbox holds --destination kafka
  outbox holds --blocked -o json`,
	}, func(ctx context.Context, db admin.DB, p Holds) ([]find.HeldLane, error) {
		f := find.HoldFilter{Destination: p.Destination, Key: p.Key, Blocked: p.Blocked, Limit: p.Limit}
		f.AfterDestination, f.AfterLane, _ = strings.Cut(p.After, "/")
		return find.Holds(ctx, db, f)
	}, func(p Holds, lanes []find.HeldLane) sheet.Parts {
		return listPage("Keys that wait", "nothing is retried, delayed, paused or blocked", lanes, laneRow, p.Limit, "after",
			func(l find.HeldLane) string { return l.Destination + "/" + l.Lane })
	})
}

func laneRow(l find.HeldLane) sheet.Row {
	id := l.MessageID.String()
	first, next := sheet.To(l.MessageID, "messages show", "message", id), any(l.Due)
	if l.MessageID.IsZero() {
		first = nil
	}
	if l.Blocked {
		next = sheet.Mark{State: health.StateBlocked, Word: "blocked"}
	}
	row := sheet.Of("Key", sheet.Key(l.Lane), "First", first, route, sheet.Route(l.Topic, l.Destination), "Messages", l.Messages,
		"Attempts", l.Attempts, "Since", l.Since, "Next try", next, "Error", sheet.Error(l.Error))
	if l.Blocked {
		return row.Can("dead requeue", "Try again…", "blocked", "true", "ids", id, "destination", l.Destination).
			Can("dead discard", "Discard…", "blocked", "true", "ids", id, "destination", l.Destination)
	}
	if l.Error != "" {
		row = row.Can("retry", "Try now…", "destination", l.Destination, "key", l.Lane)
	}
	return row.Can("pause", "Pause…", "destination", l.Destination, "key", l.Lane)
}
