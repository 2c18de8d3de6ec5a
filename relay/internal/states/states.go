// Package states writes the states of relays to the rows of their cursors, for `outbox status` to read.
package states

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/later"
	"github.com/pgoutbox/outbox/schema"
)

// Writer writes the states of the cursors of one owner. It makes a best effort: if it can't write a state now, it
// writes that state, or a newer one, later.
type Writer struct {
	conn   *pgx.ConnConfig
	owner  string
	logger *slog.Logger
	table  *Table // nil: there are cursors
	later  *later.Writer[Cursor, change]

	mu   sync.Mutex
	last map[Cursor]change // of a table: what it writes with a new account
}

// Table describes what is read where there is no cursor.
type Table struct {
	Groups   int
	Session  string // the application_name of the relay's sessions
	Strategy string
	Slot     string // "" if it doesn't read the log
	Mapping  any    // written as JSON

	// Account is what the relay knows of its work, at the time that it is written, by a clock that is ahead of this
	// machine's. It is written as JSON.
	Account func(ahead time.Duration) any
}

// Cursor is a row of outbox.cursors, and the objective of its destination; not positive: none.
type Cursor struct {
	Destination  string
	Group        int
	LagObjective time.Duration
	Settings     string // JSON, for people; "" is none
}

// Settings is v as JSON.
func Settings(v any) string {
	if v == nil {
		return ""
	}
	text, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	return string(text)
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
	w.table, w.last = &table, make(map[Cursor]change)
	return w
}

// Again writes the table's account, with the state that was reported last.
func (w *Writer) Again(at Cursor) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if last, ok := w.last[at]; ok {
		w.later.Note(at, last)
	}
}

// Report notes the state of a cursor's relay; err is the cause. A relay that waits for the lease has no state to write
// to a cursor; in outbox.tables it has a row of its own, if it has worked before, whose state is over. A regular stop
// shows in the lease. With relay.StateStopped the call returns when everything is
// written, or has failed once more; a cause is then written as soon as the database lets it, while the process lasts.
func (w *Writer) Report(at Cursor, state relay.State, err error) {
	c := change{state: state, at: time.Now()}
	if err != nil {
		c.cause = err.Error()
	}
	note := func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.table != nil && state == relay.StateStopped {
			delete(w.last, at)
		} else if w.table != nil {
			w.last[at] = change{state: c.state, at: c.at} // its cause is written once
		}
		w.later.Note(at, c)
	}
	switch {
	case state == relay.StateWaiting:
		w.wait(at, c)
	case state != relay.StateStopped:
		note()
	default:
		if err == nil {
			w.mu.Lock()
			delete(w.last, at)
			w.mu.Unlock()
			_ = w.later.End(at) // write has logged the error
			return
		}
		note()
		_ = w.later.Flush() // what it can't write now it writes later: nobody else knows why the relay gave up
	}
}

// waitsFor is how long a relay waits until that is a state: most have their session at once.
const waitsFor = 2 * time.Second

// wait writes that the relay of a table waits, if it still does after a while.
func (w *Writer) wait(at Cursor, c change) {
	if w.table == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last[at] = c
	time.AfterFunc(waitsFor, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.last[at] == c {
			w.later.Note(at, c)
		}
	})
}

// Close gives up what it can't write.
func (w *Writer) Close() { _ = w.later.End() }

func (w *Writer) write(ctx context.Context, changes map[Cursor]change) error {
	conn, err := dial.Connect(ctx, w.conn, "outbox states "+w.owner)
	if err != nil {
		w.logger.Debug("states of cursors could not be written", "error", err)
		return err
	}
	defer dial.HangUp(conn)
	if w.table != nil {
		var writable bool
		err := conn.QueryRow(ctx, "SELECT "+schema.MaySQL("tables", "SELECT", "INSERT", "UPDATE", "DELETE")).Scan(&writable)
		if err != nil || !writable {
			return err
		}
	}
	for at, c := range changes {
		c.cause = schema.Fit(conn, c.cause)
		if w.table != nil {
			if err := w.writeTable(ctx, conn, at, c); err != nil {
				w.logger.Debug("the state of a table could not be written", "destination", at.Destination, "error", err)
				return fmt.Errorf("write the state of destination %s: %w", at.Destination, err)
			}
			continue
		}
		// last_error stays when the destination works again, to show what the last trouble was.
		err := dial.Write(ctx, conn, `
			UPDATE outbox.cursors SET state = $4, lag_objective = $7::bigint * interval '1 microsecond', settings = $8::text::jsonb,
			       settings_at = CASE WHEN settings = $8::text::jsonb THEN settings_at ELSE clock_timestamp() END,
			       state_since = CASE WHEN state = $4 THEN state_since ELSE clock_timestamp() - $6::bigint * interval '1 microsecond' END,
			       last_error = CASE WHEN $5 = '' THEN last_error ELSE $5 END,
			       last_error_at = CASE WHEN $5 = '' THEN last_error_at ELSE clock_timestamp() - $6::bigint * interval '1 microsecond' END
			WHERE destination = $1 AND shard_group = $2 AND owner = $3`,
			at.Destination, at.Group, w.owner, string(c.state), c.cause, time.Since(c.at).Microseconds(), max(at.LagObjective,
				0).Microseconds(), storable(conn, at.Settings))
		if err != nil {
			w.logger.Debug("the state of a cursor could not be written", "destination", at.Destination, "error", err)
			return fmt.Errorf("write the state of destination %s: %w", at.Destination, err)
		}
	}
	return nil
}

