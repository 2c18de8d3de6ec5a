package health

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/mapping"
)

// OwnTable is what a relay process knows of its destination with a table of its own. It has the content of
// outbox.tables, for databases where that table doesn't exist or can't be written to.
type OwnTable struct {
	Destination  string
	Group        int
	Groups       int
	Owner        string
	Strategy     string
	Mapping      mapping.Mapping
	LagObjective time.Duration
	Settings     admin.Settings
	Account      mapping.Account // by the clock of this process
	BeganAt      time.Time       // likewise
}

// tableRow is a row of outbox.tables, which a relay has written.
type tableRow struct {
	Destination string
	Group       int
	Groups      int
	Owner       string
	Strategy    string
	Mapping     string
	State       string
	StateSince  time.Time
	LastError   string
	LastErrorAt *time.Time
	Objective   int64 // microseconds
	UpdatedAt   time.Time
	Live        bool
	Account     string
	BeganAt     time.Time
	Settings    string

	mapping  mapping.Mapping
	account  mapping.Account
	settings admin.Settings
}

// betweenSessions is longer than a relay pauses after a session that has failed; it writes each failure.
const betweenSessions = "75 s"

// readTables adds the destinations that read tables of their own. A relay lives while it has a session, or pauses
// after one that has failed: relays of such tables have no leases that others could see. Of several relays those that
// live count, or else the one that was last heard of.
func (r *Report) readTables(ctx context.Context, tx pgx.Tx, own []OwnTable) error {
	rows, err := tx.Query(ctx, `
		SELECT destination, shard_group, shard_groups, owner, strategy, mapping::text, state, state_since, coalesce(last_error, ''), last_error_at,
		       (extract(epoch FROM lag_objective) * 1000000)::bigint, updated_at,
		       state <> 'waiting' AND session IN (SELECT application_name FROM pg_stat_activity WHERE datname = current_database())
		       OR state = 'broken' AND updated_at > clock_timestamp() - interval '`+betweenSessions+`', account::text, began_at, settings::text
		FROM outbox.tables ORDER BY destination, shard_group, 13 DESC, updated_at DESC`)
	var list []tableRow
	if err == nil {
		list, err = pgx.CollectRows(rows, pgx.RowToStructByPos[tableRow])
	}
	if err != nil {
		return fmt.Errorf("read the states of tables: %w", err)
	}
	for i := range list {
		if err := list[i].parse(); err != nil {
			return err
		}
	}
	return r.countTables(ctx, tx, r.addOwn(list, own), true)
}

func (t *tableRow) parse() error {
	if err := json.Unmarshal([]byte(t.Mapping), &t.mapping); err != nil {
		return fmt.Errorf("read the mapping of destination %s: %w", t.Destination, err)
	}
	if err := json.Unmarshal([]byte(t.Account), &t.account); err != nil {
		return fmt.Errorf("read the account of destination %s: %w", t.Destination, err)
	}
	var err error
	t.settings, err = admin.ParseSettings(t.Settings)
	return err
}

// addOwn adds what this process knows of its own work to what relays have written: it knows it earlier.
func (r *Report) addOwn(list []tableRow, own []OwnTable) []tableRow {
	ahead := time.Until(r.At) // the database's clock
	for _, t := range own {
		row := tableRow{Destination: t.Destination, Group: t.Group, Groups: t.Groups, Owner: t.Owner, Strategy: t.Strategy,
			Objective: max(t.LagObjective, 0).Microseconds(), UpdatedAt: r.At, Live: true, BeganAt: t.BeganAt.Add(ahead),
			State: "flowing", mapping: t.Mapping, settings: t.Settings, account: t.Account.Shifted(ahead)}
		i := slices.IndexFunc(list, func(l tableRow) bool {
			return l.Destination == t.Destination && l.Group == t.Group && l.Owner == t.Owner
		})
		if i >= 0 {
			if row.account.HandledAt.IsZero() { // nothing since it was started
				row.account.HandledAt = list[i].account.HandledAt
			}
			list[i].account, list[i].Live = row.account, true
			continue
		}
		list = append([]tableRow{row}, list...) // those that live are first
	}
	return list
}

// countTables adds a destination for each table that relays read, and counts what waits in the table. schema means that
// the outbox's tables can be read.
func (r *Report) countTables(ctx context.Context, tx pgx.Tx, list []tableRow, schema bool) error {
	for i := range list {
		t := &list[i]
		d := r.destination(t.Destination)
		if !t.Live && slices.ContainsFunc(d.Groups, func(g Group) bool { return g.Group == t.Group }) {
			continue
		}
		d.Groups = append(d.Groups, Group{Group: t.Group, Groups: t.Groups, Owner: t.Owner, Live: t.Live, State: t.State,
			StateSince: t.StateSince,
			LastError:  t.LastError, LastErrorAt: admin.Value(t.LastErrorAt), UpdatedAt: t.UpdatedAt})
		d.LagObjective = time.Duration(t.Objective) * time.Microsecond
		if d.Table != nil {
			continue
		}
		d.Rate = t.settings.Rate
		d.Table = &Table{Name: t.mapping.Table, Strategy: t.Strategy}
		account, since := accounts(list, d.Name)
		if err := d.count(ctx, tx, t.mapping, account, since, schema); err != nil {
			return err
		}
		if _, _, late := r.late(d); late && t.mapping.Done.How != "" && d.Table.Uncounted == "" {
			if err := d.findLocked(ctx, tx, t.mapping); err != nil {
				d.Table.Untold = append(d.Table.Untold, "whether a transaction has locked rows: "+err.Error())
			}
		}
	}
	return nil
}

