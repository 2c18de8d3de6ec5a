package draw

import (
	"fmt"
	"time"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/output"
)

func listAudit(to output.Streams, p *verbs.Audit, list []admin.AuditEntry) error {
	if len(list) == 0 {
		fmt.Fprintln(to.Stderr, "none")
		return nil
	}
	t := output.NewTable(to.Stdout, "ID", "AT", "BY", "VERB", "DESTINATION", "REASON", "DETAIL")
	for _, e := range list {
		t.Row(e.ID, e.At.Local().Format(time.DateTime), e.Actor, e.Verb, e.Destination, output.Short(e.Reason, 60), output.Short(string(e.Detail), 80))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if len(list) == p.Limit {
		fmt.Fprintf(to.Stderr, "there may be more: add --before %d\n", list[len(list)-1].ID)
	}
	return nil
}
