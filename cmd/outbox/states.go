package main

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/relay"
)

// states writes what the relays of this process do to their cursors, where "outbox status" reads it from
// any other. It does its best: a state that can't be written now is written later, or replaced by a newer
// one meanwhile.
type states struct {
	conn   func(context.Context) (*pgx.Conn, error)
	owner  string
	logger *slog.Logger

	mu      sync.Mutex
	pending map[cursorName]stateChange
	changed chan struct{}
}

type cursorName struct {
	destination string
	group       int
}

type stateChange struct {
	state relay.State
	cause string
	at    time.Time
}

func newStates(owner string, logger *slog.Logger, conn func(context.Context) (*pgx.Conn, error)) *states {
	return &states{conn: conn, owner: owner, logger: logger, pending: map[cursorName]stateChange{}, changed: make(chan struct{}, 1)}
}

// set notes a state. It doesn't block.
func (s *states) set(name cursorName, state relay.State, cause string) {
	s.mu.Lock()
	s.pending[name] = stateChange{state, cause, time.Now()}
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// run writes until ctx ends, and then once more what is left.
func (s *states) run(ctx context.Context) {
	const pause = time.Second // a flapping destination costs one write a second
	var conn *pgx.Conn
	defer func() {
		if conn != nil {
			disconnect(conn)
		}
	}()
	last := false
	for !last {
		select {
		case <-s.changed:
		case <-ctx.Done():
			last = true
		}
		work, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		conn = s.flush(work, conn)
		cancel()
		if last {
			return
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// flush writes what is pending, and returns the connection for the next time, nil if it broke.
func (s *states) flush(ctx context.Context, conn *pgx.Conn) *pgx.Conn {
	s.mu.Lock()
	pending := s.pending
	s.pending = map[cursorName]stateChange{}
	s.mu.Unlock()
	if len(pending) == 0 {
		return conn
	}
	if conn == nil {
		var err error
		if conn, err = s.conn(ctx); err != nil {
			s.keep(pending, err)
			return nil
		}
	}
	for name, change := range pending {
		// last_error stays when the state is well again: it says what the last trouble was.
		_, err := conn.Exec(ctx, `
			UPDATE outbox.cursors SET state = $4,
			       last_error = CASE WHEN $5 = '' THEN last_error ELSE $5 END,
			       last_error_at = CASE WHEN $5 = '' THEN last_error_at ELSE clock_timestamp() - $6::bigint * interval '1 microsecond' END
			WHERE destination = $1 AND shard_group = $2 AND owner = $3`,
			name.destination, name.group, s.owner, string(change.state), change.cause, time.Since(change.at).Microseconds())
		if err != nil {
			disconnect(conn)
			s.keep(pending, err)
			return nil
		}
		delete(pending, name)
	}
	return conn
}

// keep puts back what could not be written, unless something newer came.
func (s *states) keep(pending map[cursorName]stateChange, err error) {
	s.logger.Debug("state not written", "error", err)
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, change := range pending {
		if _, newer := s.pending[name]; !newer {
			s.pending[name] = change
		}
	}
	select {
	case s.changed <- struct{}{}:
	default:
	}
}
