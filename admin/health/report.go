package health

import (
	"slices"
	"time"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/jobs"
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

// Relay is a running instance, or one that ended without deregistering.
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

	// Dormant says that it has no connection, since nothing happens in the database, and looks now and then.
	Dormant bool `json:"dormant,omitempty"`
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

// Holder is a transaction that has locked what relays need, or what they wait for.
type Holder struct {
	OpenTransaction

	// Relays are the names of the relays that wait for it.
	Relays []string `json:"relays,omitempty"`
	// Table means that it has locked a whole table of the outbox.
	Table bool `json:"table,omitempty"`
	// Cursors means that it has locked rows of the cursors, or may have.
	Cursors bool `json:"cursors,omitempty"`
}

// Unreplicated are commits that wait for a synchronous standby.
type Unreplicated struct {
	Sessions int64  `json:"sessions"`
	Names    string `json:"synchronous_standby_names"`
}

// Slot is how a destination reads the write-ahead log.
type Slot struct {
	Name string `json:"name"`
	// Mode is what an operator wants: replication, or snapshot to have the table read.
	Mode string `json:"mode"`
	// Position is where the log is settled up to; "" while the table is read. Of a table of its own it is the slot's,
	// 0/0 if that is gone.
	Position string `json:"position,omitempty"`
	// Status is PostgreSQL's wal_status: reserved, extended, unreserved or lost; "" if there is no slot.
	Status string `json:"wal_status,omitempty"`
	// Kept is how many bytes of the log the server keeps for it.
	Kept int64 `json:"kept_bytes,omitempty"`

	// Left is how many bytes the server may still write before it gives the slot up (max_slot_wal_keep_size); nil if
	// there is no limit.
	Left *int64 `json:"bytes_left,omitempty"`
	// Standbys are the slots of synchronized_standby_slots that hold this one up, each with the reason; the server
	// sends nothing that they have not received.
	Standbys string `json:"standbys_away,omitempty"`
	// StandbysSince is when they began to; zero if the server doesn't know, as of a slot that isn't there.
	StandbysSince time.Time `json:"standbys_away_since,omitzero"`

	// When a slot was lost last, and why.
	LostAt     time.Time `json:"lost_at,omitzero"`
	LostReason string    `json:"lost_reason,omitempty"`
}

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

// Broker is the one that a destination delivers to, as far as it can tell which one it is.
type Broker struct {
	// Identity are its names, any of which is enough to know it by. Relay recorded the first ones, at RecordedAt.
	Identity   []string  `json:"identity"`
	Relay      string    `json:"relay"`
	RecordedAt time.Time `json:"recorded_at"`

	// Refused are the names of another broker, which RefusedBy has and refuses to deliver to; none if the destination's
	// own was seen since.
	Refused   []string  `json:"refused,omitempty"`
	RefusedBy string    `json:"refused_by,omitempty"`
	RefusedAt time.Time `json:"refused_at,omitzero"`
}

// OnDatabase has the report's commands name the database, if name isn't "".
func (r *Report) OnDatabase(name string) {
	r.Verdict.OnDatabase(name)
	for i := range r.Destinations {
		r.Destinations[i].Verdict.OnDatabase(name)
	}
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

// pauseOf is the operators' pause of the whole destination, and throttleOf their bound on its rate; nil if there is
// none.
func (d *Destination) pauseOf() *admin.Control {
	return d.control(func(c admin.Control) bool { return c.Rate == 0 })
}

func (d *Destination) throttleOf() *admin.Control {
	return d.control(func(c admin.Control) bool { return c.Rate > 0 })
}

func (d *Destination) control(of func(admin.Control) bool) *admin.Control {
	i := slices.IndexFunc(d.Controls, func(c admin.Control) bool { return c.Topic == "" && c.Key == "" && of(c) })
	if i < 0 {
		return nil
	}
	return &d.Controls[i]
}

// late reports how long the oldest deliverable message has waited, if that is longer than the objective allows.
func (r *Report) late(d *Destination) (oldest time.Time, waits time.Duration, late bool) {
	oldest = d.Held.waiting
	for i := range d.Groups {
		oldest = earliest(oldest, d.Groups[i].Oldest)
	}
	waits = r.At.Sub(oldest)
	return oldest, waits, !oldest.IsZero() && d.LagObjective > 0 && waits > d.LagObjective
}

// kept reports whether rows wait for a known transaction.
func (d *Destination) kept() bool {
	return d.Table != nil && d.Table.Behind != nil && d.Table.Kept.N > 0
}

// ReadWithin is the age from which on a report is too old: its verdict then says that the present state isn't known.
const ReadWithin = 15 * time.Second

// Two states of a relay that the database hasn't, or not in every case.
const (
	waiting      = "waiting"
	stoppedState = "stopped"
)
