package mapping

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pgoutbox/outbox/schema"
)

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

// examine reports what the table can't give, and what is missing.
func (r *Report) examine(t *Table, offsetsThere func() bool) {
	limit := func(about, format string, args ...any) {
		r.Limits = append(r.Limits, Finding{About: about, Text: fmt.Sprintf(format, args...)})
	}
	advise := func(about, sql, format string, args ...any) {
		r.Advice = append(r.Advice, Finding{About: about, SQL: sql, Text: fmt.Sprintf(format, args...)})
	}
	m := &r.Mapping
	id := t.Column(m.ID)
	if id == nil {
		return // the faults tell that
	}
	moves := r.Strategy == XMin || r.Strategy == Serial
	by := id
	if m.Order != "" {
		by = t.Column(m.Order)
	}
	if m.Done.How == DoneDelete {
		limit("deletion",
			"delivered rows are DELETED (done: {how: delete}): to keep them, add a column (published_at timestamptz, NULL until "+
				"then) and name it, done: {how: timestamp, column: published_at}, or read the table by the write-ahead log")
	}
	if m.Key == "" && m.AggregateID == "" && r.Preset == "" {
		text := "no column is the key, so messages have no order among each other, and go to any partition"
		if names := t.possibleKeys(m); len(names) > 0 {
			text += ": if one of " + strings.Join(names, ", ") + " is it, name it in columns.key, as {" + names[0] + "}"
		}
		limit("order", "%s", text)
	}
	if others := t.otherMarks(m); len(others) > 0 && !moves {
		how := "no column that can be used says that a row was delivered"
		if m.Done.Column != "" {
			how = fmt.Sprintf("%q says that a row was delivered", m.Done.Column)
		}
		limit("done",
			"%s, and nothing will write %s, which look as if they said so too. A boolean can be named in done.flag; a status of text "+
				"with its values is done: {how: status, column: …, waiting: …, value: …, at: TIME}; what is a number can't be written", how,
			strings.Join(others, ", "))
	}
	switch {
	case r.Strategy == XMin:
		limit("order", "rows are read by transaction id, and a transaction may take its id before it waits for another "+
			"that writes the same key: such a pair is inverted")
		limit("stalls", "any open transaction that writes, in any database of the cluster, holds up what commits after it")
	case r.Strategy == Serial:
		limit("stalls", "a transaction that has written to the table and stays open holds up what commits after it")
	case by.Disorder() != "":
		limit("order", "%s, so nothing tells in which order transactions took a key: messages of a key can be inverted", by.Disorder())
	}
	if why := id.oneSource(); why != "" && t.spread(id.Name) {
		limit("ids", "no index spans all partitions or children, and column %q is taken for unique because %s: a row that is given "+
			"the id of another by hand would be marked with it, and not be delivered", id.Name, why)
	}
	switch r.Strategy {
	case SkipLocked:
		limit("stalls", "a transaction is open while its batch is published: when the broker does not answer, vacuum "+
			"waits for it, and so do writers that lock rows of the table")
	case Lease:
		limit("cost", "every row is written twice before it is gone: more WAL and twice the dead rows of the other strategies")
	case Advisory:
		limit("parallelism", "one relay reads the table at a time, others stand by; it holds a lock of its session, so "+
			"a pooler in transaction mode is refused")
	}
	if moves {
		limit("retries", "a message that has to wait holds its partition's offset back: what was delivered behind it "+
			"comes again after a restart, at most 10,000 messages")
		if !offsetsThere() {
			advise("offsets", OffsetsDDL(r.offsetsName()), "the table of offsets is missing")
		}
	}
	if m.Failure.Attempts == "" && !moves {
		limit("retries", "no column counts attempts: they begin anew when a relay restarts")
	}
	if !m.Failure.Place() {
		advise("dead letters", DeadDDL(TableName{Schema: t.Schema, Name: t.Name + "_dead"}, t),
			"the table has no place for messages that can't be delivered: their keys stay blocked until an operator "+
				"changes the row. Or create a table for them and name it in failure.dead_table")
	}
	if r.Strategy == Lease && m.Claim.Owner == "" && m.Claim.Until != "" {
		advise("restarts", fmt.Sprintf("ALTER TABLE %s ADD COLUMN locked_by text;", r.Table),
			"a relay that restarts waits until its own reservations end; with a column for the owner (claim.owner) it "+
				"takes them back at once")
	}
	if m.Done.How != "" && m.Done.How != DoneDelete && (m.Done.At != "" || m.Done.How == DoneTimestamp) {
		name := strings.TrimSuffix(r.Table, `"`) + `_archive"`
		advise("archive", fmt.Sprintf("CREATE TABLE %s (LIKE %s);", name, r.Table),
			"delivered rows stay until they are purged (purge: {keep: 720h}); to move them instead, create a table for "+
				"them and name it in purge.archive_table")
	}
	r.index(t, advise)
}

