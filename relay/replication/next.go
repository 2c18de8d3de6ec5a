package replication

import (
	"context"
	"fmt"

	"github.com/pgoutbox/outbox/relay"
)

// Next waits for messages: from the table until the log takes over, and then from the log.
func (s *session) Next(ctx context.Context, limit int) (relay.Batch, error) {
	if limit < 1 {
		return relay.Batch{}, fmt.Errorf("replication: Next was asked for %d messages", limit)
	}
	if s.isStreaming() {
		return s.nextOfLog(ctx, limit)
	}
	return s.nextOfTable(ctx, limit)
}

func (s *session) nextOfLog(ctx context.Context, limit int) (relay.Batch, error) {
	if s.wantsToLeave() {
		return relay.Batch{}, s.leaveLog(ctx)
	}
	if s.wantsToCatchUp() {
		return relay.Batch{}, s.catchUp(ctx)
	}
	batch, err := s.readLog(ctx, limit)
	if failure := s.table.Failure(); err != nil && failure != nil {
		err = failure // that failure has closed the connection
	}
	return batch, err
}
