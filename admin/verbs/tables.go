package verbs

import (
	"context"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/jobs"
)

// TablesDead are the parameters of "tables dead".
type TablesDead struct {
	IDs         []string `json:"ids,omitempty" arg:"ID" help:"ids of rows; without them, all"`
	Destination string   `json:"destination" required:"true" help:"that reads a table of its own"`
	Blocked     bool     `json:"blocked,omitempty" help:"rows that keep their keys waiting, instead of dead letters"`
	Limit       int      `json:"limit,omitempty" default:"100" min:"1" max:"1000" help:"how many to list, 1 to 1000"`
}

func tablesDead() Verb {
	return reads(Verb{
		Name:  "tables dead",
		Short: "List dead letters in a table that exists",
		Long: `They are where the mapping keeps them: rows with the status for failed ones, or in the table for dead letters. What
the mapping has no column for is not known. Blocked rows are those whose next attempt is never (infinity).`,
		Example: `  outbox tables dead --destination shop
  outbox tables dead --destination shop 1234`,
	}, func(ctx context.Context, db admin.DB, p TablesDead) ([]jobs.DeadRow, error) {
		return jobs.DeadRows(ctx, db, jobs.RowSelection{Destination: p.Destination, Blocked: p.Blocked, IDs: p.IDs}, p.Limit)
	})
}

// TablesRequeue are the parameters of "tables requeue".
type TablesRequeue struct {
	IDs         []string `json:"ids,omitempty" arg:"ID" help:"ids of rows; without them, all dead letters"`
	Destination string   `json:"destination" required:"true" help:"that reads a table of its own"`
	Blocked     bool     `json:"blocked,omitempty" help:"rows that keep their keys waiting, instead of dead letters"`
	Max         int64    `json:"max,omitempty" default:"100000" min:"1" help:"refuse to requeue more"`
	Intent
}

func tablesRequeue() Verb {
	return changes(Verb{
		Name:  "tables requeue",
		Short: "Have dead letters in a table that exists delivered once more",
		Long: `A row with the status for failed ones waits again. A row in the table for dead letters goes back to the table that it
came from, with its id; the strategies that change no row (xmin, serial, replication) give it a new one if the column
draws them. No attempt is counted. What was delivered after it stays delivered: consumers that need order see it late.

It is one transaction, with the rights of the role that runs it: UPDATE on the table, or DELETE on the table for dead
letters and INSERT on the other.`,
		Example: `  outbox tables requeue --destination shop --reason "they have fixed it"
  outbox tables requeue --destination shop 1234 1235 --dry-run`,
	}, func(ctx context.Context, db admin.DB, action admin.Action, p TablesRequeue) (jobs.RowOutcome, error) {
		rows := jobs.RowSelection{Destination: p.Destination, Blocked: p.Blocked, IDs: p.IDs, Max: p.Max}
		return jobs.RequeueRows(ctx, db, rows, action)
	})
}

// TablesAck are the parameters of "tables ack".
type TablesAck struct {
	Destination string `json:"destination" required:"true" help:"that reads a table of its own"`
	Max         int64  `json:"max,omitempty" default:"100000" min:"1" help:"refuse to acknowledge more"`
	Intent
}

func tablesAck() Verb {
	return changes(Verb{
		Name:  "tables ack",
		Short: "Say that you know of the dead letters in a table that exists",
		Long: `The verdict no longer names as many as there are now, and names those that come to them. Which ones they are is not
kept: if some are deleted by other means, as many new ones go unnamed.`,
		Example: `  outbox tables ack --destination shop --reason "ticket 1234"`,
	}, func(ctx context.Context, db admin.DB, action admin.Action, p TablesAck) (jobs.RowOutcome, error) {
		return jobs.AcknowledgeRows(ctx, db, p.Destination, p.Max, action)
	})
}
