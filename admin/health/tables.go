package health

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/jobs"
	"github.com/pgoutbox/outbox/internal/printed"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/schema"
)

// Table is the table of a destination that doesn't read the outbox.
type Table struct {
	Name     string `json:"name"`
	Strategy string `json:"strategy"`

	// Untold says what the destination's numbers leave out, and why.
	Untold []string `json:"untold,omitempty"`

	// Uncounted is why it isn't known how many rows wait; "" if it is, or if the strategy never tells.
	Uncounted string `json:"uncounted,omitempty"`

	// Passed counts rows, among the newest, that the mapping takes for delivered, or for none of its states, and that
	// no relay can have handled: since they were written none has settled a row. PassedSince is when the oldest was
	// written. Rows younger than the lag objective don't count.
	Passed      admin.Count `json:"passed_over,omitzero"`
	PassedSince time.Time   `json:"passed_over_since,omitzero"`

	// RelayAlone means that no column tells which rows are blocked: the relay alone knows, and tries them again when
	// it is started again.
	RelayAlone bool `json:"blocked_known_to_relay_alone,omitempty"`

	// Behind is an open transaction that rows wait for; nil if none is known. Kept counts these rows, among the newest,
	// and KeptSince is from when on the oldest might have been delivered; zero: unknown. Locked means that the
	// transaction has locked them, which is looked for once rows are late. Otherwise the strategy passes none before it
	// ends.
	Behind    *OpenTransaction `json:"behind,omitempty"`
	Kept      admin.Count      `json:"kept_behind,omitzero"`
	KeptSince time.Time        `json:"kept_behind_since,omitzero"`
	Locked    bool             `json:"locked_by_it,omitempty"`

	counted []string // the tables that are read to tell what waits
}

// OwnTable is what a relay knows of a destination with a table of its own, as it would write it to outbox.tables: for
// where that isn't there, or may not be written to.
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

// tableRow is what a relay has written about itself and the table.
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
	return r.countTables(ctx, tx, r.known(list, own), true)
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

// known adds to a list of what relays have written what this process knows of its own work: it knows it earlier.
func (r *Report) known(list []tableRow, own []OwnTable) []tableRow {
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

// countTables makes destinations of what relays know, and counts what waits in their tables. schema means that the
// outbox's tables can be read.
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
		sum.LastError = admin.OrElse(sum.LastError, a.LastError)
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

const (
	// countFor bounds a count in a table of somebody else's, which may have no index for it.
	countFor = time.Second

	// handledWithin is for how long after the time that a relay has written it may have settled more: it writes that
	// every ten seconds, and what it has not written is lost when it dies.
	handledWithin = 30 * time.Second

	// newestRows is among how many rows, the newest, those are counted that no relay has handled.
	newestRows = 1000
)

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
		err = within(ctx, tx, func(tx pgx.Tx) error { return d.countUnread(ctx, tx, name, m, account.Held > 0) })
	case m.Done.How == "":
		untold("pending", marksNone+"were written since the relay last settled one")
	default:
		err = within(ctx, tx, func(tx pgx.Tx) error { return d.countWaiting(ctx, tx, name, m, untold) })
	}
	if err != nil {
		uncounted(err)
	}
	d.account(account)
	switch {
	case m.CreatedAt == "":
		untold("age of the oldest", "no column is named for the time of creation")
	case d.LagObjective > 0 && m.Done.How != mapping.DoneDelete: // a row that is there waits
		err := within(ctx, tx, func(tx pgx.Tx) error { return d.countPassed(ctx, tx, name, m, since, untold) })
		if err != nil && d.Table.Uncounted == "" {
			uncounted(err)
		}
	}
	if !m.Failure.Place() {
		untold("dead letters", "the table has no place for them")
	} else if err := within(ctx, tx, func(tx pgx.Tx) error { return d.countDead(ctx, tx, m, schema) }); err != nil {
		untold("dead letters", err.Error())
	}
	return nil
}

// account adds what relays know of what they hold.
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
	h.NextRetry, h.LastError = earliest(h.NextRetry, a.NextRetry), admin.OrElse(a.LastError, h.LastError)
	h.BlockedSince, h.FailingSince = earliest(h.BlockedSince, a.BlockedSince), earliest(h.FailingSince, a.FailingSince)
	h.Oldest, h.waiting = earliest(h.Oldest, a.Oldest), earliest(h.waiting, a.Waiting)
	d.Oldest = earliest(d.Oldest, a.Oldest)
}

