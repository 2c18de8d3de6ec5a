package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/headers"
	"github.com/pgoutbox/outbox/route"
	"github.com/pgoutbox/outbox/schema"
)

// Cursor is a row of outbox.cursors, with its lease compared with the database's clock.
type Cursor struct {
	Destination string
	Group       int
	Groups      int
	Epoch       int64
	Owner       string
	Live        bool
	LeaseUntil  *time.Time // nil: never leased
	Delivered   int64
	State       string
	StateSince  time.Time
	LastError   string
	LastErrorAt *time.Time
	UpdatedAt   time.Time
	Objective   int64 // microseconds
	Foreign     bool  // written in another cluster, or in a history that was undone: it means nothing here

	Prev   string     // pg_snapshot
	First  string     // the oldest open window, or prev
	LastID int64      // the last settled id in it
	LastAt *time.Time // when that message was written; nil: unknown

	Stored     string // Settings as they are stored
	SettingsAt time.Time

	Settings Settings `db:"-"`
}

// ReadCursors reads all cursors, by destination and shard group.
func ReadCursors(ctx context.Context, tx pgx.Tx) ([]Cursor, error) {
	rows, err := tx.Query(ctx, `
		SELECT destination, shard_group, shard_groups, epoch, coalesce(owner, ''), `+schema.LeasedSQL+`,
		       nullif(lease_until, '-infinity'), delivered, state, state_since, coalesce(last_error, ''), last_error_at, updated_at, (extract(epoch FROM lag_objective) * 1000000)::bigint,
		       system_identifier <> (SELECT s.system_identifier FROM pg_control_system() s)
		       OR pg_snapshot_xmax(prev) > pg_snapshot_xmax(pg_current_snapshot()),
		       prev::text, coalesce(windows[1], prev)::text, CASE WHEN cardinality(windows) = 0 THEN 0 ELSE last_id END, last_at,
		       settings::text, settings_at
		FROM outbox.cursors ORDER BY destination, shard_group`)
	if err != nil {
		return nil, fmt.Errorf("read cursors: %w", err)
	}
	cursors, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Cursor])
	for i := range cursors {
		if err == nil {
			cursors[i].Settings, err = ParseSettings(cursors[i].Stored)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read cursors: %w", err)
	}
	return cursors, nil
}

// WithTable is [schema.WithTable] for the table that the cursor's destination reads.
func (c *Cursor) WithTable(sql string) string {
	return schema.WithTableOf(c.Destination, sql)
}

// Args returns the cursor's position and shards, as statements take them that count what it has not passed.
func (c *Cursor) Args() []any {
	first, last := schema.Shards(c.Group, c.Groups)
	return []any{c.Prev, c.First, c.LastID, first, last}
}

// SelectsTopic reports whether the destination selects messages of a topic and an event type, or some of them. One
// whose selection isn't known may.
func (c *Cursor) SelectsTopic(topic, eventType string) bool {
	if strings.HasPrefix(c.Destination, schema.InboxPrefix) {
		return false
	}
	if c.Settings.Selects == nil {
		return true
	}
	f := *c.Settings.Selects
	f.Any = slices.Clone(f.Any)
	for i := range f.Any { // what isn't known here may be so
		f.Any[i] = route.Match{Topic: f.Any[i].Topic, EventType: f.Any[i].EventType}
	}
	return f.Wants(&outbox.Message{Topic: topic, EventType: eventType})
}

// HeadersOf reads headers as a relay does; what it can't read decides nothing here.
func HeadersOf(raw json.RawMessage) []outbox.Header {
	if raw == nil {
		return nil
	}
	list, _ := headers.Parse(string(raw))
	return list
}
