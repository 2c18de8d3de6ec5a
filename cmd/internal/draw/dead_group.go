package draw

import (
	"fmt"
	"time"

	"github.com/pgoutbox/outbox/admin/find"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/output"
	"github.com/pgoutbox/outbox/internal/printed"
)

func listGroups(to output.Streams, _ *verbs.Filter, g find.DeadGroups) error {
	if len(g.Groups) == 0 {
		fmt.Fprintln(to.Stderr, "none")
		return nil
	}
	t := output.NewTable(to.Stdout, "GROUP", "MESSAGES", "NEW", "AGAIN", "DESTINATION", "TOPIC", "CAUSE", "FIRST", "LAST", "ERROR OF THE LAST")
	now := time.Now()
	for _, d := range g.Groups {
		t.Row(d.Fingerprint, printed.Number(d.Messages), printed.Number(d.New), printed.Number(d.Again), d.Destination, d.Topic,
			d.Reason, output.Ago(now, d.First)+" ago", output.Ago(now, d.Last)+" ago", output.Short(d.Error, output.ErrorWidth))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if g.Partial {
		fmt.Fprintf(to.Stderr, "%s dead letters were looked at, and there are more: select fewer by flags\n", printed.Number(g.Looked))
	}
	return nil
}
