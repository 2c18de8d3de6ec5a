// Package health tells how the outbox is: the state of every destination with one verdict, its backlog, what keeps
// segments and the inbox, and what the doctor finds.
package health

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/jobs"
	"github.com/pgoutbox/outbox/internal/sqlstate"
	"github.com/pgoutbox/outbox/schema"
)

// Report is the state of the outbox at one moment. Its JSON is a stable contract.
type Report struct {
	At       time.Time `json:"at"`
	Database string    `json:"database"`

	// Verdict is the worst of the destinations'.
	Verdict Verdict `json:"verdict"`

	Destinations []Destination `json:"destinations"`
	// Waiting is what is in outbox.messages while no relay has ever read it: there is no destination yet, except those
	// of a stored inbox. WaitingSince is when the oldest of these messages was inserted.
	Waiting      admin.Count `json:"waiting,omitzero"`
	WaitingSince time.Time   `json:"waiting_since,omitzero"`

	Relays   []Relay   `json:"relays"`
	Segments []Segment `json:"segments"`
	// Open lists transactions that have written messages, perhaps, and have not ended: what they wrote
	// comes when they commit, and they keep nothing else back. Longest first, at most 10.
	Open []OpenTransaction `json:"open_transactions"`
	// Holders lists transactions that relays wait for, longest first.
	Holders []Holder `json:"holders,omitempty"`
	// Unreplicated are the commits that wait for a synchronous standby.
	Unreplicated Unreplicated `json:"unreplicated,omitzero"`
	// Unindexed are the statements that make the indexes which are missing.
	Unindexed []string `json:"unindexed,omitempty"`
	// Unselected lists topics with messages of the last day that no destination selected, as far as the
	// relay knew that passed them over. Most messages first, at most 10.
	Unselected []Unselected `json:"unselected,omitempty"`

	// Jobs are those that have not ended, the newest first, at most 20.
	Jobs []jobs.Job `json:"jobs,omitempty"`

	// Altered says which tables are not what the migrations made, as a segment that is detached, and what to run.
	// Relays refuse to work then.
	Altered string `json:"altered,omitempty"`

	unread string // why it isn't known how things are now; "" if it is
}

// Unselected counts messages of a topic that no destination selects.
type Unselected struct {
	Topic string `json:"topic"`
	// Messages counts since First; a crash of the relay may count some twice.
	Messages  int64     `json:"messages"`
	EventType string    `json:"event_type,omitempty"` // of the latest
	MessageID string    `json:"message_id"`           // of the latest
	Relay     string    `json:"relay"`                // that saw it
	First     time.Time `json:"first"`
	Last      time.Time `json:"last"`
}

// Destination is the sum of a destination's shard groups.
type Destination struct {
	Name    string  `json:"name"`
	Verdict Verdict `json:"verdict"`

	Groups  []Group     `json:"shard_groups"`
	Pending admin.Count `json:"pending"`
	// Oldest is when the oldest message was inserted that is pending, held or blocked, or from when on it may be
	// delivered.
	Oldest    time.Time `json:"oldest_pending,omitzero"`
	Delivered int64     `json:"delivered"`

	// LagObjective is how long a message may wait before the destination lags; zero: as long as it likes.
	LagObjective time.Duration `json:"lag_objective_ns,omitempty"`

	// Rate is how many messages a second the relays' configuration allows; zero: any number.
	Rate float64 `json:"rate,omitempty"`

	Held Held `json:"held"`
	Dead Dead `json:"dead_letters"`

	// Controls are the pauses of the destination, or of parts of it, and the bound on its rate.
	Controls []admin.Control `json:"controls,omitempty"`

	// Table is nil for a destination that reads the outbox. A row of the table that has failed counts as held, in a
	// lane of its own.
	Table *Table `json:"table,omitempty"`

	// Broker is nil for a destination whose broker isn't known.
	Broker *Broker `json:"broker,omitempty"`

	// Slot is nil for a destination that has never been read by the write-ahead log.
	Slot *Slot `json:"replication,omitempty"`
}

