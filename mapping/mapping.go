// Package mapping describes existing outbox tables, so that package relay/mapped can deliver from them: the meaning of
// columns, presets of well-known tables, a table's description from the catalogue and whether it fits, a doctor that
// proposes a mapping, and what writers of such a table need to keep an order.
package mapping

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pgoutbox/outbox/internal/settings"
)

// Mapping describes an existing outbox table, so that a relay can deliver from it unchanged. Fields are names of
// columns as in the catalogue (unquoted, case-sensitive); an empty one is a column that the table doesn't have. Presets
// has mappings of well-known tables.
type Mapping struct {
	// Table is "name", found by the search path, or "schema.name". A part that contains a dot is written in double
	// quotes. Required.
	Table string

	// ID is unique and never NULL. Required. Only a whole number from a sequence gives an order.
	ID string

	// MessageID is what consumers deduplicate by. A value that is not a UUID is turned into one, always the same for
	// the same table and value. Default: ID.
	MessageID string

	// Topic and Key are templates in which {column} stands for the text of a column: "{topic}",
	// "outbox.event.{aggregate_type}", "orders". Topic is required. If a column of Key is NULL there is no key, and
	// AggregateID orders instead. A constant Key makes the whole table one lane.
	Topic string
	Key   string

	// RawKey passes on a key that is one column of type bytea as its bytes, for a broker whose keys are bytes, such as
	// Kafka. Without it every key is text: a column of type bytea becomes its hexadecimal digits.
	RawKey bool

	AggregateType string
	AggregateID   string
	EventType     string
	Payload       string // bytea, json, jsonb or text. Required
	ContentType   string // default: application/json for a payload of json or jsonb
	Headers       string // an object: jsonb, json or text
	CreatedAt     string
	DeliverAt     string

	// HeaderColumns become headers too; NULL is left out.
	HeaderColumns []HeaderColumn

	// Order is the column by which rows are taken, oldest first. Default: ID if it is a whole number, else CreatedAt,
	// else ID. Priority precedes it, highest first, and Types precede both: rows of these event types are taken first,
	// in this order, all others last. Priority and Types give up the order of keys. None of the three is for strategies
	// that move an offset.
	Order    string
	Priority string
	Types    []string

	Done    Done
	Failure Failure
	Claim   Claim
	Offsets Offsets

	// RowsMayBeDeleted means that the rows are messages and nothing else. Without it, no mapping may delete delivered
	// rows (Done.How delete, a purge): rows of a business table would be lost.
	RowsMayBeDeleted bool

	// Lock is the advisory lock for strategies that need one, as one number or two. Default: a hash of the table's
	// name.
	Lock []int64
}

// MessageColumns lists the columns that make up a message, each once.
func (m *Mapping) MessageColumns() []string {
	named := slices.Concat(
		[]string{m.ID, m.MessageID}, templateColumns(m.Topic), templateColumns(m.Key),
		[]string{m.AggregateType, m.AggregateID, m.EventType, m.Payload, m.ContentType, m.Headers, m.CreatedAt, m.DeliverAt},
	)
	for _, h := range m.HeaderColumns {
		named = append(named, h.Column)
	}
	var columns []string
	for _, c := range named {
		if c != "" && !slices.Contains(columns, c) {
			columns = append(columns, c)
		}
	}
	return columns
}

// Columns lists the columns of the table that m names, each once.
func (m *Mapping) Columns() []string {
	columns := m.MessageColumns()
	for _, c := range []string{m.Order, m.Priority, m.Done.Column, m.Done.Flag, m.Done.At, m.Done.AckAt, m.Done.UpdatedAt, m.Done.Partition,
		m.Failure.Attempts, m.Failure.Error, m.Failure.LastAttempt, m.Failure.NextAttempt,
		m.Claim.Until, m.Claim.Since, m.Claim.Owner, m.Offsets.Topic, m.Offsets.Partition, m.Offsets.Transaction} {
		if c != "" && !slices.Contains(columns, c) {
			columns = append(columns, c)
		}
	}
	return columns
}

// CalledOutbox reports whether the table's name shows that its rows are messages.
func (m *Mapping) CalledOutbox() bool {
	name, err := ParseTableName(m.Table)
	return err == nil && strings.Contains(strings.ToLower(name.Name), "outbox")
}

// HeaderColumn is a column that becomes a header.
type HeaderColumn struct {
	Name   string
	Column string
}

// DoneHow is the way in which a delivered row is marked.
type DoneHow string

const (
	DoneDelete    DoneHow = "delete"    // it is deleted
	DoneTimestamp DoneHow = "timestamp" // Column is not NULL
	DoneBoolean   DoneHow = "boolean"   // Column is true
	DoneStatus    DoneHow = "status"    // Column is Value; Waiting is what it is before
)

