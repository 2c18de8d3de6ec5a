package mapping

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pgoutbox/outbox/schema"
)

// ErrNotFound means that there is no table of messages with the name that Doctor was given.
var ErrNotFound = errors.New("not found")

// Report is Doctor's report about an existing outbox table.
type Report struct {
	Table    string `json:"table"`
	Preset   string `json:"preset,omitempty"` // the preset that fits; empty: the mapping was guessed from names
	Strategy string `json:"strategy,omitempty"`

	// Mapping is the proposal. Faults are the reasons why it is incomplete.
	Mapping Mapping  `json:"mapping"`
	Faults  []string `json:"faults,omitempty"`

	// Limits are what the table can't give with that strategy, Advice is what to do.
	Limits []Finding `json:"limits"`
	Advice []Finding `json:"advice"`

	// Notify is about a trigger that wakes the relay; its SQL is empty if the table has one that notifies.
	Notify Finding `json:"notify"`

	// Log is about delivery of the table by the write-ahead log instead. Its SQL creates a slot, which retains the log
	// from then on.
	Log Finding `json:"log"`
}

// Finding is a fact with its consequence.
type Finding struct {
	About string `json:"about"` // order, parallelism, stalls, dead letters, retries, archive, index, log
	Text  string `json:"text"`
	SQL   string `json:"sql,omitempty"` // what would change it
}

// Doctor reads what the catalogue knows about a table and proposes how a relay should deliver from it. It changes
// nothing and reads no row of the table. If the table doesn't exist, or is a table of offsets, the error is
// ErrNotFound.
func Doctor(ctx context.Context, q schema.Querier, table string) (*Report, error) {
	name, err := ParseTableName(table)
	if err != nil {
		return nil, fmt.Errorf("doctor: %w", err)
	}
	t, err := ReadTable(ctx, q, name)
	if err != nil {
		return nil, fmt.Errorf("doctor: %w: %w", ErrNotFound, err)
	}
	if t.Column("last_processed_id") != nil && t.Column("available_after") != nil {
		return nil, fmt.Errorf("doctor: %w: %s has the offsets of strategy xmin or serial, and no messages; name the "+
			"table that it has the offsets of, for example outbox_messages", ErrNotFound, t.TableName())
	}
	r := &Report{Table: t.TableName().String()}
	r.propose(t, table)
	if err := r.Mapping.Allowed(ctx, q, t); errors.Is(err, ErrMapping) {
		r.Faults = append(r.Faults, err.Error())
	} else if err != nil {
		return nil, fmt.Errorf("doctor: %w", err)
	}
	offsets := func() bool {
		o, err := ParseTableName(r.Mapping.Offsets.Table)
		if err != nil {
			return false
		}
		_, err = ReadTable(ctx, q, o)
		return err == nil
	}
	r.examine(t, offsets)
	if r.Notify, err = byNotification(ctx, q, t); err != nil {
		return nil, fmt.Errorf("doctor: look for triggers: %w", err)
	}
	if r.Log, err = byLog(ctx, q, t, &r.Mapping); err != nil {
		return nil, fmt.Errorf("doctor: look for what the log needs: %w", err)
	}
	return r, nil
}

// propose finds the preset that fits, or else guesses from the names of columns. It never guesses that rows may be
// deleted.
func (r *Report) propose(t *Table, named string) {
	for _, p := range Presets() {
		m := p.Mapping
		m.Table = named
		if m.Done.How == DoneDelete && !m.CalledOutbox() {
			continue // its rows may not be messages
		}
		if m.Fit(t) == nil && explains(&m, t) {
			r.Preset, r.Strategy, r.Mapping = p.Name, p.Strategy, m
			return
		}
	}
	r.Mapping = guess(t, named)
	if err := r.Mapping.Validate(); err != nil {
		r.Faults = append(r.Faults, err.Error())
	}
	if err := r.Mapping.Fit(t); err != nil {
		r.Faults = append(r.Faults, err.Error())
	}
	m := &r.Mapping
	if m.Done.How == "" && m.Offsets.Transaction == "" {
		r.Faults = append(r.Faults, "no column says that a row was delivered. If the rows are messages: add one "+
			"(published_at timestamptz, NULL until then) and name it in done, or, if they are nothing else, have "+
			"delivered rows deleted by done: {how: delete} and rows_may_be_deleted: true")
	}
	switch {
	case m.Offsets.Transaction != "" && m.Done.How == "":
		r.Strategy = XMin
	case m.Claim.Until != "" || m.Claim.Status != "":
		r.Strategy = Lease
	case m.Done.How != "":
		r.Strategy = Advisory
	}
}

// explains reports whether a mapping leaves out no column that must have a purpose: one that marks a row as done or
// claimed, or has its partition.
func explains(m *Mapping, t *Table) bool {
	g := guess(t, m.Table)
	return (g.Done.How == "" || m.Done.How == DoneStatus || m.Done.How == g.Done.How) &&
		(g.Offsets.Transaction == "" || m.Offsets.Transaction == g.Offsets.Transaction) &&
		(g.Claim.Until == "" || m.Claim.Until == g.Claim.Until)
}

