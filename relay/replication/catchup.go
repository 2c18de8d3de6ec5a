package replication

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// From the log to the table, to catch up. The cursor sees what commits before fallback.covers, and all of that is
// settled. So the table is read from there on as after the loss of a slot, except that nothing is lost and that the
// slot is dropped at once, because it would retain the log. What was delivered from the log since fallback.covers comes
// again, and that must be little.

// repeated is the part of CatchUp that may be delivered again.
const repeated = 16

// wantsToCatchUp reports whether the table is to be read. A transaction is read to its end before, because the part of
// it that was delivered would come again.
func (s *session) wantsToCatchUp() bool {
	s.catching = s.catching || s.farBehind()
	return s.catching && !s.progress.Open
}

func (s *session) farBehind() bool {
	limit := s.source.cfg.CatchUp
	if limit == 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.progress.Position
	return int64(s.end-at) > limit && int64(at-s.fallback.covers) <= limit/repeated
}

// catchUp switches to the table when everything that was delivered is settled, in several calls.
func (s *session) catchUp(ctx context.Context) error {
	if idle, err := s.awaitIdle(ctx); !idle {
		return err
	}
	// Settling may have moved the position far from the cursor.
	if s.catching = s.farBehind(); !s.catching {
		return nil
	}
	s.mu.Lock()
	behind := int64(s.end - s.progress.Position)
	s.mu.Unlock()
	// This doesn't use ctx: an interrupted write would lose the connection.
	err := s.table.Write(context.WithoutCancel(ctx), func(ctx context.Context, conn *pgx.Conn) (bool, error) {
		owned, err := s.distrust(ctx, conn, "")
		if err != nil || !owned {
			return false, err
		}
		s.endStream()
		prev, _ := s.table.Prev()
		return true, s.table.MoveTo(prev)
	})
	if err != nil {
		return err
	}
	// The table's first pages tell whether a new slot would come too early, and retain the log meanwhile.
	s.retryAt = time.Now().Add(retryAfter)
	s.log().Info("the log is far behind: reading the table up to its end, then the log again from a new slot",
		"slot_dropped", s.source.cfg.Slot, "bytes", behind)
	return s.abandonSlot(ctx)
}
