package replication

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/wal"
)

// stream begins to stream. If another process still streams from the slot, it serves a session that has lost the lease
// or is just ending.
func (s *session) stream(ctx context.Context, conn *pgx.Conn) error {
	stream, err := wal.Open(ctx, s.source.server(), wal.Config{
		Slot: s.source.cfg.Slot, Publication: s.source.cfg.Publication, From: s.progress.Position,
		Options: fmt.Sprintf(", binary 'true', messages '%t'", s.source.cfg.Emitted),
		Lock:    &s.mu, StatusInterval: s.statusInterval,
		Busy: func(ctx context.Context) error {
			if failure := s.table.Failure(); failure != nil {
				return failure
			}
			return s.source.server().Evict(ctx, conn, s.source.cfg.Slot)
		},
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wal = stream
	return nil
}

// readLog returns what has arrived, and waits if nothing has.
func (s *session) readLog(ctx context.Context, limit int) (relay.Batch, error) {
	if s.page == nil {
		s.page = s.table.NewPage()
	}
	s.limit = limit
	if _, err := s.wal.Read(ctx, s); err != nil || s.page.Len() == 0 {
		return relay.Batch{}, err
	}
	// The server describes the table again before the first row that it sends after a change of the publication or of
	// the table. Rows before this one may not have been sent, and they have to come first.
	if s.described {
		if err := s.readMode(true); err != nil {
			return relay.Batch{}, err
		}
		s.described = false
	}
	if err := s.awaitStandbys(ctx); err != nil {
		return relay.Batch{}, err
	}
	batch := s.page.Batch()
	if s.page.Full() {
		s.page.Drop()
		s.page = nil
	}
	return batch, nil
}

// awaitStandbys makes a commit after everything that was received. The commit waits until the synchronous standbys have
// the log up to there. The server sends what only its own disk has, and a failover would take that back.
func (s *session) awaitStandbys(ctx context.Context) error {
	s.mu.Lock()
	standbys := s.standbys
	s.mu.Unlock()
	if !standbys {
		return nil
	}
	return s.store(context.WithoutCancel(ctx), nil)
}