// Group is one cursor and its lease.
type Group struct {
	Group       int       `json:"shard_group"`
	Groups      int       `json:"shard_groups"`
	Owner       string    `json:"owner,omitempty"`
	Live        bool      `json:"lease_live"`
	LeaseUntil  time.Time `json:"lease_until,omitzero"`
	Epoch       int64     `json:"epoch"`
	State       string    `json:"state"`
	StateSince  time.Time `json:"state_since"`
	LastError   string    `json:"last_error,omitempty"`
	LastErrorAt time.Time `json:"last_error_at,omitzero"`
	UpdatedAt   time.Time `json:"updated_at"`
	// Foreign means that the cursor was written in another cluster, before a dump was restored here: its
	// backlog can't be told, and relays refuse it.
	Foreign bool        `json:"foreign,omitempty"`
	Pending admin.Count `json:"pending"`
	Oldest  time.Time   `json:"oldest_pending,omitzero"`
}

// Recovered reports whether the relay has worked again since its last error, so that what the error says to do is done.
func (g *Group) Recovered() bool { return g.Live && g.State == "flowing" }

// Held counts messages that wait outside the outbox's order: for a retry, behind one that does, for
// their delivery time, or for an operator.
type Held struct {
	Messages admin.Count `json:"messages"`
	Lanes    int64       `json:"lanes"`
	Blocked  int64       `json:"blocked_lanes"`
	Delayed  int64       `json:"delayed_lanes,omitempty"` // that wait for a delivery time, and for nothing else

	// NextRetry is when the next lane is due; zero if none is.
	NextRetry time.Time `json:"next_retry,omitzero"`
	LastError string    `json:"last_error,omitempty"`

	// Oldest is when the oldest was inserted, or from when on it might be delivered; zero if there is none. A lane that
	// waits for such a time doesn't count.
	Oldest  time.Time `json:"oldest,omitzero"`
	waiting time.Time // the same without lanes that are blocked or paused

	// BlockedSince is when the first lane was blocked; zero if none is.
	BlockedSince time.Time `json:"blocked_since,omitzero"`

	// FailingSince is when the oldest of those that have failed, and will be tried again, was set aside; zero if none
	// has.
	FailingSince time.Time `json:"failing_since,omitzero"`
}

// Dead counts dead letters.
type Dead struct {
	Messages admin.Count      `json:"messages"`
	Reasons  map[string]int64 `json:"reasons,omitempty"`
	Newest   time.Time        `json:"newest,omitzero"`

	// New counts those that no operator has acknowledged, Since is when the oldest of them died, and LastError is that
	// of the newest.
	New       admin.Count `json:"new"`
	Since     time.Time   `json:"since,omitzero"`
	LastError string      `json:"last_error,omitempty"`
}

// Relay is a running instance, or one that went without a word.
type Relay struct {
	Name        string    `json:"name"`
	Host        string    `json:"host"`
	PID         int       `json:"pid"`
	Version     string    `json:"version"`
	StartedAt   time.Time `json:"started_at"`
	HeartbeatAt time.Time `json:"heartbeat_at"`
	Live        bool      `json:"live"`

	// User is the role of its sessions; if it has none, that of its last registration. Lacks are the rights that the
	// role needs and doesn't have. Barred is why the role can't log in, such as "may not log in"; "" if it may.
	User   string   `json:"user,omitempty"`
	Lacks  []string `json:"lacks,omitempty"`
	Barred string   `json:"barred,omitempty"`
	// ClockAhead is the relay's clock less the database's, as of its last heartbeat, in whole seconds.
	ClockAhead time.Duration `json:"clock_ahead_ns,omitempty"`

	// Owns names the destinations that it has a lease of, with the shard group if there are several: "kafka",
	// "kafka/2".
	Owns []string `json:"owns,omitempty"`
}

// Segment is a part of outbox.messages, which is emptied at once when every cursor has passed it.
type Segment struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
	// NeededBy names the destinations that have not passed all of it.
	NeededBy []string `json:"needed_by,omitempty"`
}

// OpenTransaction is a writer that has not ended.
type OpenTransaction struct {
	PID         int       `json:"pid,omitempty"`      // 0 for a prepared transaction
	Prepared    string    `json:"prepared,omitempty"` // its gid
	User        string    `json:"user,omitempty"`
	Application string    `json:"application,omitempty"`
	State       string    `json:"state,omitempty"`
	Since       time.Time `json:"since,omitzero"` // zero if the role may not see it
	Query       string    `json:"query,omitempty"`

	age int // in transactions that have begun since; 0: it wasn't asked for
}

// liveness is how old a heartbeat may be, in seconds. Relays send one every third of a lease, which lasts a few
// seconds; one with longer leases is known by these. One that is as much in the future was sent before the clock was
// set back.
const liveness = "30"

