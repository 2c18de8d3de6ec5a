package config

import (
	"strconv"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay/mapped"
)

// Source reads a table that exists already, instead of outbox.messages. See docs/mapping.md.
type Source struct {
	Strategy         string   `json:"strategy" enum:"auto,skiplocked,advisory,lease,xmin,serial,replication" jsonschema:"How the table is read. auto is what fits the preset; replication reads the write-ahead log instead."`
	Preset           string   `json:"preset" jsonschema:"Mapping of a well-known table to begin with; what is given besides goes over it."`
	Table            string   `json:"table" jsonschema:"The table, with its schema unless that is in the search path. Required without a preset."`
	Columns          Columns  `json:"columns" jsonschema:"The table's columns by what they hold."`
	Done             Done     `json:"done" jsonschema:"How a row is marked that was delivered."`
	Failure          Failure  `json:"failure" jsonschema:"How a row is marked that was not delivered."`
	Claim            Claim    `json:"claim" jsonschema:"How a row is marked that a relay is about to deliver; strategy lease."`
	Offsets          Offsets  `json:"offsets" jsonschema:"Where offsets are kept; strategies xmin and serial."`
	Order            string   `json:"order" jsonschema:"Column that rows are taken by. Empty: the id if it is a whole number, else created_at."`
	Types            []string `json:"types" jsonschema:"Event types whose rows are taken first, in this order. Gives up the order of keys."`
	Lock             []string `json:"lock" jsonschema:"Advisory lock of strategy advisory, one number or two. Empty: made from the table's name."`
	RowsMayBeDeleted bool     `json:"rows_may_be_deleted" jsonschema:"Says that the rows are messages and nothing else, which done: {how: delete} and purge need. A preset says so of a table whose name has outbox in it."`
	Purge            *Purge   `json:"purge" jsonschema:"Deletes delivered rows when they are old."`
	Notify           string   `json:"notify" jsonschema:"Channel that a trigger of the table notifies, so that rows are read at once: outbox doctor prints the trigger. Empty: a row waits for the next poll, at most poll.idle."`
	MaxHolds         int      `json:"max_holds" min:"1" max:"10000000" jsonschema:"Messages that are set aside for a later attempt, at most; then nothing new is read. Strategies xmin and serial: 10000 unless given, for each partition, with what was delivered behind them."`
	Transactions     int      `json:"transactions" min:"0" max:"100" jsonschema:"Transactions that strategy skiplocked has open at once, each with a batch that is being published: 4 unless given. The other strategies have none: 0."`
}

// Columns names columns; topic and key are templates.
type Columns struct {
	ID            string   `json:"id" jsonschema:"Unique number, UUID or text."`
	MessageID     string   `json:"message_id" jsonschema:"What consumers deduplicate by. Empty: the id."`
	Topic         string   `json:"topic" jsonschema:"Template of the topic, with columns in braces: {topic}."`
	Key           string   `json:"key" jsonschema:"Template of the key, with columns in braces. Empty: aggregate_id. A column of type bytea is its bytes where keys are bytes (Kafka, Redis, without a format), else hexadecimal digits."`
	AggregateType string   `json:"aggregate_type" jsonschema:"Type of the aggregate."`
	AggregateID   string   `json:"aggregate_id" jsonschema:"Id of the aggregate."`
	EventType     string   `json:"event_type" jsonschema:"Type of the event."`
	Payload       string   `json:"payload" jsonschema:"Payload: bytea, json, jsonb or text."`
	ContentType   string   `json:"content_type" jsonschema:"Content type. Empty: application/json for JSON."`
	Headers       string   `json:"headers" jsonschema:"Object of headers: jsonb, json or text."`
	HeaderColumns []string `json:"header_columns" jsonschema:"Columns that become headers, as name=column."`
	CreatedAt     string   `json:"created_at" jsonschema:"When the row was written."`
	DeliverAt     string   `json:"deliver_at" jsonschema:"When the message is to be delivered."`
	Priority      string   `json:"priority" jsonschema:"Number; rows with a higher one are taken first. Gives up the order of keys."`
}

// Done describes how delivered rows are marked.
type Done struct {
	How       string `json:"how" jsonschema:"delete, timestamp, boolean or status."`
	Column    string `json:"column" jsonschema:"The timestamp, boolean or status."`
	Value     string `json:"value" jsonschema:"Status of a delivered row."`
	Waiting   string `json:"waiting" jsonschema:"Status of a row that waits."`
	Flag      string `json:"flag" jsonschema:"Boolean that says so too."`
	At        string `json:"at" jsonschema:"Gets the time of the delivery."`
	AckAt     string `json:"ack_at" jsonschema:"Gets the time of the last outcome, good or bad."`
	UpdatedAt string `json:"updated_at" jsonschema:"Gets the time of every change."`
	Partition string `json:"partition" jsonschema:"Gets the partition in which the broker has put the message. Kafka alone tells."`
}

