package draw

import (
	"strings"
	"time"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/cmd/internal/output"
	"github.com/pgoutbox/outbox/internal/printed"
)

func listRetention(to output.Streams, _ *struct{}, list []health.RetainedSegment) error {
	t := output.NewTable(to.Stdout, "SEGMENT", "SIZE", "MESSAGES", "OLDEST", "NEEDED BY", "EMPTIED")
	for _, s := range list {
		oldest := "–"
		if !s.Oldest.IsZero() {
			oldest = s.Oldest.Local().Format(time.DateTime)
		}
		t.Row(s.Name, printed.Bytes(s.Bytes), printed.Number(s.Messages), oldest, strings.Join(s.NeededBy, ", "), s.Emptied())
	}
	return t.Flush()
}
