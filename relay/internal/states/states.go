// Package states writes the states of relays to the rows of their cursors, for `outbox status` to read.
package states

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/later"
)

// Writer writes the states of the cursors of one owner. It makes a best effort: if it can't write a state now, it
// writes that state, or a newer one, later.
type Writer struct {
	conn   *pgx.ConnConfig
	owner  string
	logger *slog.Logger
	table  *Table // nil: there are cursors
	later  *later.Writer[Cursor, change]
}

// Table describes what is read where there is no cursor.
type Table struct {
	Groups   int
	Session  string // the application_name of the relay's sessions
	Strategy string
	Mapping  any // written as JSON
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

// NewTable returns a writer for a destination that reads a table of its own. Its states go to outbox.tables, if that is
// there and the role may write to it.
func NewTable(conn *pgx.ConnConfig, owner string, table Table, logger *slog.Logger) *Writer {
	w := New(conn, owner, logger)
	w.table = &table
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
	if w.table != nil {
		var writable bool
		err := conn.QueryRow(ctx, `SELECT coalesce(has_table_privilege(t, 'SELECT') AND has_table_privilege(t, 'INSERT') AND has_table_privilege(t, 'UPDATE')
			AND has_table_privilege(t, 'DELETE'), false) FROM to_regclass('outbox.tables') t`).Scan(&writable)
		if err != nil || !writable {
			return err
		}
	}
	for at, c := range changes {
		if w.table != nil {
			if err := w.writeTable(ctx, conn, at, c); err != nil {
				w.logger.Debug("the state of a table could not be written", "destination", at.Destination, "error", err)
				return fmt.Errorf("write the state of destination %s: %w", at.Destination, err)
			}
			continue
		}
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

// forgottenAfter is how long the state of a relay that isn't there any more is kept beside that of another.
const forgottenAfter = "1 day"

func (w *Writer) writeTable(ctx context.Context, conn *pgx.Conn, at Cursor, c change) error {
	columns, err := json.Marshal(w.table.Mapping)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, `
		WITH forgotten AS (
			DELETE FROM outbox.tables WHERE destination = $1 AND owner <> $3 AND updated_at < clock_timestamp() - interval '`+forgottenAfter+`'
			AND session NOT IN (SELECT application_name FROM pg_stat_activity WHERE datname = current_database()))
		INSERT INTO outbox.tables AS t (destination, shard_group, owner, shard_groups, session, strategy, mapping, state, state_since,
		                                last_error, last_error_at, lag_objective)
		SELECT $1, $2, $3, $4, $5, $6, $7::text::jsonb, $8, n.at, nullif($9, ''), CASE WHEN $9 <> '' THEN n.at END, $11::bigint * interval '1 microsecond'
		FROM (SELECT clock_timestamp() - $10::bigint * interval '1 microsecond' AS at) n
		ON CONFLICT (destination, shard_group, owner) DO UPDATE SET
			shard_groups = excluded.shard_groups, session = excluded.session, strategy = excluded.strategy, mapping = excluded.mapping,
			state_since = CASE WHEN t.state = excluded.state THEN t.state_since ELSE excluded.state_since END, state = excluded.state,
			last_error = coalesce(excluded.last_error, t.last_error), last_error_at = coalesce(excluded.last_error_at, t.last_error_at),
			lag_objective = excluded.lag_objective, updated_at = clock_timestamp()`,
		at.Destination, at.Group, w.owner, w.table.Groups, w.table.Session, w.table.Strategy, string(columns), string(c.state), c.cause,
		time.Since(c.at).Microseconds(), max(at.LagObjective, 0).Microseconds())
	return err
}
