package mapping

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/schema"
)

// MoveTrigger is the name of the trigger that Move makes.
const MoveTrigger = "outbox_move"

// Move returns statements for the way from a table to the outbox's own. After begin, each row that is inserted becomes
// a message of the outbox in the same transaction, and is marked as delivered (or deleted), so that a relay of the
// table leaves it alone. begin waits for the transactions that have inserted rows: what they wrote stays with that
// relay. So every row is delivered on one of the two ways. back takes the trigger away again.
//
// The role has to own the table and to be a writer of the outbox: the trigger acts with its rights. A row keeps its
// message id if that is a UUID. What the outbox's limits refuse is refused to the row's writer.
func (m *Mapping) Move(t *Table) (begin, back string, err error) {
	var faults settings.Faults
	faults.Add("", m.Validate())
	faults.Add("", m.Fit(t))
	faults.Need(m.Done.How != "", "Done.How", "rows that offsets move over can't be marked as delivered one by one")
	for _, column := range templateColumns(m.Key) {
		c := t.Column(column)
		faults.Need(c == nil || c.Kind != KindBytes, "Key", "column %q is bytea, and the outbox's keys are text", column)
	}
	if err := faults.Err(); err != nil {
		return "", "", fmt.Errorf("move from table %s: %w", t.TableName(), err)
	}
	column := func(name, cast string) string {
		if name == "" {
			return "NULL"
		}
		return "new." + schema.QuoteIdentifier(name) + cast
	}
	key := "NULL"
	if m.Key != "" {
		key = templateSQL(m.Key)
	}
	id := "NULL"
	if name := cmp.Or(m.MessageID, m.ID); t.Column(name).Kind == KindUUID {
		id = column(name, "")
	}
	payload, contentType := "convert_to("+column(m.Payload, "::text")+", 'UTF8')", "NULL"
	switch t.Column(m.Payload).Kind {
	case KindBytes:
		payload = column(m.Payload, "")
	case KindJSON:
		contentType = "'application/json'"
	}
	if m.ContentType != "" {
		contentType = column(m.ContentType, "::text")
	}
	headers := "SELECT NULL::text AS name, NULL::text AS value"
	if m.Headers != "" {
		headers += " UNION ALL SELECT * FROM jsonb_each_text(" + column(m.Headers, "::jsonb") + ")"
	}
	for _, h := range m.HeaderColumns {
		value := column(h.Column, "::text")
		if t.Column(h.Column).Type == "timestamp with time zone" {
			value = fmt.Sprintf("CASE WHEN isfinite(%[1]s) THEN (%[1]s AT TIME ZONE 'UTC')::text || '+00' ELSE %[1]s::text END",
				column(h.Column, ""))
		}
		headers += " UNION ALL SELECT " + schema.QuoteLiteral(h.Name) + ", " + value
	}
	function := TableName{t.Schema, t.Name[:min(len(t.Name), 50)] + "_outbox_move"}.String()
	// The texts don't depend on the settings of the session that inserts. Its time zone stays, because it says what a
	// time without a zone means: when to deliver, and when a row was delivered.
	begin = fmt.Sprintf(`CREATE OR REPLACE FUNCTION %[1]s() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog SET datestyle = ISO SET intervalstyle = postgres SET bytea_output = hex SET extra_float_digits = 1 AS $outbox$
BEGIN
    PERFORM outbox.publish(%[2]s, %[3]s, key => %[4]s,
        headers => (SELECT jsonb_object_agg(name, value) FROM (%[5]s) h WHERE value IS NOT NULL),
        aggregate_type => %[6]s, aggregate_id => %[7]s, event_type => %[8]s,
        content_type => %[9]s, deliver_at => %[10]s, message_id => %[11]s);
    %[12]s;
    RETURN NULL;
END $outbox$;
REVOKE ALL ON FUNCTION %[1]s() FROM PUBLIC;
CREATE OR REPLACE TRIGGER %[13]s AFTER INSERT ON %[14]s FOR EACH ROW EXECUTE FUNCTION %[1]s();
`, function, templateSQL(m.Topic), payload, key, headers,
		column(m.AggregateType, "::text"), column(m.AggregateID, "::text"), column(m.EventType, "::text"), contentType,
		column(m.DeliverAt, "::timestamptz"), id, m.delivered(t)+" WHERE "+schema.QuoteIdentifier(m.ID)+" = "+column(m.ID, ""),
		MoveTrigger, t.TableName())
	back = fmt.Sprintf("DROP TRIGGER IF EXISTS %s ON %s;\nDROP FUNCTION IF EXISTS %s();\n", MoveTrigger, t.TableName(), function)
	return begin, back, nil
}

// delivered is the beginning of the statement that marks a row as a relay does that has delivered it.
func (m *Mapping) delivered(t *Table) string {
	if m.Done.How == DoneDelete {
		return "DELETE FROM " + t.TableName().String()
	}
	var set []string
	mark := func(column, value string) {
		if column != "" {
			set = append(set, schema.QuoteIdentifier(column)+" = "+value)
		}
	}
	switch m.Done.How {
	case DoneTimestamp:
		mark(m.Done.Column, "clock_timestamp()")
	case DoneBoolean:
		mark(m.Done.Column, "true")
	case DoneStatus:
		mark(m.Done.Column, schema.QuoteLiteral(m.Done.Value))
	}
	mark(m.Done.Flag, "true")
	mark(m.Done.At, "clock_timestamp()")
	mark(m.Done.UpdatedAt, "clock_timestamp()")
	return "UPDATE " + t.TableName().String() + " SET " + strings.Join(set, ", ")
}

// templateSQL is a template over the columns of a row that is new. It is NULL if one of them is.
func templateSQL(template string) string {
	parts, _ := ParseTemplate(template) // it is valid
	var sql []string
	for _, p := range parts {
		if p.Column != "" {
			sql = append(sql, "new."+schema.QuoteIdentifier(p.Column)+"::text")
		} else {
			sql = append(sql, schema.QuoteLiteral(p.Text))
		}
	}
	return strings.Join(sql, " || ")
}
