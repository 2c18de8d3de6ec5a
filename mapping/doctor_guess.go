package mapping

import (
	"slices"
	"strings"
)

// plain is a column's name as the lists of usual names have it.
func plain(name string) string { return strings.ToLower(strings.ReplaceAll(name, "_", "")) }

// The usual names of columns that say that a row was delivered.
var (
	doneTimes = []string{"processedat", "publishedat", "sentat", "deliveredat", "dispatchedat", "completedat", "relayedat", "producedat",
		"publishedtime", "processedtime", "senttime", "deliverytime", "completiondate", "publishedon", "processedon", "senton",
		"processeddate",
		"sentdate", "processed", "published", "sent", "delivered", "dispatched", "completed"}
	doneFlags = []string{"published", "processed", "sent", "delivered", "dispatched", "completed", "done", "ispublished", "isprocessed",
		"issent", "isdelivered", "isdispatched", "iscompleted", "isdone"}
	doneStatus = []string{"status", "state", "statusname", "eventstatus", "messagestatus", "outboxstatus"}
)

// columnOf returns the first column of a table, by the order of the names, that has one of the names and fits.
func (t *Table) columnOf(fits func(*TableColumn) bool, names ...string) string {
	for _, name := range names {
		for i := range t.Columns {
			if c := &t.Columns[i]; plain(c.Name) == name && fits(c) {
				return c.Name
			}
		}
	}
	return ""
}

func ofKind(kinds ...Kind) func(*TableColumn) bool {
	return func(c *TableColumn) bool { return slices.Contains(kinds, c.Kind) }
}

// identified reports whether a column alone identifies rows.
func (t *Table) identified(name string) bool {
	f := fitting{table: t}
	f.unique(name)
	return len(f.faults) == 0
}

// guess assigns columns by their usual names, if their types allow that.
func guess(t *Table, named string) Mapping {
	find := func(kinds []Kind, names ...string) string { return t.columnOf(ofKind(kinds...), names...) }
	brace := func(columns ...string) string {
		for _, c := range columns {
			if c != "" {
				return "{" + c + "}"
			}
		}
		return ""
	}
	text := []Kind{KindText, KindUUID, KindInteger, KindEnum}
	moment := []Kind{KindTime}
	whole := []Kind{KindInteger}
	m := Mapping{
		Table: named,
		MessageID: find([]Kind{KindUUID, KindText}, "messageid", "eventid", "uuid", "eventuuid", "identifier", "eventidentifier",
			"idempotencykey", "dedupkey"),
		AggregateType: find(text, "aggregatetype", "rootentitytype", "entitytype", "streamtype", "aggregate", "aggregatename",
			"aggtype"),
		AggregateID: find(text, "aggregateid", "aggregateidentifier", "aggregaterootid", "aggregatekey", "aggid", "rootentityid",
			"entityid",
			"streamid", "transactionrefid", "objectid", "resourceid", "rootid"),
		EventType: find(text, "eventtype", "type", "messagetype", "payloadtype", "recordtype", "eventname", "name", "transactiontype",
			"event"),
		Payload: find([]Kind{KindBytes, KindJSON, KindText}, "payload", "data", "body", "content", "serializedevent", "eventdata", "event",
			"message", "value", "invocation"),
		ContentType: find([]Kind{KindText}, "contenttype"),
		Headers:     find([]Kind{KindJSON, KindText}, "headers", "metadata", "meta", "attributes", "headerbag"),
		CreatedAt: find(moment, "createdat", "createdtime", "createtime", "created", "insertedat", "occurredat", "occurredon", "timestamp",
			"added", "enqueuetime", "publicationdate", "senttime"),
		DeliverAt: find(moment, "deliverat", "scheduledat", "sendat", "visibleat"),
		Priority:  find(whole, "priority"),
	}
	t.identify(&m)
	if m.EventType == m.Payload {
		m.EventType = ""
	}
	m.Topic = brace(find(text, "topic", "destination", "channel", "queue", "subject", "exchange", "routingkey"), m.AggregateType,
		m.EventType)
	m.Key = brace(find(append(text, KindBytes), "key", "partitionkey", "messagekey", "orderingkey", "eventkey", "recordkey"), m.AggregateID)
	m.Failure = Failure{
		Attempts: find(whole, "attempts", "attempt", "retrycount", "retries", "tries", "attemptcount", "errorscount", "errorcount",
			"failurecount", "failcount", "completionattempts"),
		Error:       find([]Kind{KindText}, "error", "lasterror", "errormessage", "errorlog", "failurereason"),
		LastAttempt: find(moment, "lastattemptat", "lastattempttime", "lastattempt"),
		NextAttempt: find(moment, "nextattemptat", "nextattempttime", "nextretryat", "retryat", "nextattempt"),
	}
	m.Offsets.Transaction = find([]Kind{KindXID8}, "transactionid", "xid", "txid", "xact")
	m.Claim.Until = find(moment, "availableafter", "lockeduntil", "leaseuntil", "leaseduntil", "visibleafter", "lockexpiresat")
	if m.Claim.Until != "" {
		m.Claim.Owner = find([]Kind{KindText}, "lockedby", "owner", "claimedby", "leasedby")
	}
	status := find([]Kind{KindText, KindEnum}, doneStatus...)
	// A time by which no row can wait is proposed too, if there is no other: the faults name what is wrong with it.
	done := t.columnOf(func(c *TableColumn) bool {
		return c.Kind == KindTime && (&Mapping{Done: Done{How: DoneTimestamp, Column: c.Name}}).marked(t)
	}, doneTimes...)
	if done == "" {
		done = t.columnOf(func(c *TableColumn) bool { return c.Kind == KindTime && c.Name != m.CreatedAt }, doneTimes...)
	}
	switch flag := find([]Kind{KindBoolean}, doneFlags...); {
	case done != "":
		m.Done = Done{How: DoneTimestamp, Column: done, Flag: flag}
	case flag != "":
		m.Done = Done{How: DoneBoolean, Column: flag}
	case status != "":
		// Its values are in the rows; only a person can tell which of them mean what.
		m.Done = Done{How: DoneStatus, Column: status}
	case m.Offsets.Transaction != "":
		m.Offsets.Table = "outbox_offsets"
		m.Offsets.Partition = find(whole, "partition", "shard")
	}
	if m.Done.How != "" {
		m.Offsets = Offsets{}
	}
	return m
}