// Status reads the whole state in one snapshot. It needs the rights of a viewer; with pg_read_all_stats
// it also tells what open transactions of other roles do. If its tables are locked, the verdict says so, and who has
// locked them.
func Status(ctx context.Context, db admin.DB) (*Report, error) {
	return StatusWith(ctx, db, nil, false)
}

// StatusWith is Status for a relay, which knows of its own tables what it may not have written. With alone, it reads no
// outbox: where that isn't installed, or can't be read, the report has the relay's own tables and nothing else.
func StatusWith(ctx context.Context, db admin.DB, own []OwnTable, alone bool) (*Report, error) {
	r, err := status(ctx, db, own, alone)
	if err == nil || !alone || !absent(err) {
		return r, err
	}
	r = &Report{}
	err = admin.Read(ctx, db, func(tx pgx.Tx) error {
		if err := r.readClock(ctx, tx); err != nil {
			return err
		}
		return r.countTables(ctx, tx, r.known(nil, own), false)
	})
	if err != nil {
		return nil, fmt.Errorf("read the state of the tables: %w", err)
	}
	r.judge(allRules)
	return r, nil
}

// absent reports whether the outbox isn't installed here, is of another version, or isn't this role's to read.
func absent(err error) bool {
	switch sqlstate.Of(err) {
	case "42501", "42P01", "3F000", "42703", "42883":
		return true
	}
	return false
}

func status(ctx context.Context, db admin.DB, own []OwnTable, alone bool) (*Report, error) {
	r := &Report{}
	err := admin.Read(ctx, db, func(tx pgx.Tx) error {
		if err := admin.PreferIndexes(ctx, tx); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL lock_timeout = %d", awaitLocks.Milliseconds())); err != nil {
			return err
		}
		if err := r.readClock(ctx, tx); err != nil {
			return err
		}
		if err := r.readHolders(ctx, tx); err != nil {
			return err
		}
		if slices.ContainsFunc(r.Holders, func(h Holder) bool { return h.Table }) {
			return errLocked
		}
		err := schema.Intact(ctx, tx)
		if errors.Is(err, schema.ErrSegments) {
			r.Altered = err.Error()
		} else if err != nil {
			return err
		}
		cursors, err := admin.ReadCursors(ctx, tx)
		if err != nil {
			return err
		}
		if err := r.readDestinations(ctx, tx, cursors, own); err != nil {
			return err
		}
		if err := r.readWaiting(ctx, tx); err != nil {
			return err
		}
		if err := r.readSegments(ctx, tx, cursors); err != nil {
			return err
		}
		if r.Unindexed, err = schema.Unindexed(ctx, tx); err != nil {
			return err
		}
		if err := r.readRelays(ctx, tx); err != nil {
			return err
		}
		if err := r.readRights(ctx, tx); err != nil {
			return err
		}
		if err := r.readUnselected(ctx, tx, cursors); err != nil {
			return err
		}
		if r.Jobs, err = jobs.Read(ctx, tx, `state IN ('running', 'undoing')`, 20); err != nil {
			return fmt.Errorf("read the jobs: %w", err)
		}
		return r.readOpen(ctx, tx)
	})
	if alone && absent(err) {
		return nil, err
	}
	if err != nil {
		known, failure := excused(ctx, db, err) // what prevents it as well has been said by err
		switch {
		case known != nil:
			return known, nil
		case failure == nil && errors.Is(err, errLocked):
			return status(ctx, db, own, alone) // the lock is gone since
		}
		return nil, fmt.Errorf("read the outbox's state: %w", err)
	}
	r.judge(allRules)
	return r, nil
}

