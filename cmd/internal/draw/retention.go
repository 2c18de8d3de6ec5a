package draw

import (
	"strings"
	"time"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/internal/printed"
)

func retention() View {
	return lists[struct{}]("", []any{"SEGMENT", "SIZE", "MESSAGES", "OLDEST", "NEEDED BY", "EMPTIED"},
		func(_ time.Time, s health.RetainedSegment) []any {
			oldest := "–"
			if !s.Oldest.IsZero() {
				oldest = s.Oldest.Local().Format(time.DateTime)
			}
			return []any{s.Name, printed.Bytes(s.Bytes), printed.Number(s.Messages), oldest, strings.Join(s.NeededBy, ", "), s.Emptied()}
		}, nil)
}
