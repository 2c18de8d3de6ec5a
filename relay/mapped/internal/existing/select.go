package existing

import (
	"fmt"
	"strings"

	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/schema"
)

// rawKey means that a template is one column of type bytea, whose bytes are the key.
func (t *Table) rawKey(parts []mapping.TemplatePart) bool {
	return t.Mapping.RawKey && len(parts) == 1 && parts[0].Column != "" && t.Info.Column(parts[0].Column).Kind == mapping.KindBytes
}

// Template is a template as an expression of type text, or of bytea if it is a raw key.
func (t *Table) Template(s string) string {
	parts, _ := mapping.ParseTemplate(s) // the template was validated
	if t.rawKey(parts) {
		return Column(parts[0].Column)
	}
	var terms []string
	for _, p := range parts {
		switch {
		case p.Column == "":
			terms = append(terms, schema.QuoteLiteral(p.Text))
		case t.Info.Column(p.Column).Kind == mapping.KindBytes:
			terms = append(terms, "encode("+Column(p.Column)+", 'hex')")
		default:
			terms = append(terms, t.textSQL(p.Column))
		}
	}
	if len(terms) == 0 {
		return "NULL::text"
	}
	return "(" + strings.Join(terms, " || ") + ")"
}

// textSQL is a column as text. The log has the same: see logLayout.text.
func (t *Table) textSQL(name string) string { return t.Info.Column(name).TextSQL(Column(name)) }

// selectLists builds the lists of columns that decode reads, in its order.
func (t *Table) selectLists() {
	m := &t.Mapping
	text := func(name string) string {
		if name == "" {
			return "NULL::text"
		}
		return t.textSQL(name)
	}
	moment := func(name string) string {
		if name == "" {
			return "NULL::timestamptz"
		}
		return t.Info.Column(name).MomentSQL(Column(name))
	}
	list := make([]string, columnCount)
	list[colID] = t.ID + "::text"
	list[colBy] = t.BySQL()
	list[colMessageID] = text(m.MessageID)
	list[colTopic] = t.Template(m.Topic)
	list[colKey] = t.Template(m.Key)
	list[colAggregateType] = text(m.AggregateType)
	list[colAggregateID] = text(m.AggregateID)
	list[colEventType] = text(m.EventType)
	list[colPayload] = Column(m.Payload)
	if t.Info.Column(m.Payload).Kind != mapping.KindBytes {
		list[colPayload] += "::text"
	}
	list[colContentType] = text(m.ContentType)
	t.jsonish = m.ContentType == "" && t.Info.Column(m.Payload).Kind == mapping.KindJSON
	list[colHeaders] = text(m.Headers)
	list[colDeliverAt] = moment(m.DeliverAt)
	list[colNextAttempt] = moment("")
	if m.Failure.NextAttempt != "" {
		list[colNextAttempt] = m.NextAttempt(t.Info)
	}
	list[colCreatedAt] = moment(m.CreatedAt)
	list[colAttempts] = "0::bigint"
	if m.Failure.Attempts != "" {
		list[colAttempts] = "coalesce(" + Column(m.Failure.Attempts) + ", 0)::bigint"
		if m.Claim.Counts {
			// the claim has counted this attempt
			list[colAttempts] = "greatest(coalesce(" + Column(m.Failure.Attempts) + ", 0) - 1, 0)::bigint"
		}
	}
	list[colLayout] = t.layoutSQL()
	list[colIdentity] = t.IdentitySQL()
	for _, h := range m.HeaderColumns {
		t.headers = append(t.headers, h.Name)
		list = append(list, text(h.Column))
	}
	t.Columns = strings.Join(list, ", ")

	key, aggregateID := list[colKey], list[colAggregateID]
	for i, c := range list {
		switch i {
		case colID, colBy, colDeliverAt, colNextAttempt, colCreatedAt, colAttempts, colLayout, colIdentity:
		case colMessageID:
			if m.MessageID != "" && t.Info.Column(m.MessageID).Kind == mapping.KindText {
				list[i] = "NULL::text"
			}
		case colPayload:
			list[i] = "NULL::bytea"
		default:
			if !strings.HasPrefix(c, "NULL") {
				list[i] = "NULL::text"
			}
		}
	}
	t.bare = strings.Join(list, ", ")
	list[colKey], list[colAggregateID] = key, aggregateID
	t.keyed = strings.Join(list, ", ")
}

// IdentitySQL is a number that distinguishes a row from another one that gets its id later, after TRUNCATE … RESTART
// IDENTITY, setval, or by hand: the id, the message's own id and the time of its creation, or the payload if the table
// has neither.
func (t *Table) IdentitySQL() string {
	m := &t.Mapping
	terms := []string{t.ID + "::text"}
	if m.MessageID != "" && m.MessageID != m.ID {
		terms = append(terms, Column(m.MessageID)+"::text")
	}
	switch c := t.Info.Column(m.CreatedAt); {
	case c == nil:
	case c.Kind == mapping.KindTime:
		terms = append(terms, "extract(epoch FROM "+Column(c.Name)+")::text")
	default:
		terms = append(terms, Column(c.Name)+"::text")
	}
	if len(terms) == 1 {
		terms = append(terms, "md5("+Column(m.Payload)+"::text)")
	}
	return fmt.Sprintf(`hashtextextended(concat_ws(' ', %s) COLLATE "C", 0)`, strings.Join(terms, ", "))
}