func (r *Report) readDestinations(ctx context.Context, tx pgx.Tx, cursors []admin.Cursor, own []OwnTable) error {
	for i := range cursors {
		c := &cursors[i]
		b, err := ReadBacklog(ctx, tx, c)
		if err != nil {
			return err
		}
		d := r.destination(c.Destination)
		d.Groups = append(d.Groups, Group{
			Group: c.Group, Groups: c.Groups, Owner: c.Owner, Live: c.Live, LeaseUntil: admin.Value(c.LeaseUntil), Epoch: c.Epoch,
			State: c.State, StateSince: c.StateSince, LastError: c.LastError, LastErrorAt: admin.Value(c.LastErrorAt),
			UpdatedAt: c.UpdatedAt, Foreign: c.Foreign,
			Pending: b.Pending, Oldest: b.Oldest,
		})
		d.Pending = d.Pending.Plus(b.Pending)
		d.LagObjective = time.Duration(c.Objective) * time.Microsecond
		d.Rate = c.Settings.Rate
		d.Delivered += c.Delivered
		d.Oldest = earliest(d.Oldest, b.Oldest)
	}
	if err := r.readHeld(ctx, tx); err != nil {
		return err
	}
	if err := r.readDead(ctx, tx); err != nil {
		return err
	}
	if err := r.readUnreplicated(ctx, tx); err != nil {
		return err
	}
	if err := r.readSlots(ctx, tx); err != nil {
		return err
	}
	if err := r.readTables(ctx, tx, own); err != nil {
		return err
	}
	if err := r.readBrokers(ctx, tx); err != nil {
		return err
	}
	controls, err := admin.ReadControls(ctx, tx, "")
	if err != nil {
		return fmt.Errorf("read the controls: %w", err)
	}
	for _, c := range controls {
		// One of a name that nothing else is known of is about a destination that isn't here.
		if i := slices.IndexFunc(r.Destinations, func(d Destination) bool { return d.Name == c.Destination }); i >= 0 {
			r.Destinations[i].Controls = append(r.Destinations[i].Controls, c)
		}
	}
	slices.SortFunc(r.Destinations, func(a, b Destination) int { return cmp.Compare(a.Name, b.Name) })
	return nil
}

// readWaiting counts what the first destination will begin with.
func (r *Report) readWaiting(ctx context.Context, tx pgx.Tx) error {
	if slices.ContainsFunc(r.Destinations, func(d Destination) bool { return !strings.HasPrefix(d.Name, schema.InboxPrefix) }) {
		return nil
	}
	const beginning = "1:1:" // as the table of cursors has it
	c := admin.Cursor{Destination: "a destination", Groups: 1, Prev: beginning, First: beginning}
	b, err := ReadBacklog(ctx, tx, &c)
	r.Waiting, r.WaitingSince = b.Pending, b.Oldest
	return err
}

// destination finds or adds one: dead letters may outlive their cursor.
func (r *Report) destination(name string) *Destination {
	i := slices.IndexFunc(r.Destinations, func(d Destination) bool { return d.Name == name })
	if i < 0 {
		i = len(r.Destinations)
		r.Destinations = append(r.Destinations, Destination{Name: name})
	}
	return &r.Destinations[i]
}

func (r *Report) readHeld(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, fmt.Sprintf(`
		SELECT destination, count(*), count(DISTINCT lane), count(*) FILTER (WHERE retry_at = 'infinity'),
		       min(nullif(retry_at, 'infinity')), coalesce((array_agg(error ORDER BY held_at DESC) FILTER (WHERE error IS NOT NULL))[1], ''),
		       min(held_at) FILTER (WHERE error IS NOT NULL AND retry_at <> 'infinity'), min(held_at) FILTER (WHERE retry_at = 'infinity'),
		       min(due) FILTER (WHERE NOT delayed), min(due) FILTER (WHERE NOT meant AND NOT blocked),
		       count(DISTINCT lane) FILTER (WHERE delayed)
		FROM (SELECT destination, lane, retry_at, held_at, error, `+admin.Moment("CASE WHEN job IS NULL THEN greatest(created_at, deliver_at) ELSE held_at END")+` AS due,
		             coalesce(bool_or(error IS NULL AND deliver_at > clock_timestamp()) OVER its_lane, false) AS delayed,
		             coalesce(bool_or(error IS NULL AND retry_at > clock_timestamp()) OVER its_lane, false) AS meant,
		             coalesce(bool_or(retry_at = 'infinity') OVER its_lane, false) AS blocked
		      FROM (SELECT destination, lane, created_at, deliver_at, retry_at, held_at, error, job FROM outbox.holds LIMIT %d) s
		      WINDOW its_lane AS (PARTITION BY destination, lane)) h
		GROUP BY destination`, admin.SampleLimit))
	if err != nil {
		return fmt.Errorf("count holds: %w", err)
	}
	var total int64
	var name string
	var h Held
	var next, failing, blocked, oldest, waiting *time.Time
	_, err = pgx.ForEachRow(rows, []any{&name, &h.Messages.N, &h.Lanes, &h.Blocked, &next, &h.LastError, &failing,
		&blocked, &oldest, &waiting, &h.Delayed}, func() error {
		held := h
		held.NextRetry, held.FailingSince, held.BlockedSince = admin.Value(next), admin.Value(failing), admin.Value(blocked)
		held.Oldest, held.waiting = admin.Value(oldest), admin.Value(waiting)
		total += held.Messages.N
		d := r.destination(name)
		d.Held, d.Oldest = held, earliest(d.Oldest, held.Oldest)
		return nil
	})
	if err != nil {
		return fmt.Errorf("count holds: %w", err)
	}
	for i := range r.Destinations {
		r.Destinations[i].Held.Messages.Estimated = total >= admin.SampleLimit
	}
	return nil
}