// identify chooses the id: a number from a sequence first, because it alone gives an order. If that is not unique, rows
// are taken by it.
func (t *Table) identify(m *Mapping) {
	numbers := []string{"id", "seq", "sequence", "sequencenumber", "sequenceid", "position", "globalposition", "globalindex", "offset",
		"eventid",
		"messageid", "outboxid", "number"}
	drawn := t.columnOf(func(c *TableColumn) bool { return c.Kind == KindInteger && c.Sequence != 0 }, numbers...)
	m.ID = drawn
	if drawn == "" || !t.identified(drawn) {
		names := append(slices.DeleteFunc(slices.Clone(numbers), func(n string) bool { return n == "sequencenumber" || n == "number" }),
			"uuid")
		m.ID = t.columnOf(func(c *TableColumn) bool {
			return ofKind(KindInteger, KindUUID, KindText)(c) && t.identified(c.Name)
		}, names...)
		if m.ID == "" {
			m.ID = t.columnOf(ofKind(KindInteger, KindUUID, KindText), names...)
		}
		if drawn != m.ID {
			m.Order = drawn
		}
	}
	if m.MessageID == m.ID {
		m.MessageID = ""
	}
	if id := t.Column("id"); m.MessageID == "" && id != nil && id.Kind == KindUUID && m.ID != "id" {
		m.MessageID = "id"
	}
}

// otherMarks lists the columns that also look like marks of delivery, and that m doesn't write.
func (t *Table) otherMarks(m *Mapping) (names []string) {
	d := &m.Done
	for i := range t.Columns {
		c := &t.Columns[i]
		if slices.Contains([]string{d.Column, d.Flag, d.At, d.AckAt, m.CreatedAt, m.Failure.LastAttempt}, c.Name) {
			continue
		}
		name := plain(c.Name)
		if c.Kind == KindTime && !c.NotNull && slices.Contains(doneTimes, name) ||
			(c.Kind == KindBoolean || c.Kind == KindInteger) && slices.Contains(doneFlags, name) ||
			(c.Kind == KindText || c.Kind == KindEnum || c.Kind == KindInteger) && slices.Contains(doneStatus, name) {
			names = append(names, c.Name)
		}
	}
	return names
}

// possibleKeys lists the columns that a person might mean by the key.
func (t *Table) possibleKeys(m *Mapping) (names []string) {
	used := m.MessageColumns()
	for i := range t.Columns {
		c := &t.Columns[i]
		name := plain(c.Name)
		if (strings.HasSuffix(name, "id") || strings.HasSuffix(name, "key")) && !slices.Contains(used, c.Name) &&
			ofKind(KindText, KindUUID, KindInteger)(c) {
			names = append(names, c.Name)
		}
	}
	return names
}