// smallTable is up to how many bytes a table is read as a whole to find its newest rows.
const smallTable = 64 << 20

// newestSQL tells how the newest rows of a table ($1) are found: by the column of their creation ($2) if an index leads
// with it. Without one, a number ($3) grows with time too, and another id tells nothing, so that a small table is read.
const newestSQL = `
SELECT EXISTS (SELECT FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am am ON am.oid = c.relam
	JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
	WHERE i.indrelid = t.oid AND a.attname = $2 AND i.indpred IS NULL AND i.indisvalid AND am.amname = 'btree')
OR greatest(pg_relation_size(t.oid), (SELECT sum(pg_relation_size(relid)) FROM pg_partition_tree(t.oid))) <= $4::bigint
	AND NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = t.oid AND a.attname = $3
		AND a.atttypid IN ('smallint'::regtype, 'integer'::regtype, 'bigint'::regtype))
FROM (SELECT $1::text::regclass AS oid) t`

// countPassed looks at the newest rows for those that no relay has handled and that yet don't wait by the mapping. Of a
// strategy that marks no row, these are what waits. A status that the mapping doesn't name is told, and no more:
// writers may have some for rows that aren't to be delivered.
func (d *Destination) countPassed(ctx context.Context, tx pgx.Tx, name mapping.TableName, m mapping.Mapping, since time.Time,
	untold func(what, why string)) error {
	waits, dead, status := "false", "false", "NULL::text"
	var known []string // nil: rows have no status
	if m.Done.How != "" {
		waits = m.Unsettled()
	}
	if m.Done.How == mapping.DoneStatus {
		status = columnOf(m.Done.Column, "text")
		known = []string{m.Done.Waiting, m.Done.Value}
		if m.Failure.FailedValue != "" {
			dead = "m." + schema.QuoteIdentifier(m.Done.Column) + " = " + schema.QuoteLiteral(m.Failure.FailedValue)
			known = append(known, m.Failure.FailedValue)
		}
		if m.Claim.Status != "" {
			known = append(known, m.Claim.Status)
		}
	}
	newest, err := newestBy(ctx, tx, name, m)
	if err != nil {
		return err
	}
	var n, odd int64
	var oldest *time.Time
	var example string
	err = tx.QueryRow(ctx, fmt.Sprintf(`
		SELECT count(*) FILTER (WHERE passed), min(due) FILTER (WHERE passed), count(*) FILTER (WHERE odd AND NOT passed),
			coalesce(min(status) FILTER (WHERE odd AND NOT passed), 'NULL')
		FROM (SELECT *, coalesce(created > $1, false) AS passed, $3::text[] IS NOT NULL AND (status = ANY ($3)) IS NOT TRUE AS odd FROM (
			SELECT %s AS created, %s AS due, coalesce(%s, false) AS waits, coalesce(%s, false) AS dead, %s AS status
			FROM %s m WHERE %s IS NOT NULL ORDER BY %[7]s DESC LIMIT %[8]d) newest) s
		WHERE NOT waits AND NOT dead AND due <= clock_timestamp() - $2::bigint * interval '1 microsecond'`,
		columnOf(m.CreatedAt, "timestamptz"), dueOf(m), waits, dead, status, name, newest, newestRows),
		since, d.LagObjective.Microseconds(), known).Scan(&n, &oldest, &odd, &example)
	if err != nil {
		return err
	}
	if odd > 0 {
		untold("whether all rows were delivered", fmt.Sprintf("%s a status that the mapping does not name, such as %q, "+
			"and no relay delivers such rows", printed.Many(odd, "of the newest rows has", "of the newest rows have"), example))
	}
	found := admin.Count{N: n, Estimated: n == newestRows}
	if m.Done.How != "" {
		d.Table.Passed, d.Table.PassedSince = found, admin.Value(oldest)
		return nil
	}
	d.waits(found, admin.Value(oldest))
	return nil
}

// waits adds what is found of the rows that wait, of a strategy that marks none.
func (d *Destination) waits(found admin.Count, oldest time.Time) {
	if found.N > d.Pending.N {
		d.Pending = found
	}
	d.Oldest, d.Held.waiting = earliest(d.Oldest, oldest), earliest(d.Held.waiting, oldest)
}

