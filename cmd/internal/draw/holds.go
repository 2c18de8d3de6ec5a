package draw

import (
	"fmt"
	"time"

	"github.com/pgoutbox/outbox/admin/find"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/output"
	"github.com/pgoutbox/outbox/internal/printed"
)

func listHolds(to output.Streams, p *verbs.Holds, list []find.HeldLane) error {
	if len(list) == 0 {
		fmt.Fprintln(to.Stderr, "none")
		return nil
	}
	t := output.NewTable(to.Stdout, "DESTINATION", "KEY", "MESSAGES", "FIRST", "TOPIC", "ATTEMPTS", "SINCE", "NEXT TRY", "ERROR")
	now := time.Now()
	for _, h := range list {
		next := "blocked"
		if !h.Blocked {
			next = "in " + printed.Span(h.Due.Sub(now))
		}
		t.Row(h.Destination, output.Short(h.Lane, 40), h.Messages, h.MessageID, h.Topic, h.Attempts, output.Ago(now, h.Since)+" ago",
			next, output.Short(h.Error, output.ErrorWidth))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if len(list) == p.Limit {
		last := list[len(list)-1]
		fmt.Fprintf(to.Stderr, "there may be more: add --after %s\n", output.Clean(last.Destination+"/"+last.Lane))
	}
	return nil
}