// Done describes how a delivered row is marked.
type Done struct {
	How     DoneHow // required, except for strategies that move an offset
	Column  string
	Value   string
	Waiting string

	// Flag is a boolean for the same: true when a row was delivered, false when not. At, AckAt and UpdatedAt are set to
	// the time: At when a row was delivered, the others after every outcome.
	Flag      string
	At        string
	AckAt     string
	UpdatedAt string

	// Partition, a text or a whole number, gets the partition into which the broker has put the message. Kafka reports
	// it; with a broker that doesn't, the column is not changed.
	Partition string
}

// Failure describes how a row is marked that was not delivered. State without a column is kept in memory, and is
// lost by a restart.
type Failure struct {
	Attempts    string
	Error       string
	LastAttempt string
	NextAttempt string

	// A dead letter gets the status FailedValue (with Done.How status), or moves to DeadTable. DeadTable has columns of
	// the same names as the table for what should be kept, and may have: reason, error, attempts, dead_at.
	FailedValue string
	DeadTable   string
}

// Place reports whether there is a place for dead letters.
func (f Failure) Place() bool { return f.FailedValue != "" || f.DeadTable != "" }

// Claim describes how a row is marked that a relay is about to deliver: by a time until which it is reserved, or by a
// status and the time since which it has that status.
type Claim struct {
	Until  string
	Status string // a value of Done.Column, such as "processing"
	Since  string

	// Counts means that taking a row already counts as an attempt, not only failing.
	Counts bool

	// Owner is a text column for the relay's name: a relay that restarts under its name takes its rows back at once.
	Owner string
}

// Offsets is the table of a strategy that moves an offset for each topic and partition. It has the
// columns topic, partition, last_processed_id and available_after, for strategy xmin also
// last_processed_transaction_id, and a unique index on (topic, partition). It may have: owner.
type Offsets struct {
	Table       string
	Topic       string // column of the message table; empty: one offset for all topics
	Partition   string // column of the message table; empty: a hash of the key
	Transaction string // column of type xid8; strategy xmin
}

// OffsetsDDL is the statement that creates a table of offsets.
func OffsetsDDL(table TableName) string {
	return "CREATE TABLE " + table.String() + ` (
	id integer GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
	topic text NOT NULL,
	partition bigint NOT NULL,
	last_processed_id bigint NOT NULL,
	last_processed_transaction_id xid8 NOT NULL DEFAULT '0',
	available_after timestamptz NOT NULL DEFAULT now(),
	owner text,
	UNIQUE (topic, partition)
);`
}

// Validate reports everything in m that can't fit any table.
func (m *Mapping) Validate() error {
	var faults settings.Faults
	_, err := ParseTableName(m.Table)
	faults.Add("Table", err)
	faults.Need(m.ID != "", "", "no column is named for the id")
	faults.Need(m.Payload != "", "", "no column is named for the payload")
	faults.Need(m.Topic != "", "", "no topic is given: name a column as {column}, or give a constant")
	for _, t := range []struct{ what, text string }{{"topic", m.Topic}, {"key", m.Key}} {
		_, err := ParseTemplate(t.text)
		faults.Need(err == nil, "", "%s: %w", t.what, err)
	}
	faults.Need(len(m.Types) == 0 || m.EventType != "", "Types", "given in an order, but no column is named for the event type")
	if m.Offsets.Table != "" && m.Done.How == "" {
		for _, o := range []struct {
			what  string
			given bool
		}{{"a priority", m.Priority != ""}, {"an order of types", len(m.Types) > 0}, {"a column for the order", m.Order != ""}} {
			faults.Need(!o.given, "",
				"%s is given, but rows that an offset moves over are read in the order of their ids, and nothing can overtake: "+
					"give what is urgent a topic or a partition of its own, which never waits behind another's rows, or a table of its own",
				o.what)
		}
	}
	faults.Need(len(m.Lock) <= 2, "Lock", "%d numbers, it must be one or two", len(m.Lock))
	m.Done.validate(&faults)
	faults.Need(m.Done.How != DoneDelete || m.RowsMayBeDeleted,
		"Done.How", "delivered rows are to be deleted: if the rows are messages and "+
			"nothing else, say so (rows_may_be_deleted: true); otherwise mark them by a column (done: {how: timestamp, "+
			"column: published_at})")
	faults.Need(m.Done.Partition == "" || m.Done.How != DoneDelete, "Done.Partition", "given, but delivered rows are deleted")
	faults.Need(m.Failure.FailedValue == "" || m.Done.How == DoneStatus, "Failure.FailedValue", "given, but rows are not done by status")
	faults.Need(m.Claim.Until == "" || m.Claim.Status == "", "Claim", "rows are claimed by a time and by a status; keep one of them")
	faults.Need(m.Claim.Status == "" || m.Claim.Since != "",
		"Claim.Since", "rows are claimed by the status %q, but no column is named for the time since when", m.Claim.Status)
	faults.Need(m.Claim.Status == "" || m.Done.How == DoneStatus,
		"Claim.Status", "rows are claimed by a status, but they are not done by status")
	for _, s := range m.statuses() {
		faults.Need(m.Done.How != DoneStatus || s.what == "waiting" || s.value != m.Done.Waiting, "Done.Waiting",
			"rows that wait have the status %q, and so have those that are %s: they would be delivered again and again", s.value, s.what)
		faults.Need(m.Done.How != DoneStatus || s.what != "claimed" || s.value != m.Done.Value && s.value != m.Failure.FailedValue,
			"Claim.Status", "claimed rows have the status %q, and so have those that are done or failed", s.value)
	}
	for _, h := range m.HeaderColumns {
		faults.Need(h.Name != "" && h.Column != "", "", "a header column has no name or no column")
	}
	if err := faults.Err(); err != nil {
		return fmt.Errorf("mapping of table %q: %w", m.Table, err)
	}
	return nil
}