func (r *Report) readDead(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, fmt.Sprintf(`
		SELECT destination, reason, count(*), max(dead_at)
		FROM (SELECT destination, reason, dead_at FROM outbox.dead_letters LIMIT %d) d GROUP BY destination, reason`, admin.SampleLimit))
	if err != nil {
		return fmt.Errorf("count dead letters: %w", err)
	}
	var total int64
	for rows.Next() {
		var name, reason string
		var n int64
		var newest time.Time
		if err := rows.Scan(&name, &reason, &n, &newest); err != nil {
			return fmt.Errorf("count dead letters: %w", err)
		}
		total += n
		d := &r.destination(name).Dead
		if d.Reasons == nil {
			d.Reasons = map[string]int64{}
		}
		d.Reasons[reason] = n
		d.Messages.N += n
		if newest.After(d.Newest) {
			d.Newest = newest
		}
	}
	for i := range r.Destinations {
		r.Destinations[i].Dead.Messages.Estimated = total >= admin.SampleLimit
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("count dead letters: %w", err)
	}
	return r.readNewDead(ctx, tx)
}

// readNewDead goes by an index that has what is not acknowledged: however much is, a new death is seen.
func (r *Report) readNewDead(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, fmt.Sprintf(`
		SELECT n.destination, n.letters, n.since, n.letters >= %d,
		       (SELECT d.error FROM outbox.dead_letters d WHERE d.destination = n.destination AND d.acknowledged_at IS NULL ORDER BY d.dead_at DESC LIMIT 1)
		FROM (SELECT destination, count(*) AS letters, min(dead_at) AS since
		      FROM (SELECT destination, dead_at FROM outbox.dead_letters WHERE acknowledged_at IS NULL LIMIT %[1]d) s GROUP BY destination) n`, admin.SampleLimit))
	if err != nil {
		return fmt.Errorf("count new dead letters: %w", err)
	}
	var name string
	var d Dead
	_, err = pgx.ForEachRow(rows, []any{&name, &d.New.N, &d.Since, &d.New.Estimated, &d.LastError}, func() error {
		dead := &r.destination(name).Dead
		dead.New, dead.Since, dead.LastError = d.New, d.Since, d.LastError
		return nil
	})
	if err != nil {
		return fmt.Errorf("count new dead letters: %w", err)
	}
	return nil
}

func (r *Report) readRelays(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, `
		SELECT name, host, pid, version, started_at, heartbeat_at,
		       abs(extract(epoch FROM clock_timestamp() - heartbeat_at)) < `+liveness+`
		       OR o.owns IS NOT NULL,
		       coalesce((SELECT a.usename::text FROM pg_stat_activity a WHERE a.datname = current_database()
		                 AND (a.pid = r.backend_pid OR a.application_name = 'outbox relay ' || r.name) LIMIT 1), r.role), NULL::text[], '', date_trunc('second', r.clock_ahead), o.owns
		FROM outbox.relays r, LATERAL (
			SELECT array_agg(CASE WHEN c.shard_groups > 1 THEN format('%s/%s', c.destination, c.shard_group) ELSE c.destination END
				ORDER BY c.destination, c.shard_group) AS owns
			FROM outbox.cursors c WHERE c.owner = r.name AND `+schema.Leased+`) o
		ORDER BY name`)
	if err == nil {
		r.Relays, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Relay])
	}
	if err != nil {
		return fmt.Errorf("read relays: %w", err)
	}
	return nil
}

