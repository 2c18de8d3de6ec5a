package draw

import (
	"fmt"
	"time"

	"github.com/pgoutbox/outbox/admin/jobs"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/output"
	"github.com/pgoutbox/outbox/internal/printed"
	"github.com/pgoutbox/outbox/internal/shell"
)

func listDeadRows(to output.Streams, p *verbs.TablesDead, rows []jobs.DeadRow) error {
	if len(rows) == 0 {
		fmt.Fprintln(to.Stderr, "none")
		return nil
	}
	t := output.NewTable(to.Stdout, "ID", "MESSAGE ID", "EVENT TYPE", "ATTEMPTS", "AGE", "ERROR")
	now := time.Now()
	for _, r := range rows {
		age := "-"
		if !r.DeadAt.IsZero() {
			age = output.Ago(now, r.DeadAt)
		}
		t.Row(r.ID, r.MessageID, r.EventType, r.Attempts, age, output.Short(r.Error, output.ErrorWidth))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	command := "outbox tables requeue"
	if p.Blocked {
		command += " --blocked"
	}
	fmt.Fprintf(to.Stderr, "to have one delivered once more, when its cause is gone: %s --destination %s ID\n", command,
		shell.Word(p.Destination))
	if len(rows) == p.Limit {
		fmt.Fprintf(to.Stderr, "there may be more than %d: --limit\n", p.Limit)
	}
	return nil
}

// actOnRows is the view of a verb that acts on dead letters of a table. Both texts have a place for their number.
func actOnRows[P any](ask, done string) View {
	return asks(shows(func(to output.Streams, _ *P, out jobs.RowOutcome) error {
		_, err := fmt.Fprintf(to.Stdout, done+"\n", printed.Many(out.Rows, "message", "messages"))
		return err
	}), func(to output.Streams, _ *P, found jobs.RowOutcome) error {
		_, err := fmt.Fprintf(to.Stdout, "%s of table %s\n", printed.Many(found.Rows, "message", "messages"), output.Clean(found.Table))
		return err
	}, func(_ *P, found jobs.RowOutcome) (string, bool) {
		return fmt.Sprintf(ask, printed.Many(found.Rows, "message", "messages")), found.Rows > 0
	})
}
