package mapped

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/dial"
)

// awaitLock takes an advisory lock for the session, and logs once if that takes a while. It asks repeatedly, because
// waiting in the server would hold up vacuum. Once the session has the lock, the server ends it when it is silent for
// as long as the lease.
func (s *Source) awaitLock(ctx context.Context, conn *pgx.Conn, lock, what string) error {
	ask := func(sql string, into any, args ...any) error {
		ctx, cancel := context.WithTimeout(ctx, dial.AnswerWithin)
		defer cancel()
		return conn.QueryRow(ctx, sql, args...).Scan(into)
	}
	if err := ask("SELECT set_config('idle_session_timeout', $1, false)", nil, s.silence()); err != nil {
		return fmt.Errorf("prepare the connection: %w", err)
	}
	every := min(100*time.Millisecond, s.cfg.Lease/3)
	for waited := false; ; waited = true {
		var got bool
		if err := ask("SELECT pg_try_advisory_lock("+lock+")", &got); err != nil {
			return fmt.Errorf("take the lock: %w", err)
		}
		if got {
			return nil
		}
		if !waited {
			s.cfg.Logger.Info("waiting: "+what, "relay", s.owner, "table", s.mapping.Table)
		}
		if err := dial.Pause(ctx, every); err != nil {
			return err
		}
	}
}

// awaitPresence takes the lock that all relays of the table share.
func (s *Source) awaitPresence(ctx context.Context, conn *pgx.Conn, lock string) error {
	for {
		var got bool
		if err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock_shared("+lock+")").Scan(&got); err != nil || got {
			return err
		}
		if err := dial.Pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}
