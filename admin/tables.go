package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/schema"
)

// Table is the table of a destination that doesn't read the outbox.
type Table struct {
	Name     string `json:"name"`
	Strategy string `json:"strategy"`

	// Untold says what the destination's numbers leave out, and why.
	Untold []string `json:"untold,omitempty"`

	// Behind is the oldest open transaction that the strategy waits for; nil if it waits for none, or never does.
	Behind *OpenTransaction `json:"behind,omitempty"`
}

// tableRow is what a relay has written about itself and the table.
type tableRow struct {
	Destination string
	Group       int
	Groups      int
	Owner       string
	Strategy    string
	Mapping     []byte
	State       string
	StateSince  time.Time
	LastError   string
	LastErrorAt *time.Time
	Objective   int64 // microseconds
	UpdatedAt   time.Time
	Live        bool
}

// readTables adds the destinations that read tables of their own. A relay lives while it has a session: relays of such
// tables have no leases that others could see. Of several relays those that live count, or else the one that was last
// heard of.
func (r *Report) readTables(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, `
		SELECT destination, shard_group, shard_groups, owner, strategy, mapping::text::bytea, state, state_since, coalesce(last_error, ''), last_error_at,
		       (extract(epoch FROM lag_objective) * 1000000)::bigint, updated_at,
		       session IN (SELECT application_name FROM pg_stat_activity WHERE datname = current_database())
		FROM outbox.tables ORDER BY destination, shard_group, 13 DESC, updated_at DESC`)
	var list []tableRow
	if err == nil {
		list, err = pgx.CollectRows(rows, pgx.RowToStructByPos[tableRow])
	}
	if err != nil {
		return fmt.Errorf("read the states of tables: %w", err)
	}
	for _, t := range list {
		d := r.destination(t.Destination)
		if !t.Live && slices.ContainsFunc(d.Groups, func(g Group) bool { return g.Group == t.Group }) {
			continue
		}
		d.Groups = append(d.Groups, Group{Group: t.Group, Groups: t.Groups, Owner: t.Owner, Live: t.Live, State: t.State,
			StateSince: t.StateSince,
			LastError:  t.LastError, LastErrorAt: value(t.LastErrorAt), UpdatedAt: t.UpdatedAt})
		d.LagObjective = time.Duration(t.Objective) * time.Microsecond
		if d.Table != nil {
			continue
		}
		var m mapping.Mapping
		if err := json.Unmarshal(t.Mapping, &m); err != nil {
			return fmt.Errorf("read the mapping of destination %s: %w", t.Destination, err)
		}
		d.Table = &Table{Name: m.Table, Strategy: t.Strategy}
		if err := d.count(ctx, tx, m); err != nil {
			return err
		}
		if err := d.readBehind(ctx, tx); err != nil {
			return err
		}
	}
	return nil
}

// countFor bounds a count in a table of somebody else's, which may have no index for it.
const countFor = time.Second

// count counts what waits in the destination's table, and what is dead. What can't be counted is named.
func (d *Destination) count(ctx context.Context, tx pgx.Tx, m mapping.Mapping) error {
	name, err := mapping.ParseTableName(m.Table)
	if err != nil {
		return fmt.Errorf("destination %s: %w", d.Name, err)
	}
	untold := func(what, why string) { d.Table.Untold = append(d.Table.Untold, what+": "+why) }
	if m.Done.How == "" {
		untold("pending", "strategy "+d.Table.Strategy+" marks no row")
	} else if err := within(ctx, tx, func(tx pgx.Tx) error { return d.countWaiting(ctx, tx, name, m, untold) }); err != nil {
		untold("pending", err.Error())
	}
	if !m.Failure.Place() {
		untold("dead letters", "the table has no place for them")
	} else if err := within(ctx, tx, func(tx pgx.Tx) error { return d.countDead(ctx, tx) }); err != nil {
		untold("dead letters", err.Error())
	}
	return nil
}

// within runs f so that its failure doesn't fail tx, and each of its statements for a moment only.
func within(ctx context.Context, tx pgx.Tx, f func(tx pgx.Tx) error) error {
	inner, err := tx.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = inner.Rollback(context.WithoutCancel(ctx)) }() // the settings go with it
	if _, err := inner.Exec(ctx, fmt.Sprintf("SET LOCAL statement_timeout = %d", countFor.Milliseconds())); err != nil {
		return err
	}
	return f(inner)
}

// countWaiting takes rows that have failed before for held ones.
func (d *Destination) countWaiting(ctx context.Context, tx pgx.Tx, name mapping.TableName, m mapping.Mapping,
	untold func(what, why string)) error {
	column := func(name, kind string) string {
		if name == "" {
			return "NULL::" + kind
		}
		return "m." + schema.QuoteIdentifier(name) + "::" + kind
	}
	tried := "false"
	switch counted := 0; {
	case m.Failure.Attempts != "":
		if m.Claim.Counts {
			counted = 1 // the attempt that is being made
		}
		tried = fmt.Sprintf("coalesce(%s, 0) > %d", column(m.Failure.Attempts, "bigint"), counted)
	case m.Failure.Error != "":
		tried = column(m.Failure.Error, "text") + " IS NOT NULL"
	default:
		untold("failures", "no column is named for attempts or errors")
	}
	if m.CreatedAt == "" {
		untold("age of the oldest", "no column is named for the time of creation")
	}
	blocked := m.Blocked()
	switch {
	case blocked == "":
		blocked = "false"
	case tried != "false": // those behind them have the same mark
		blocked += " AND " + tried
	}
	var n, failed, blocks int64
	var oldest, waiting, since, blockedSince *time.Time
	var last string
	err := tx.QueryRow(ctx, fmt.Sprintf(`
		SELECT count(*), min(due) FILTER (WHERE due <= clock_timestamp()), min(due) FILTER (WHERE due <= clock_timestamp() AND NOT blocked),
		       count(*) FILTER (WHERE tried), min(coalesce(tried_at, due)) FILTER (WHERE tried AND NOT blocked),
		       count(*) FILTER (WHERE blocked), min(coalesce(tried_at, due)) FILTER (WHERE blocked),
		       coalesce((array_agg(error ORDER BY tried_at DESC NULLS LAST) FILTER (WHERE tried AND error IS NOT NULL))[1], '')
		FROM (SELECT greatest(%s, %s) AS due, %s AS tried, %s AS tried_at, %s AS error, coalesce(%s, false) AS blocked FROM %s m WHERE %s LIMIT %d) s`,
		column(m.CreatedAt, "timestamptz"), column(m.DeliverAt, "timestamptz"), tried, column(m.Failure.LastAttempt, "timestamptz"),
		column(m.Failure.Error, "text"), blocked, name, m.Unsettled(), countLimit+1)).
		Scan(&n, &oldest, &waiting, &failed, &since, &blocks, &blockedSince, &last)
	if err != nil {
		return err
	}
	many := n > countLimit
	d.Pending, d.Oldest = Count{n - failed, many}, value(oldest)
	d.Held = Held{Messages: Count{failed, many}, Lanes: failed, LastError: last, FailingSince: value(since), waiting: value(waiting),
		Blocked: blocks, BlockedSince: value(blockedSince)}
	return nil
}
