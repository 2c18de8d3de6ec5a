package mapping

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/internal/shell"
	"github.com/pgoutbox/outbox/schema"
)

// MoveTrigger is the name of the trigger that Move makes.
const MoveTrigger = "outbox_move"

// Move returns statements for the way from a table to the outbox's own. After begin, each row that is inserted, and
// that a relay with the strategy would take now or at a known time, becomes a message of the outbox in the same
// transaction, and is marked as delivered (or deleted), so that a relay of the table leaves it alone. The message is
// due when the row was. A row that is inserted as done, dead, claimed by a status or blocked is left as it is, and so
// is one that begins to wait later: these are the relay's. begin waits for the transactions that have inserted rows:
// what they wrote stays with that relay. So every row is delivered on one of the two ways. back takes the trigger away
// again.
//
// The role has to have the rights of the table's owner, who has to be a writer of the outbox: the trigger acts with the
// owner's rights. A message has the texts and headers that a relay would have read. A row keeps its message id if that
// is a UUID. What the outbox's limits refuse is refused to the row's writer.
func (m *Mapping) Move(t *Table, strategy string) (begin, back string, err error) {
	var faults settings.Faults
	faults.Add("", m.Validate())
	faults.Add("", m.Fit(t))
	faults.Need(m.Done.How != "", "Done.How", "rows that offsets move over can't be marked as delivered one by one")
	for _, column := range templateColumns(m.Key) {
		c := t.Column(column)
		faults.Need(c == nil || c.Kind != KindBytes, "Key", "column %q is bytea, and the outbox's keys are text", column)
	}
	faults.Need(t.Writer, "", "%q owns the table, and may not write messages, and the trigger has its rights: as the owner of "+
		"schema outbox, run: outbox migrate grants --apply --writer %s", t.Owner, shell.Word(t.Owner))
	if err := faults.Err(); err != nil {
		return "", "", fmt.Errorf("move from table %s: %w", t.TableName(), err)
	}
	function := moveFunction(t)
	// What a comment says of an earlier trigger doesn't hold for one by another mapping.
	begin = schema.TriggerFunction(function, t.Owner, "", m.moveBody(t, strategy)) + fmt.Sprintf(
		"CREATE OR REPLACE TRIGGER %[1]s AFTER INSERT ON %[2]s FOR EACH ROW EXECUTE FUNCTION %[3]s();\n"+
			"COMMENT ON TRIGGER %[1]s ON %[2]s IS NULL;\n", MoveTrigger, t.TableName(), function)
	back = fmt.Sprintf("DROP TRIGGER IF EXISTS %s ON %s;\nDROP FUNCTION IF EXISTS %s();\n", MoveTrigger, t.TableName(), function)
	return begin, back, nil
}

// moveFunction is the quoted name of the trigger's function. A name has 63 bytes.
func moveFunction(t *Table) string {
	name := t.Name + "_" + MoveTrigger
	if len(name) > 63 {
		name = strings.ToValidUTF8(fmt.Sprintf("%s_%d_%s", MoveTrigger, t.OID, t.Name)[:63], "")
	}
	return TableName{t.Schema, name}.String()
}

// newColumn is a column of the row that is inserted, as SQL.
func newColumn(name string) string { return "new." + schema.QuoteIdentifier(name) }

// newText is the column as a relay reads it, or NULL if name is empty.
func (t *Table) newText(name string) string {
	if name == "" {
		return "NULL"
	}
	return t.Column(name).TextSQL(newColumn(name))
}

// moveBody is the body of the trigger's function. A row is copied if it could be marked, so the relay's
// conditions decide. The session's time zone stays, because a time without a zone depends on it: when to deliver, and
// when a row was delivered.
func (m *Mapping) moveBody(t *Table, strategy string) string {
	key := "NULL"
	if m.Key != "" {
		key = t.templateSQL(m.Key)
	}
	waits, due := m.due(t, strategy)
	payload, contentType := "convert_to("+newColumn(m.Payload)+"::text, 'UTF8')", "NULL"
	switch t.Column(m.Payload).Kind {
	case KindBytes:
		payload = newColumn(m.Payload)
	case KindJSON:
		contentType = "'application/json'"
	}
	if m.ContentType != "" {
		contentType = t.newText(m.ContentType)
	}
	return fmt.Sprintf(`
DECLARE
    due timestamptz;
BEGIN
    IF %[1]s THEN
        RAISE EXCEPTION 'the table has another owner than the trigger %[2]s' USING HINT = 'Run outbox migrate from --step 1 again.';
    END IF;
    %[12]s
        WHERE %[13]s
        RETURNING %[14]s INTO due;
    IF FOUND THEN
        PERFORM outbox.publish(%[3]s, %[4]s, key => %[5]s,
            headers => %[6]s,
            aggregate_type => %[7]s, aggregate_id => %[8]s, event_type => %[9]s, content_type => %[10]s, message_id => %[11]s,
            deliver_at => CASE WHEN due >= '1970-01-01 00:00:00+00' THEN least(due, '9999-12-31 23:59:59.999999+00') END);
    END IF;
    RETURN NULL;
END `, schema.OwnedByAnotherSQL, MoveTrigger, t.templateSQL(m.Topic), payload, key, m.headersSQL(t), t.newText(m.AggregateType),
		t.newText(m.AggregateID), t.newText(m.EventType), contentType, m.messageIDSQL(t),
		m.deliveredSQL(t), strings.Join(append(waits, "m."+schema.QuoteIdentifier(m.ID)+" = "+newColumn(m.ID)), " AND "), due)
}