func (r *Report) offsetsName() TableName {
	name, err := ParseTableName(r.Mapping.Offsets.Table)
	if err != nil {
		return TableName{Name: "outbox_offsets"}
	}
	return name
}

// index proposes the index for polls, unless there is one.
func (r *Report) index(t *Table, advise func(about, sql, format string, args ...any)) {
	m := &r.Mapping
	create, hint := "CREATE INDEX CONCURRENTLY", ""
	if t.Partitioned { // PostgreSQL can't build the index of such a table concurrently
		create, hint = "CREATE INDEX", ". Writers wait while it is made; if that is too long, make it ON ONLY the "+
			"table, CONCURRENTLY on each partition, and attach these"
	}
	if r.Strategy == XMin || r.Strategy == Serial {
		var want []string
		for _, c := range []string{m.Offsets.Topic, m.Offsets.Partition, m.Offsets.Transaction, m.ID} {
			if c != "" && (c != m.Offsets.Transaction || r.Strategy == XMin) {
				want = append(want, c)
			}
		}
		if !slices.ContainsFunc(t.Indexes, func(i TableIndex) bool { return i.Predicate == "" && startsWith(i.Columns, want) }) {
			advise("index", fmt.Sprintf("%s ON %s (%s);", create, r.Table, quoted(want)),
				"no index leads from an offset to the rows behind it%s", hint)
		}
		return
	}
	by := m.Order
	if by == "" {
		by = m.ID
		if c := t.Column(m.ID); c.Kind != KindInteger && m.CreatedAt != "" {
			by = m.CreatedAt
		}
	}
	waiting := ""
	column := schema.QuoteIdentifier(m.Done.Column)
	switch m.Done.How {
	case DoneTimestamp:
		waiting = column + " IS NULL"
	case DoneBoolean:
		waiting = column + " = false OR " + column + " IS NULL"
	case DoneStatus:
		values := schema.QuoteLiteral(m.Done.Waiting)
		if m.Claim.Status != "" {
			values += ", " + schema.QuoteLiteral(m.Claim.Status)
		}
		waiting = column + " IN (" + values + ")"
	}
	for _, i := range t.Indexes {
		all := waiting == "" && i.Predicate == ""
		partial := waiting != "" && i.Predicate != "" && strings.Contains(i.Predicate, m.Done.Column)
		if (all || partial) && startsWith(i.Columns, []string{by}) ||
			m.Done.How == DoneTimestamp && startsWith(i.Columns, []string{m.Done.Column, by}) {
			return
		}
	}
	columns := []string{by}
	if by != m.ID {
		columns = append(columns, m.ID)
	}
	sql := fmt.Sprintf("%s ON %s (%s)", create, r.Table, quoted(columns))
	if waiting != "" {
		sql += " WHERE " + waiting
	}
	advise("index", sql+";",
		"no index has the waiting rows in the order in which they are read: every poll reads or sorts more than it needs%s", hint)
}

func startsWith(columns, want []string) bool {
	return len(columns) >= len(want) && slices.Equal(columns[:len(want)], want)
}

func quoted(columns []string) string {
	all := make([]string, len(columns))
	for i, c := range columns {
		all[i] = schema.QuoteIdentifier(c)
	}
	return strings.Join(all, ", ")
}
