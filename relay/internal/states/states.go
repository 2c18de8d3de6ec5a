// Package states writes the states of relays to the rows of their cursors, for `outbox status` to read.
package states

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/dial"
	"github.com/pgoutbox/outbox/relay/internal/later"
)

// Writer writes the states of the cursors of one owner. It makes a best effort: if it can't write a state now, it
// writes that state, or a newer one, later.
type Writer struct {
	conn   *pgx.ConnConfig
	owner  string
	logger *slog.Logger
	later  *later.Writer[Cursor, change]
}

// Cursor is a row of outbox.cursors, and the objective of its destination; not positive: none.
type Cursor struct {
	Destination  string
	Group        int
	LagObjective time.Duration
}

type change struct {
	state relay.State
	cause string
	at    time.Time
}

// pause is the least time between two writes: a destination whose state changes all the time costs one write a second.
const pause = time.Second

// New returns a writer that opens a connection with conn when it has something to write.
func New(conn *pgx.ConnConfig, owner string, logger *slog.Logger) *Writer {
	w := &Writer{conn: conn.Copy(), owner: owner, logger: logger}
	newer := func(_, next change) change { return next }
	w.later = later.New(pause, newer, w.write)
	return w
}

// Report notes the state of a cursor's relay; err is the cause. A relay that waits for the lease has no state to write
// to a cursor, and a regular stop shows in the lease. With relay.StateStopped the call returns when everything is
// written, or has failed once more.
func (w *Writer) Report(at Cursor, state relay.State, err error) {
	c := change{state: state, at: time.Now()}
	if err != nil {
		c.cause = err.Error()
	}
	switch {
	case state == relay.StateWaiting:
	case state != relay.StateStopped:
		w.later.Note(at, c)
	default:
		if err != nil {
			w.later.Note(at, c)
		}
		_ = w.later.End(at) // write has logged the error
	}
}

func (w *Writer) write(ctx context.Context, changes map[Cursor]change) error {
	conn, err := dial.Connect(ctx, w.conn, "outbox states "+w.owner)
	if err != nil {
		w.logger.Debug("states of cursors could not be written", "error", err)
		return err
	}
	defer dial.HangUp(conn)
	for at, c := range changes {
		// last_error stays when the destination works again, to show what the last trouble was.
		_, err := conn.Exec(ctx, `
			UPDATE outbox.cursors SET state = $4, lag_objective = $7::bigint * interval '1 microsecond',
			       state_since = CASE WHEN state = $4 THEN state_since ELSE clock_timestamp() - $6::bigint * interval '1 microsecond' END,
			       last_error = CASE WHEN $5 = '' THEN last_error ELSE $5 END,
			       last_error_at = CASE WHEN $5 = '' THEN last_error_at ELSE clock_timestamp() - $6::bigint * interval '1 microsecond' END
			WHERE destination = $1 AND shard_group = $2 AND owner = $3`,
			at.Destination, at.Group, w.owner, string(c.state), c.cause, time.Since(c.at).Microseconds(), max(at.LagObjective,
				0).Microseconds())
		if err != nil {
			w.logger.Debug("the state of a cursor could not be written", "destination", at.Destination, "error", err)
			return fmt.Errorf("write the state of destination %s: %w", at.Destination, err)
		}
	}
	return nil
}