func (r *Report) readSegments(ctx context.Context, tx pgx.Tx, cursors []admin.Cursor) error {
	rows, err := tx.Query(ctx, `
		SELECT c.relname::text, pg_total_relation_size(c.oid)
		FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
		WHERE i.inhparent IN ('outbox.messages'::regclass, 'outbox.inbox_messages'::regclass)
		ORDER BY i.inhparent = 'outbox.inbox_messages'::regclass, c.relname`)
	if err != nil {
		return fmt.Errorf("read segments: %w", err)
	}
	var s Segment
	_, err = pgx.ForEachRow(rows, []any{&s.Name, &s.Bytes}, func() error {
		r.Segments = append(r.Segments, s)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read segments: %w", err)
	}
	for i := range cursors {
		needed, err := waitsFor(ctx, tx, &cursors[i])
		if err != nil {
			return err
		}
		for _, n := range needed {
			name := fmt.Sprintf("%s_%d", strings.TrimPrefix(schema.MessagesOf(cursors[i].Destination), "outbox."), n)
			at := slices.IndexFunc(r.Segments, func(s Segment) bool { return s.Name == name })
			if at < 0 {
				continue
			}
			by := &r.Segments[at].NeededBy
			if !slices.Contains(*by, cursors[i].Destination) {
				*by = append(*by, cursors[i].Destination)
			}
		}
	}
	return nil
}

// readUnselected leaves out topics that a destination of another relay may select: the relay that noted them knows its
// own configuration alone, and that exactly.
func (r *Report) readUnselected(ctx context.Context, tx pgx.Tx, cursors []admin.Cursor) error {
	rows, err := tx.Query(ctx, `
		SELECT topic, messages, event_type, message_id::text, relay, first_at, last_at
		FROM outbox.unselected WHERE last_at > clock_timestamp() - interval '1 day'
		ORDER BY messages DESC, topic LIMIT 1000`)
	if err == nil {
		r.Unselected, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Unselected])
	}
	if err != nil {
		return fmt.Errorf("read unselected topics: %w", err)
	}
	r.Unselected = slices.DeleteFunc(r.Unselected, func(u Unselected) bool {
		return slices.ContainsFunc(cursors, func(c admin.Cursor) bool { return c.Owner != u.Relay && c.SelectsTopic(u.Topic, u.EventType) })
	})
	r.Unselected = r.Unselected[:min(len(r.Unselected), 10)]
	return nil
}

// readOpen finds writers by the lock that an INSERT takes and keeps until its transaction ends.
func (r *Report) readOpen(ctx context.Context, tx pgx.Tx) error {
	var err error
	r.Open, err = openTransactions(ctx, tx, `l.locktype = 'relation' AND l.mode = 'RowExclusiveLock'
		AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
		AND (l.relation = 'outbox.messages'::regclass
		     OR l.relation IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = 'outbox.messages'::regclass))`)
	r.Open = r.Open[:min(len(r.Open), 10)]
	return err
}

// openTransactions are those that have a lock of which the condition is true. The first one has drawn its number first,
// if the lock is that of its number, or else begun first. Any role may see locks.
func openTransactions(ctx context.Context, tx pgx.Tx, condition string, args ...any) ([]OpenTransaction, error) {
	rows, err := tx.Query(ctx, `
		SELECT DISTINCT ON (l.virtualtransaction)
		       coalesce(l.pid, 0), coalesce(p.gid, ''), coalesce(a.usename, p.owner, '')::text, coalesce(a.application_name, ''),
		       coalesce(a.state, ''), coalesce(a.xact_start, p.prepared), coalesce(left(regexp_replace(a.query, '[[:space:]]+', ' ', 'g'), 120), ''),
		       coalesce(age(l.transactionid), 0)
		FROM pg_locks l
		LEFT JOIN pg_stat_activity a ON a.pid = l.pid
		-- A prepared transaction has no pid, but holds the lock on its xid.
		LEFT JOIN pg_locks x ON l.pid IS NULL AND x.virtualtransaction = l.virtualtransaction AND x.locktype = 'transactionid'
		LEFT JOIN pg_prepared_xacts p ON p.transaction = x.transactionid
		WHERE l.granted AND `+condition+`
		ORDER BY l.virtualtransaction`, args...)
	if err != nil {
		return nil, fmt.Errorf("read open transactions: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (OpenTransaction, error) {
		var t OpenTransaction
		var since *time.Time
		err := row.Scan(&t.PID, &t.Prepared, &t.User, &t.Application, &t.State, &since, &t.Query, &t.age)
		t.Since = admin.Value(since)
		return t, err
	})
	if err != nil {
		return nil, fmt.Errorf("read open transactions: %w", err)
	}
	slices.SortStableFunc(list, func(a, b OpenTransaction) int {
		return cmp.Or(cmp.Compare(b.age, a.age), a.Since.Compare(b.Since))
	})
	return list, nil
}

// earliest is the first of both times; zero is none.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