// Failure names the columns of attempts, and where dead letters go.
type Failure struct {
	Attempts    string `json:"attempts" jsonschema:"Counts attempts."`
	Error       string `json:"error" jsonschema:"Gets the last error."`
	LastAttempt string `json:"last_attempt" jsonschema:"Gets the time of the last attempt."`
	NextAttempt string `json:"next_attempt" jsonschema:"Gets the time of the next attempt."`
	FailedValue string `json:"failed_value" jsonschema:"Status of a dead letter."`
	DeadTable   string `json:"dead_table" jsonschema:"Table that dead letters move to."`
}

// Claim names the columns of a reservation.
type Claim struct {
	Until  string `json:"until" jsonschema:"Time until which a row is reserved."`
	Status string `json:"status" jsonschema:"Status of a reserved row, instead of until."`
	Since  string `json:"since" jsonschema:"Time since which a row has that status."`
	Owner  string `json:"owner" jsonschema:"Gets the name of the relay."`
	Counts bool   `json:"counts" jsonschema:"Whether a reservation counts as an attempt already."`
}

// Offsets names the table of offsets and what it is divided by.
type Offsets struct {
	Table       string `json:"table" jsonschema:"Table of offsets."`
	Topic       string `json:"topic" jsonschema:"Column of the message table: an offset for each topic."`
	Partition   string `json:"partition" jsonschema:"Column of the message table: an offset for each partition."`
	Transaction string `json:"transaction" jsonschema:"Column of type xid8; strategy xmin."`
}

// Purge deletes delivered rows.
type Purge struct {
	Keep     time.Duration `json:"keep" jsonschema:"How long delivered rows are kept."`
	Interval time.Duration `json:"interval" field:"Every" jsonschema:"Pause between two rounds."`

	ArchiveTable string `json:"archive_table" field:"Archive" jsonschema:"Table that rows move to, in the statement that deletes them. It has all columns of the table. Empty: they are deleted."`
}

// SetDefaults leaves the strategy to the preset. Checks set what depends on the strategy.
func (s *Source) SetDefaults() { s.Strategy, s.MaxHolds = "auto", mapped.Defaults("").MaxHolds }

// SetDefaults keeps rows for 30 days.
func (p *Purge) SetDefaults() { p.Keep, p.Interval = 30*24*time.Hour, time.Minute }

// Config is the purge as its package has it.
func (p *Purge) Config() mapped.PurgeConfig {
	var cfg mapped.PurgeConfig
	fields.Assign(&cfg, *p)
	return cfg
}

// Resolve returns the strategy and the mapping that s describes.
func (s *Source) Resolve() (strategy string, m mapping.Mapping) {
	strategy = s.Strategy
	if p, found := mapping.FindPreset(s.Preset); found {
		m = p.Mapping
		if strategy == "auto" {
			strategy = p.Strategy
		}
	}
	if s.Done != (Done{}) { // as a whole: its parts depend on one another
		m.Done = mapping.Done{}
	}
	fields.Assign(&m, s.Columns)
	fields.Assign(&m, *s)
	m.RowsMayBeDeleted = s.RowsMayBeDeleted || m.RowsMayBeDeleted && m.CalledOutbox()
	if len(s.Columns.HeaderColumns) > 0 {
		m.HeaderColumns = nil
		for _, pair := range s.Columns.HeaderColumns {
			name, column, _ := strings.Cut(pair, "=")
			m.HeaderColumns = append(m.HeaderColumns, mapping.HeaderColumn{Name: name, Column: column})
		}
	}
	if len(s.Lock) > 0 {
		m.Lock = nil
		for _, text := range s.Lock {
			n, _ := strconv.ParseInt(text, 10, 64) // it was validated
			m.Lock = append(m.Lock, n)
		}
	}
	if strategy == logStrategy {
		m.Done, m.Claim, m.Offsets, m.Order, m.Priority, m.Types = mapping.Done{}, mapping.Claim{}, mapping.Offsets{}, "", "", nil
		m.Failure = mapping.Failure{DeadTable: m.Failure.DeadTable}
	}
	return strategy, m
}

// logStrategy is the one that reads the write-ahead log, and neither reads nor changes a row.
const logStrategy = "replication"

// keepsOffsets means that a strategy moves an offset, and marks no row.
func keepsOffsets(strategy string) bool { return strategy == "xmin" || strategy == "serial" }

// OnceOnly is why no two destinations record in one table what they have delivered.
const OnceOnly = "rows are marked, or offsets moved, once, so such a table has one destination"

// Records names the table in which a relay records what was delivered, and the setting that names the table: that of
// the messages, which it marks, or that of the offsets. It returns "" if there is none: a slot does it.
func (s *Source) Records() (table, setting string) {
	switch strategy, m := s.Resolve(); {
	case strategy == logStrategy:
		return "", ""
	case keepsOffsets(strategy):
		return m.Offsets.Table, "offsets.table"
	default:
		return m.Table, "table"
	}
}
