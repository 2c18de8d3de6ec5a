package verbs

import (
	"context"
	"fmt"

	"github.com/pgoutbox/outbox/admin/sheet"
	"github.com/pgoutbox/outbox/internal/printed"
	"github.com/pgoutbox/outbox/internal/shell"

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
	}, func(p TablesDead, rows []jobs.DeadRow) sheet.Parts {
		parts := sheet.Parts{sheet.List("Dead letters", "its table has no dead letters", rows, func(r jobs.DeadRow) sheet.Row {
			return sheet.Of("Row", r.ID, "Message", r.MessageID, "Event type", r.EventType, "Attempts", r.Attempts, "Died", r.DeadAt,
				"Error", sheet.Error(r.Error)).Can("tables requeue", "Requeue…", "destination", p.Destination, "ids", r.ID)
		})}
		if len(rows) == 0 {
			return parts
		}
		command := "outbox tables requeue"
		if p.Blocked {
			command += " --blocked"
		}
		parts = append(parts, sheet.Hint("in table "+rows[0].Table+"; to have one delivered once more, when its cause is gone: "+command+
			" --destination "+shell.Word(p.Destination)+" ID"))
		if len(rows) == p.Limit {
			parts = append(parts, sheet.Hint(fmt.Sprintf("there may be more than %d: --limit", p.Limit)))
		}
		return parts
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
		Lists: true,
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
	}, rowTexts[TablesRequeue]("%s to be delivered once more"))
}

// rowTexts describe a verb that acts on dead letters of a table. The text has a place for their number.
func rowTexts[P any](done string) texts[P, jobs.RowOutcome] {
	return texts[P, jobs.RowOutcome]{
		done: func(out jobs.RowOutcome) string {
			return fmt.Sprintf(done, printed.Many(out.Rows, "message", "messages"))
		},
		preview: func(found jobs.RowOutcome) sheet.Parts {
			return sheet.Parts{sheet.Line(printed.Many(found.Rows, "message", "messages") + " of table " + found.Table)}
		},
	}
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
		Lists: true,
		Short: "Say that you know of the dead letters in a table that exists",
		Long: `The verdict no longer names as many as there are now, and names those that come to them. Which ones they are is not
kept: if some are deleted by other means, as many new ones go unnamed.`,
		Example: `  outbox tables ack --destination shop --reason "ticket 1234"`,
	}, func(ctx context.Context, db admin.DB, action admin.Action, p TablesAck) (jobs.RowOutcome, error) {
		return jobs.AcknowledgeRows(ctx, db, p.Destination, p.Max, action)
	}, rowTexts[TablesAck]("%s acknowledged"))
}
