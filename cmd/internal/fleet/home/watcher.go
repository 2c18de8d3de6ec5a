package home

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/dial"
)

// watcher waits for the end of another member's session, on a connection of its own: the one that holds a member's lock
// waits for none, so there is no circle of waits.
type watcher struct {
	cfg *Config
	pg  *pgx.Conn
}

// waitFor is how long one statement waits: less than deadlock_timeout, so that the server neither looks for a deadlock
// nor logs the wait, and no old snapshot is kept.
const waitFor = 900 * time.Millisecond

// wait returns true when nobody holds a lock, and false when it has waited for a while.
func (w *watcher) wait(ctx context.Context, table uint32, lock int32) (free bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, waitFor+answerWithin)
	defer cancel()
	if w.pg == nil {
		if w.pg, err = dial.Session(ctx, w.cfg.Conn, "outbox fleet "+w.cfg.Name); err != nil {
			return false, err
		}
	}
	results, err := w.pg.PgConn().Exec(ctx, fmt.Sprintf(`DO $wait$ BEGIN
	PERFORM set_config('lock_timeout', '%d', true);
	PERFORM pg_advisory_xact_lock_shared(%d, %d);
EXCEPTION WHEN lock_not_available THEN
END $wait$;
SELECT pg_try_advisory_xact_lock_shared(%[2]d, %[3]d)`, waitFor.Milliseconds(), int32(table), lock)).ReadAll()
	if err != nil {
		w.close()
		return false, err
	}
	rows := results[len(results)-1].Rows
	return len(rows) == 1 && string(rows[0][0]) == "t", nil
}

func (w *watcher) close() {
	dial.HangUp(w.pg)
	w.pg = nil
}