// guess assigns columns by their usual names, if their types allow that.
func guess(t *Table, named string) Mapping {
	find := func(kinds []Kind, names ...string) string {
		for _, name := range names {
			for i := range t.Columns {
				c := &t.Columns[i]
				if strings.EqualFold(strings.ReplaceAll(c.Name, "_", ""), name) && (kinds == nil || slices.Contains(kinds, c.Kind)) {
					return c.Name
				}
			}
		}
		return ""
	}
	brace := func(column string) string {
		if column == "" {
			return ""
		}
		return "{" + column + "}"
	}
	text := []Kind{KindText, KindUUID, KindInteger, KindEnum}
	moment := []Kind{KindTime}
	whole := []Kind{KindInteger}
	m := Mapping{
		Table: named,
		ID: find([]Kind{KindInteger, KindUUID, KindText},
			"id", "seq", "sequence", "position", "offset", "eventid", "messageid", "outboxid"),
		MessageID:     find([]Kind{KindUUID}, "messageid", "eventid", "uuid", "idempotencykey", "dedupkey"),
		AggregateType: find(text, "aggregatetype", "rootentitytype", "entitytype", "streamtype"),
		AggregateID:   find(text, "aggregateid", "rootentityid", "entityid", "streamid", "transactionrefid"),
		EventType:     find(text, "eventtype", "type", "messagetype", "eventname", "name", "transactiontype"),
		Payload:       find([]Kind{KindBytes, KindJSON, KindText}, "payload", "data", "body", "content", "event", "message", "value"),
		ContentType:   find([]Kind{KindText}, "contenttype"),
		Headers:       find([]Kind{KindJSON, KindText}, "headers", "metadata", "meta", "attributes"),
		CreatedAt: find(moment, "createdat", "createdtime",
			"createtime", "created", "insertedat", "occurredat", "occurredon", "timestamp"),
		DeliverAt: find(moment, "deliverat", "scheduledat", "sendat", "visibleat"),
		Priority:  find(whole, "priority"),
	}
	if m.MessageID == m.ID {
		m.MessageID = ""
	}
	m.Topic = brace(find(text, "topic", "destination", "channel", "queue", "subject", "exchange", "routingkey"))
	if m.Topic == "" {
		m.Topic = brace(m.AggregateType)
	}
	m.Key = brace(find(append(text, KindBytes), "key", "partitionkey", "messagekey", "orderingkey"))
	if m.Key == "" {
		m.Key = brace(m.AggregateID)
	}
	m.Failure = Failure{
		Attempts:    find(whole, "attempts", "attempt", "retrycount", "retries", "tries", "attemptcount"),
		Error:       find([]Kind{KindText}, "error", "lasterror", "errormessage"),
		LastAttempt: find(moment, "lastattemptat", "lastattempttime", "lastattempt"),
		NextAttempt: find(moment, "nextattemptat", "nextretryat", "retryat", "nextattempt"),
	}
	m.Offsets.Transaction = find([]Kind{KindXID8}, "transactionid", "xid", "txid", "xact")
	m.Claim.Until = find(moment, "availableafter", "lockeduntil", "leaseuntil", "leaseduntil", "visibleafter", "lockexpiresat")
	if m.Claim.Until != "" {
		m.Claim.Owner = find([]Kind{KindText}, "lockedby", "owner", "claimedby", "leasedby")
	}
	mark := func(kinds []Kind, names ...string) string {
		for _, name := range names { // one that rows can wait by, if there is one
			if c := find(kinds, name); c != "" && (&Mapping{Done: Done{How: DoneTimestamp, Column: c}}).marked(t) {
				return c
			}
		}
		return find(kinds, names...)
	}
	switch done, flag := mark(moment, "processedat", "publishedat",
		"sentat", "deliveredat", "dispatchedat", "publishedtime", "processedtime", "senttime"),
		find([]Kind{KindBoolean}, "published", "processed", "sent", "delivered", "dispatched"); {
	case done == "" && flag == "" && find([]Kind{KindText, KindEnum}, "status", "state") != "":
		// Its values are in the rows; only a person can tell which of them mean what.
		m.Done = Done{How: DoneStatus, Column: find([]Kind{KindText, KindEnum}, "status", "state")}
	case done != "":
		m.Done = Done{How: DoneTimestamp, Column: done, Flag: flag}
	case flag != "":
		m.Done = Done{How: DoneBoolean, Column: flag}
	case m.Offsets.Transaction != "":
		m.Offsets.Table = "outbox_offsets"
		m.Offsets.Partition = find(whole, "partition", "shard")
	}
	if m.Done.How != "" {
		m.Offsets = Offsets{}
	}
	return m
}
