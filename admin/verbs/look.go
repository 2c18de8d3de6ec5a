package verbs

import (
	"context"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/find"
	"github.com/pgoutbox/outbox/admin/health"
)

// Holds are the parameters of "holds".
type Holds struct {
	Destination string `json:"destination,omitempty" help:"of this destination"`
	Key         string `json:"key,omitempty" help:"of this ordering key"`
	Blocked     bool   `json:"blocked,omitempty" help:"only those that wait for an operator"`
	Limit       int    `json:"limit,omitempty" default:"100" min:"1" max:"1000" help:"how many to list, 1 to 1000"`
	After       string `json:"after,omitempty" help:"go on after this DESTINATION/LANE"`
}

func holds() Verb {
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
	})
}

// Audit are the parameters of "audit".
type Audit struct {
	Destination string    `json:"destination,omitempty" help:"of this destination"`
	Actor       string    `json:"by,omitempty" help:"by this person"`
	Verb        string    `json:"verb,omitempty" help:"this verb, such as pause or requeue"`
	Since       time.Time `json:"since,omitzero" help:"done at this time or later"`
	Limit       int       `json:"limit,omitempty" default:"100" min:"1" max:"1000" help:"how many to list, 1 to 1000"`
	Before      int64     `json:"before,omitempty" min:"0" help:"go on before the entry with this id"`
}

func audit() Verb {
	return reads(Verb{
		Name:  "audit",
		Short: "List what operators did, when and why, newest first",
		Example: `  outbox audit --destination billing
  outbox audit --by anna@example --since 24h -o json`,
	}, func(ctx context.Context, db admin.DB, p Audit) ([]admin.AuditEntry, error) {
		f := admin.AuditFilter{Actor: p.Actor, Verb: p.Verb, Destination: p.Destination, Since: p.Since, Before: p.Before,
			Limit: p.Limit}
		return admin.Audit(ctx, db, f)
	})
}

func relays() Verb {
	return reads(Verb{
		Name:  "relays",
		Short: "List relays, what they deliver, and which are gone",
	}, func(ctx context.Context, db admin.DB, _ struct{}) ([]health.Relay, error) {
		r, err := health.Status(ctx, db)
		if err != nil {
			return nil, err
		}
		return r.Relays, nil
	})
}