// accounts sums up what the relays of a destination know, and since when rows are their business that none of them has
// handled. What a relay that is gone has held is waiting again.
func accounts(list []tableRow, destination string) (sum mapping.Account, since time.Time) {
	var began time.Time
	for i := range list {
		t := &list[i]
		if t.Destination != destination {
			continue
		}
		began = earliest(began, t.BeganAt)
		if t.account.HandledAt.After(sum.HandledAt) {
			sum.HandledAt = t.account.HandledAt
		}
		if !t.Live {
			continue
		}
		a := &t.account
		sum.Held, sum.Lanes, sum.Blocked = sum.Held+a.Held, sum.Lanes+a.Lanes, sum.Blocked+a.Blocked
		sum.LastError = cmp.Or(sum.LastError, a.LastError)
		sum.BlockedSince, sum.FailingSince = earliest(sum.BlockedSince, a.BlockedSince), earliest(sum.FailingSince, a.FailingSince)
		sum.Oldest, sum.Waiting = earliest(sum.Oldest, a.Oldest), earliest(sum.Waiting, a.Waiting)
		sum.NextRetry = earliest(sum.NextRetry, a.NextRetry)
	}
	since = began
	if handled := sum.HandledAt.Add(handledWithin); !sum.HandledAt.IsZero() && handled.After(since) {
		since = handled
	}
	return sum, since
}

// count counts what waits in the destination's table, and what is dead. What can't be counted is named.
func (d *Destination) count(ctx context.Context, tx pgx.Tx, m mapping.Mapping, account mapping.Account, since time.Time,
	schema bool) error {
	name, err := mapping.ParseTableName(m.Table)
	if err != nil {
		return fmt.Errorf("destination %s: %w", d.Name, err)
	}
	d.Table.RelayAlone, d.Table.counted = m.Blocked() == "", []string{d.Table.Name}
	untold := func(what, why string) { d.Table.Untold = append(d.Table.Untold, what+": "+why) }
	uncounted := func(err error) {
		untold("pending", err.Error())
		d.Table.Uncounted = err.Error()
	}
	marksNone := "strategy " + d.Table.Strategy + " marks no row, so the rows count that "
	switch {
	case d.Table.Strategy == mapping.XMin || d.Table.Strategy == mapping.Serial:
		untold("pending", marksNone+fmt.Sprintf("no offset has reached, among the %d newest", newestRows))
		d.Table.counted = append(d.Table.counted, m.Offsets.Table)
		err = bounded(ctx, tx, func(tx pgx.Tx) error { return d.countUnread(ctx, tx, name, m, account.Held > 0) })
	case m.Done.How == "":
		untold("pending", marksNone+"were written since the relay last settled one")
	default:
		err = bounded(ctx, tx, func(tx pgx.Tx) error { return d.countWaiting(ctx, tx, name, m, untold) })
	}
	if err != nil {
		uncounted(err)
	}
	d.account(account)
	switch {
	case m.CreatedAt == "":
		untold("age of the oldest", "no column is named for the time of creation")
	case d.LagObjective > 0 && m.Done.How != mapping.DoneDelete: // a row that is there waits
		err := bounded(ctx, tx, func(tx pgx.Tx) error { return d.countPassed(ctx, tx, name, m, since, untold) })
		if err != nil && d.Table.Uncounted == "" {
			uncounted(err)
		}
	}
	if !m.Failure.Place() {
		untold("dead letters", "the table has no place for them")
	} else if err := bounded(ctx, tx, func(tx pgx.Tx) error { return d.countDead(ctx, tx, m, schema) }); err != nil {
		untold("dead letters", err.Error())
	}
	return nil
}

// account adds what relays report about the rows that they hold.
func (d *Destination) account(a mapping.Account) {
	h := &d.Held
	if more := a.Held - h.Messages.N; more > 0 { // those behind one that has failed are not marked, and were counted as pending
		h.Messages.N = a.Held
		d.Pending.N = max(d.Pending.N-more, 0)
	}
	h.Lanes, h.Blocked = max(h.Lanes, a.Lanes), max(h.Blocked, a.Blocked)
	if a.Lanes > 0 {
		h.Lanes = a.Lanes
	}
	h.NextRetry, h.LastError = earliest(h.NextRetry, a.NextRetry), cmp.Or(a.LastError, h.LastError)
	h.BlockedSince, h.FailingSince = earliest(h.BlockedSince, a.BlockedSince), earliest(h.FailingSince, a.FailingSince)
	h.Oldest, h.waiting = earliest(h.Oldest, a.Oldest), earliest(h.waiting, a.Waiting)
	d.Oldest = earliest(d.Oldest, a.Oldest)
}