// due are the conditions, on the table as m, that a relay delivers a row without an operator, and the time from which
// on. Only a relay that leases rows heeds the time until which one is claimed.
func (m *Mapping) due(t *Table, strategy string) (waits []string, due string) {
	waits = []string{m.Waiting()}
	var times []string
	if m.DeliverAt != "" {
		times = append(times, t.Column(m.DeliverAt).MomentSQL("m."+schema.QuoteIdentifier(m.DeliverAt)))
	}
	if m.Failure.NextAttempt != "" {
		next := m.NextAttempt(t)
		waits, times = append(waits, "("+next+" = 'infinity') IS NOT TRUE"), append(times, next)
	}
	if until := m.Claim.Until; until != "" && strategy == Lease {
		moment := t.Column(until).MomentSQL("m." + schema.QuoteIdentifier(until))
		free := "(" + moment + " = 'infinity') IS NOT TRUE"
		if released := m.Released(); released != "" {
			free = "(" + free + " OR " + released + ")"
		}
		waits, times = append(waits, free), append(times, "nullif("+moment+", 'infinity')")
	}
	if times == nil {
		return waits, "NULL"
	}
	return waits, "greatest(" + strings.Join(times, ", ") + ")"
}

// messageIDSQL is the message's id if it is a UUID, be it as a text.
func (m *Mapping) messageIDSQL(t *Table) string {
	const digit = "[0123456789abcdefABCDEF]" // what a range means depends on the database's locale
	name := cmp.Or(m.MessageID, m.ID)
	switch t.Column(name).Kind {
	case KindUUID:
		return newColumn(name)
	case KindText:
		return fmt.Sprintf("CASE WHEN %[1]s ~ '^%[2]s{8}(-%[2]s{4}){3}-%[2]s{12}$' THEN (%[1]s)::uuid END", t.newText(name), digit)
	}
	return "NULL"
}

// headersSQL are the headers as a relay has them: of a name that comes twice in the object the last one counts, the
// object's before a column's, and the first column's. The highest place counts.
func (m *Mapping) headersSQL(t *Table) string {
	headers := "SELECT NULL AS name, NULL AS value, NULL::bigint AS place"
	if m.Headers != "" {
		headers += fmt.Sprintf(" UNION ALL SELECT key, coalesce(value, 'null'), ordinality FROM "+
			"json_each_text(nullif(nullif(btrim(%s, E' \\t\\r\\n'), ''), 'null')::json) WITH ORDINALITY", t.newText(m.Headers))
	}
	for i, h := range m.HeaderColumns {
		headers += fmt.Sprintf(" UNION ALL SELECT %s, %s, %d", schema.QuoteLiteral(h.Name), t.newText(h.Column), -i)
	}
	return "(SELECT jsonb_object_agg(name, value ORDER BY place) FROM (" + headers + ") h WHERE value IS NOT NULL)"
}

// deliveredSQL is the beginning of the statement that marks a row as a relay does that has delivered it.
func (m *Mapping) deliveredSQL(t *Table) string {
	if m.Done.How == DoneDelete {
		return "DELETE FROM " + t.TableName().String() + " AS m"
	}
	return "UPDATE " + t.TableName().String() + " AS m SET " + m.SetDone().String()
}

// templateSQL is a template over the columns of a row that is new. It is NULL if one of them is.
func (t *Table) templateSQL(template string) string {
	parts, _ := ParseTemplate(template) // it is valid
	var sql []string
	for _, p := range parts {
		if p.Column != "" {
			sql = append(sql, t.newText(p.Column))
		} else {
			sql = append(sql, schema.QuoteLiteral(p.Text))
		}
	}
	return strings.Join(sql, " || ")
}
