package verbs

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/admin/sheet"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/health"
)

func doctor() Verb {
	return reads(Verb{
		Name:  "doctor",
		Short: "Look at everything, and say what to repair and how",
		Long: `Looks at the schema's version and tables, the rights of the role that asks, settings of the server, a pooler on the
way, the clocks, statistics, indexes, replication slots and the verdict of outbox status. On the command line, if there
is a configuration, every broker is asked as well whether it is reachable with the addresses, certificates and logins
of the configuration. It changes nothing. Each finding has its weight (fault, risk or advice) and its repair as a command
or as SQL. outbox canary sends a message the whole way.

With --table it looks at an outbox table that exists, and proposes how to deliver from it: the preset or the mapping of
its columns, as YAML to paste into outbox.yaml, and the strategy. It says what the table can't give (order,
parallelism, freedom from stalls), which index is missing, and warns of writers whose lock doesn't conflict with
itself. It reads no row then.`,
		Example: `  outbox doctor
  outbox doctor --exit-code && deploy
  outbox doctor --table outbox_events
  outbox doctor --table p2p.transaction_outbox -o json`,
	}, func(ctx context.Context, db admin.DB, _ struct{}) (*health.Examination, error) {
		return health.Examine(ctx, db)
	}, func(_ struct{}, e *health.Examination) sheet.Parts {
		about := "the database could not be asked"
		if e.Server != "" {
			about = fmt.Sprintf("database %s, PostgreSQL %s, schema %d", e.Database, e.Server, e.Schema)
		}
		return sheet.Parts{sheet.Line(about), sheet.Findings(e.Symptoms), sheet.Line("in order: " + strings.Join(e.Well, ", "))}
	})
}

// Canary are the parameters of "canary".
type Canary struct {
	Topic       string   `json:"topic" arg:"TOPIC" required:"true" help:"the topic that it is sent to: its consumers get it"`
	Key         string   `json:"key,omitempty" help:"the ordering key; without one it waits behind nothing"`
	Destination string   `json:"destination,omitempty" help:"wait for this destination only"`
	Wait        Duration `json:"wait,omitempty" default:"10s" min:"1s" help:"how long to wait for it, at most 20s"`
	Intent
}

func canary() Verb {
	return changes(Verb{
		Name:  "canary",
		Cost:  "The topic's consumers get it",
		Wide:  true,
		Short: "Send a message the whole way, and say when each destination has settled it",
		Long: `Writes an ordinary message with the event type outbox.canary, and waits until the relays have settled it: until the
broker has accepted it, or the destination's filter has passed it over. The consumers of the topic get it, so choose a
topic of its own, or one whose consumers ignore that event type. The role needs the rights of a writer.`,
		Example: `  outbox canary outbox.canary
  outbox canary orders --key canary --destination kafka --wait 20s -o json`,
	}, func(ctx context.Context, db admin.DB, action admin.Action, p Canary) (health.Canary, error) {
		return health.SendCanary(ctx, db, p.Topic, p.Key, p.Destination, min(time.Duration(p.Wait), 20*time.Second), action)
	}, texts[Canary, health.Canary]{done: arrived})
}

// arrived is where a canary was settled.
func arrived(c health.Canary) string {
	if c.MessageID == "" {
		return "a message could be written to topic " + c.Topic
	}
	settled := lines(slices.Sorted(maps.Keys(c.Settled)), func(name string) string {
		return fmt.Sprintf("%s settled it after %v", name, c.Settled[name])
	})
	failed := lines(slices.Sorted(maps.Keys(c.Failed)), func(name string) string {
		return name + " could not deliver it: " + c.Failed[name]
	})
	waiting := lines(c.Waiting, func(name string) string { return name + " has not come to it" })
	return strings.TrimSpace(settled + "\n" + failed + "\n" + waiting)
}

func (c *Canary) check() error {
	m := outbox.Message{Topic: c.Topic, Key: c.Key}
	if err := m.Validate(); err != nil {
		return fault("topic", "and key can't be a message's: %v", err)
	}
	return nil
}