// storable is JSON as a column of jsonb takes it, whatever texts are in it; "" is an empty object.
func storable(conn *pgx.Conn, text string) string {
	if text == "" {
		return "{}"
	}
	var b strings.Builder
	for _, r := range strings.ReplaceAll(text, `\u0000`, `\ufffd`) {
		c := string(r)
		if fit := schema.Storable(conn, c); fit != c { // an escape of JSON would be a character that the database lacks
			c = `\` + fit
		}
		b.WriteString(c)
	}
	return b.String()
}

// forgottenAfter is how long the state of a relay that isn't there any more is kept beside that of another.
const forgottenAfter = "1 day"

func (w *Writer) writeTable(ctx context.Context, conn *pgx.Conn, at Cursor, c change) error {
	var now time.Time
	before := time.Now()
	if err := conn.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now); err != nil {
		return err
	}
	columns, err := json.Marshal(w.table.Mapping)
	if err != nil {
		return err
	}
	account, err := json.Marshal(w.table.Account(now.Sub(before)))
	if err != nil {
		return err
	}
	if c.state == relay.StateWaiting {
		return dial.Write(ctx, conn, `UPDATE outbox.tables SET state = $4, session = $5, updated_at = clock_timestamp(),
			state_since = CASE WHEN state = $4 THEN state_since ELSE clock_timestamp() - $6::bigint * interval '1 microsecond' END
			WHERE destination = $1 AND shard_group = $2 AND owner = $3`,
			at.Destination, at.Group, w.owner, string(c.state), w.table.Session, time.Since(c.at).Microseconds())
	}
	return dial.Write(ctx, conn, `
		WITH forgotten AS (
			DELETE FROM outbox.tables WHERE destination = $1 AND owner <> $3 AND updated_at < clock_timestamp() - interval '`+forgottenAfter+`'
			AND session NOT IN (SELECT application_name FROM pg_stat_activity WHERE datname = current_database()))
		INSERT INTO outbox.tables AS t (destination, shard_group, owner, shard_groups, session, strategy, mapping, state, state_since,
		                                last_error, last_error_at, lag_objective, account, settings, slot)
		SELECT $1, $2, $3, $4, $5, $6, $7::text::jsonb, $8, n.at, nullif($9, ''), CASE WHEN $9 <> '' THEN n.at END, $11::bigint * interval '1 microsecond', $12::text::jsonb, $13::text::jsonb, $14
		FROM (SELECT clock_timestamp() - $10::bigint * interval '1 microsecond' AS at) n
		ON CONFLICT (destination, shard_group, owner) DO UPDATE SET
			shard_groups = excluded.shard_groups, session = excluded.session, strategy = excluded.strategy, mapping = excluded.mapping,
			state_since = CASE WHEN t.state = excluded.state THEN t.state_since ELSE excluded.state_since END, state = excluded.state,
			last_error = coalesce(excluded.last_error, t.last_error), last_error_at = coalesce(excluded.last_error_at, t.last_error_at),
			lag_objective = excluded.lag_objective, slot = excluded.slot, settings = excluded.settings, updated_at = clock_timestamp(),
			account = CASE WHEN excluded.account -> 'handled_at' IS NULL AND t.account -> 'handled_at' IS NOT NULL
				THEN excluded.account || jsonb_build_object('handled_at', t.account -> 'handled_at') ELSE excluded.account END`,
		at.Destination, at.Group, w.owner, w.table.Groups, w.table.Session, w.table.Strategy, string(columns), string(c.state), c.cause,
		time.Since(c.at).Microseconds(), max(at.LagObjective, 0).Microseconds(),
		storable(conn, string(account)), storable(conn, at.Settings), w.table.Slot)
}
