package owner

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/schema"
)

// Lock is an advisory lock that a session has as long as it lasts. So whoever waits for it knows at once that the
// session has ended, whatever has become of its process. Key is what the functions for advisory locks take, in SQL.
type Lock struct {
	Key string

	// Shared means that the session has other purposes too, and that its silence is bounded whatever locks it has.
	Shared bool
}

// A wait in the server is over before deadlock_timeout, 1 s by default: so it is neither logged (log_lock_waits) nor
// does its snapshot keep vacuum from much.
const longestWait = 900 * time.Millisecond

// Try takes the lock if it is free. The server ends a session that has the lock and is silent for length: its process
// may be frozen, or the line cut.
func (l Lock) Try(ctx context.Context, conn *pgx.Conn, length time.Duration) (got bool, err error) {
	sql := fmt.Sprintf("SELECT CASE WHEN pg_try_advisory_lock(%s) THEN %s END IS NOT NULL", l.Key, l.silence(length))
	if got, err = holds(ctx, conn, sql); err != nil {
		return false, fmt.Errorf("take the lock: %w", err)
	}
	return got, nil
}

// Wait is Try, and waits in the server, for a third of length at most, and for less than a second. To wait in vain is
// no error for the server, and not logged there. Nor is a wait that ctx ends, which closes the connection.
//
// The server may give the lock to a wait that it is about to end. The session has it then, with an error. So after a
// wait in vain the lock is asked for once more: if it isn't given back entirely by giving it back once, it was had
// before.
func (l Lock) Wait(ctx context.Context, conn *pgx.Conn, length time.Duration) (got bool, err error) {
	return l.wait(ctx, conn, min(length/3, longestWait), length)
}

func (l Lock) wait(ctx context.Context, conn *pgx.Conn, atMost, length time.Duration) (got bool, err error) {
	const mine = `(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND mode = 'ExclusiveLock')`
	body := fmt.Sprintf(`
DECLARE
	locks bigint;
BEGIN
	PERFORM set_config('outbox.locked', 'f', false), set_config('lock_timeout', '%[2]d', true);
	BEGIN
		PERFORM pg_advisory_lock(%[1]s);
	EXCEPTION WHEN lock_not_available OR query_canceled THEN
		IF NOT pg_try_advisory_lock(%[1]s) THEN RETURN; END IF;
		locks := %[4]s;
		PERFORM pg_advisory_unlock(%[1]s);
		IF %[4]s < locks AND NOT pg_try_advisory_lock(%[1]s) THEN RETURN; END IF;
	END;
	PERFORM set_config('outbox.locked', 't', false), %[3]s;
END`, l.Key, max(atMost.Milliseconds(), 1), l.silence(length), mine)
	sql := "DO " + schema.QuoteLiteral(body) + "; SELECT current_setting('outbox.locked') = 't'"
	if got, err = holds(ctx, conn, sql); err != nil {
		return false, fmt.Errorf("wait for the lock: %w", err)
	}
	return got, nil
}

// Unlock gives the lock back.
func (l Lock) Unlock(ctx context.Context, conn *pgx.Conn) error {
	if _, err := holds(ctx, conn, "SELECT pg_advisory_unlock("+l.Key+") AND "+l.silence(0)+" IS NOT NULL"); err != nil {
		return fmt.Errorf("give the lock back: %w", err)
	}
	return nil
}

// silence is how long a session may be silent, in SQL; 0: for ever.
func (l Lock) silence(length time.Duration) string {
	if l.Shared {
		return "current_setting('idle_session_timeout')"
	}
	return "set_config('idle_session_timeout', '" + strconv.FormatInt(length.Milliseconds(), 10) + "', false)"
}

// holds runs statements as one transaction, and returns the last one's value.
func holds(ctx context.Context, conn *pgx.Conn, sql string) (bool, error) {
	results, err := conn.PgConn().Exec(ctx, sql).ReadAll()
	if err != nil {
		return false, err
	}
	last := results[len(results)-1].Rows
	return len(last) == 1 && string(last[0][0]) == "t", nil
}