// newestBy is the column by which the newest rows are found: see newestSQL.
func newestBy(ctx context.Context, tx pgx.Tx, name mapping.TableName, m mapping.Mapping) (string, error) {
	var byAge bool
	err := tx.QueryRow(ctx, newestSQL, name.String(), m.CreatedAt, m.ID, smallTable).Scan(&byAge)
	if byAge {
		return "m." + schema.QuoteIdentifier(m.CreatedAt), err
	}
	return "m." + schema.QuoteIdentifier(m.ID), err
}

// dueOf is from when on a row of the table m may be delivered.
func dueOf(m mapping.Mapping) string {
	return fmt.Sprintf("greatest(%s, %s)", columnOf(m.CreatedAt, "timestamptz"), columnOf(m.DeliverAt, "timestamptz"))
}

// columnOf is a column of the table m as a type; NULL if none is named.
func columnOf(name, kind string) string {
	if name == "" {
		return "NULL::" + kind
	}
	return "m." + schema.QuoteIdentifier(name) + "::" + kind
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
	tried := "false"
	switch counted := 0; {
	case m.Failure.Attempts != "":
		if m.Claim.Counts {
			counted = 1 // the attempt that is being made
		}
		tried = fmt.Sprintf("coalesce(%s, 0) > %d", columnOf(m.Failure.Attempts, "bigint"), counted)
	case m.Failure.Error != "":
		tried = columnOf(m.Failure.Error, "text") + " IS NOT NULL"
	default:
		untold("failures", "no column is named for attempts or errors")
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
		FROM (SELECT %s AS due, %s AS tried, %s AS tried_at, %s AS error, coalesce(%s, false) AS blocked FROM %s m WHERE %s LIMIT %d) s`,
		dueOf(m), tried, columnOf(m.Failure.LastAttempt, "timestamptz"),
		columnOf(m.Failure.Error, "text"), blocked, name, m.Unsettled(), admin.CountLimit+1)).
		Scan(&n, &oldest, &waiting, &failed, &since, &blocks, &blockedSince, &last)
	if err != nil {
		return err
	}
	many := n > admin.CountLimit
	d.Pending, d.Oldest = admin.Count{N: n - failed, Estimated: many}, admin.Value(oldest)
	d.Held = Held{Messages: admin.Count{N: failed, Estimated: many}, Lanes: failed, LastError: last,
		FailingSince: admin.Value(since), waiting: admin.Value(waiting),
		Blocked: blocks, BlockedSince: admin.Value(blockedSince)}
	return nil
}

// countDead counts the dead letters of the destination's table. Those that are more than an operator has acknowledged
// are new: all, where the outbox has no table for that.
func (d *Destination) countDead(ctx context.Context, tx pgx.Tx, m mapping.Mapping, acknowledged bool) error {
	rows, err := jobs.DeadRowsOf(ctx, tx, d.Table.Strategy, m, false)
	if err != nil {
		return err
	}
	var known int64
	var knownAt *time.Time
	if acknowledged {
		err = tx.QueryRow(ctx, `SELECT coalesce(sum(messages), 0)::bigint, max(acknowledged_at) FROM outbox.tables_acknowledged WHERE destination = $1`,
			d.Name).Scan(&known, &knownAt)
		if err != nil {
			return err
		}
	}
	var n int64
	var since, newest *time.Time
	var last string
	err = tx.QueryRow(ctx, fmt.Sprintf(`
		SELECT count(*), min(at) FILTER (WHERE at > coalesce($1, '-infinity'::timestamptz)), max(at),
		       coalesce((array_agg(error ORDER BY at DESC NULLS LAST) FILTER (WHERE error IS NOT NULL))[1], '')
		FROM (SELECT %s AS at, %s AS error FROM %s m WHERE %s LIMIT %d) s`,
		rows.AtSQL(), rows.ErrorSQL(), rows.In.TableName(), rows.Where, known+admin.CountLimit+1), knownAt).Scan(&n, &since, &newest, &last)
	if err != nil {
		return err
	}
	more := n > known+admin.CountLimit
	d.Dead = Dead{Messages: admin.Count{N: n, Estimated: more}, Newest: admin.Value(newest),
		New: admin.Count{N: max(n-known, 0), Estimated: more}}
	if d.Dead.New.N > 0 {
		d.Dead.Since, d.Dead.LastError = admin.Value(since), last
	}
	return nil
}