// Suits reports everything that a strategy lacks in the mapping or can't use, all faults together.
func (m *Mapping) Suits(strategy string) error {
	var faults settings.Faults
	switch strategy {
	case Replication: // it marks nothing
	case XMin, Serial:
		faults.Need(strategy != XMin || m.Offsets.Transaction != "",
			"Offsets.Transaction", "no column of type xid8 is named, but strategy %s reads by it", strategy)
		faults.Need(m.Offsets.Table != "", "Offsets.Table", "not given, but strategy %s keeps offsets in a table", strategy)
		faults.Need(m.Done.How == "", "Done.How",
			"delivered rows are marked (%s), but strategy %s moves an offset and changes no row", m.Done.How, strategy)
	default:
		faults.Need(m.Done.How != "", "Done.How", "not given, but strategy %s marks rows: delete, timestamp, boolean or status", strategy)
		faults.Need(strategy != Lease || m.Claim.Until != "" || m.Claim.Status != "", "Claim", "not given, but strategy %s reserves rows: "+
			"by a time until which they are, or by a status and the time since which they are", strategy)
	}
	if err := faults.Err(); err != nil {
		return fmt.Errorf("mapping of table %q: %w", m.Table, err)
	}
	return nil
}

func (d Done) validate(faults *settings.Faults) {
	switch d.How {
	case "":
	case DoneDelete:
		faults.Need(d.Column == "", "Done.Column", "delivered rows are deleted, so the column %q can't say that they are done", d.Column)
	case DoneTimestamp, DoneBoolean, DoneStatus:
		faults.Need(d.Column != "", "Done.Column", "rows are done by %s, but no column is named for it", d.How)
	default:
		faults.Need(false, "Done.How", "%q: want %q, %q, %q or %q", d.How, DoneDelete, DoneTimestamp, DoneBoolean, DoneStatus)
	}
	faults.Need(d.How != DoneStatus || d.Value != "" && d.Waiting != "", "Done.Value",
		"rows are done by status, but not both its values are given, of a waiting row and of a done one")
}

// TemplatePart is a piece of text, or a column.
type TemplatePart struct {
	Text   string
	Column string
}

// ParseTemplate splits a template of Mapping.Topic or Mapping.Key.
func ParseTemplate(s string) (parts []TemplatePart, err error) {
	for rest := s; rest != ""; {
		at := strings.IndexAny(rest, "{}")
		if at < 0 {
			parts = append(parts, TemplatePart{Text: rest})
			break
		}
		end := strings.IndexByte(rest, '}')
		if rest[at] == '}' || end < at+2 || strings.Contains(rest[at+1:end], "{") {
			return nil, fmt.Errorf("%q is not a template such as outbox.event.{aggregate_type}", s)
		}
		if at > 0 {
			parts = append(parts, TemplatePart{Text: rest[:at]})
		}
		parts = append(parts, TemplatePart{Column: rest[at+1 : end]})
		rest = rest[end+1:]
	}
	return parts, nil
}

// templateColumns returns the columns that a template names.
func templateColumns(s string) (columns []string) {
	parts, err := ParseTemplate(s)
	if err != nil {
		return nil
	}
	for _, p := range parts {
		if p.Column != "" && !slices.Contains(columns, p.Column) {
			columns = append(columns, p.Column)
		}
	}
	return columns
}

type status struct{ what, value string }

// statuses are the values of Done.Column, by what they mean.
func (m *Mapping) statuses() (all []status) {
	for _, s := range []status{{"waiting", m.Done.Waiting}, {"done", m.Done.Value},
		{"claimed", m.Claim.Status}, {"failed", m.Failure.FailedValue}} {
		if s.value != "" {
			all = append(all, s)
		}
	}
	return all
}
