package mapped

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/wal"
	"github.com/pgoutbox/outbox/schema"
)

// logRow is an inserted row, with the texts of its columns.
type logRow struct {
	id      string
	columns map[string]int // shared by all rows of one layout
	values  []wal.Value
}

// text returns a column's text; nil for NULL.
func (r *logRow) text(name string) []byte {
	at, there := r.columns[name]
	if !there || r.values[at].Null {
		return nil
	}
	return r.values[at].Text
}

// logRows turns inserts into the columns that decode reads, so that a message is the same whether it comes by the log
// or from the table. One goroutine at a time.
type logRows struct {
	table *table
	zone  *time.Location // of columns without a time zone
	topic []mapping.TemplatePart
	key   []mapping.TemplatePart

	layout  []string // of the last insert
	columns map[string]int
	decoded [][]byte
}

func newLogRows(t *table, zone string) *logRows {
	r := &logRows{table: t, zone: time.UTC, decoded: make([][]byte, columnCount+len(t.headers))}
	if found, err := time.LoadLocation(zone); err == nil {
		r.zone = found
	}
	r.topic, _ = mapping.ParseTemplate(t.mapping.Topic) // the template was validated
	r.key, _ = mapping.ParseTemplate(t.mapping.Key)
	return r
}

// lay finds the columns of a layout.
func (r *logRows) lay(columns []string) error {
	r.layout, r.columns = columns, make(map[string]int, len(columns))
	for i, name := range columns {
		r.columns[name] = i
	}
	var missing []string
	for _, name := range r.table.mapping.MessageColumns() {
		if _, there := r.columns[name]; !there {
			missing = append(missing, strconv.Quote(name))
		}
	}
	if missing != nil {
		return outbox.Permanent(fmt.Errorf("%w: of table %s the publication doesn't send what the mapping names, %s: "+
			"it has a column list, the table was changed, or a column is a generated one, which only PostgreSQL 18 "+
			"sends (publish_generated_columns)",
			mapping.ErrMapping, r.table.name, strings.Join(missing, ", ")))
	}
	return nil
}

func (r *logRows) read(i *wal.Insert) (d relay.Delivery, kept *logRow, err error) {
	if len(r.layout) != len(i.Columns) || len(i.Columns) > 0 && &r.layout[0] != &i.Columns[0] {
		if err := r.lay(i.Columns); err != nil {
			return d, nil, err
		}
	}
	kept = &logRow{columns: r.columns, values: keep(i.Values)}
	if err := r.fill(kept); err != nil {
		return d, nil, err
	}
	var of row
	if err := r.table.decode(&d, &of, r.decoded); err != nil {
		return d, nil, err
	}
	kept.id = of.id
	for _, name := range r.table.mapping.MessageColumns() {
		if fault := kept.values[r.columns[name]].Fault; fault != nil {
			d.Invalid = errors.Join(d.Invalid, fmt.Errorf("%s can't be read as UTF-8: %w", name, fault))
		}
	}
	return d, kept, nil
}

// keep copies values into one allocation.
func keep(values []wal.Value) []wal.Value {
	size := 0
	for i := range values {
		size += len(values[i].Text)
	}
	buf := make([]byte, 0, size)
	kept := make([]wal.Value, len(values))
	for i := range values {
		from := len(buf)
		buf = append(buf, values[i].Text...)
		kept[i] = wal.Value{Null: values[i].Null, Text: buf[from:len(buf):len(buf)], Fault: values[i].Fault}
	}
	return kept
}

// fill puts the columns into the order and formats of selectList.
func (r *logRows) fill(row *logRow) (err error) {
	m, v := &r.table.mapping, r.decoded
	var none [8]byte
	v[colID], v[colBy], v[colAttempts], v[colLayout] = r.asText(m.ID, row.text(m.ID)), none[:], none[:], none[:]
	text := func(name string) []byte { return r.asText(name, row.text(name)) }
	v[colMessageID] = text(m.MessageID)
	if v[colTopic], err = r.template(r.topic, row); err != nil {
		return err
	}
	if v[colKey], err = r.template(r.key, row); err != nil {
		return err
	}
	v[colAggregateType], v[colAggregateID], v[colEventType] = text(m.AggregateType), text(m.AggregateID), text(m.EventType)
	if v[colPayload], err = r.bytes(m.Payload, row); err != nil {
		return err
	}
	v[colContentType], v[colHeaders] = text(m.ContentType), row.text(m.Headers)
	v[colCreatedAt], v[colDeliverAt], v[colNextAttempt] = r.moment(row.text(m.CreatedAt)), r.moment(row.text(m.DeliverAt)), nil
	for i, h := range m.HeaderColumns {
		v[columnCount+i] = text(h.Column)
	}
	return nil
}

// bytes returns a payload or a key; for a bytea, its bytes.
func (r *logRows) bytes(name string, row *logRow) ([]byte, error) {
	text := row.text(name)
	if c := r.table.info.Column(name); text == nil || c == nil || c.Kind != mapping.KindBytes {
		return text, nil
	}
	digits, found := bytes.CutPrefix(text, []byte(`\x`))
	if !found {
		return nil, fmt.Errorf("column %q is a bytea and didn't come in hexadecimal digits", name)
	}
	raw := make([]byte, hex.DecodedLen(len(digits)))
	if _, err := hex.Decode(raw, digits); err != nil {
		return nil, fmt.Errorf("column %q: %w", name, err)
	}
	return raw, nil
}

// template evaluates a template as table.template does in SQL.
func (r *logRows) template(parts []mapping.TemplatePart, row *logRow) ([]byte, error) {
	if r.table.rawKey(parts) {
		return r.bytes(parts[0].Column, row)
	}
	var all []byte
	for _, p := range parts {
		if p.Column == "" {
			all = append(all, p.Text...)
			continue
		}
		text := row.text(p.Column)
		if text == nil {
			return nil, nil
		}
		if r.table.info.Column(p.Column).Kind == mapping.KindBytes {
			text = bytes.TrimPrefix(text, []byte(`\x`))
		}
		all = append(all, r.asText(p.Column, text)...)
	}
	return all, nil
}

// asText converts a type's output to the result of a cast to text, for types where the two differ.
func (r *logRows) asText(name string, text []byte) []byte {
	c := r.table.info.Column(name)
	switch {
	case text == nil || c == nil:
		return text
	case c.Kind == mapping.KindBoolean && string(text) == "t":
		return []byte("true")
	case c.Kind == mapping.KindBoolean && string(text) == "f":
		return []byte("false")
	case strings.HasPrefix(c.Type, "character("):
		return bytes.TrimRight(text, " ")
	}
	return text
}

// moment converts a time in ISO format to the server's binary output. A time outside our calendar becomes the end of it
// or NULL, as in timestamp.
func (r *logRows) moment(text []byte) []byte {
	if text == nil {
		return nil
	}
	us := int64(math.MinInt64)
	if string(text) == "infinity" {
		us = math.MaxInt64
	} else if at, err := parseMoment(string(text), r.zone); err == nil {
		us = at.UnixMicro() - epoch
	}
	return binary.BigEndian.AppendUint64(nil, uint64(us))
}

func parseMoment(text string, zone *time.Location) (at time.Time, err error) {
	for _, layout := range []string{"2006-01-02 15:04:05.999999",
		"2006-01-02 15:04:05.999999Z07", "2006-01-02 15:04:05.999999Z07:00", "2006-01-02 15:04:05.999999Z07:00:00"} {
		if at, err = time.ParseInLocation(layout, text, zone); err == nil {
			return at, nil
		}
	}
	return at, err
}

// burySQL inserts a row, as it came by the log, into the dead-letter table: it fills the columns of the same names, and
// overwrites those that describe the failure.
func (t *table) burySQL(conn *pgx.Conn, row *logRow, dead *relay.Dead) (sql string, args []any) {
	outcome := map[string]any{"reason": string(dead.Reason),
		"error": schema.Note(conn, dead.Err), "attempts": fmt.Sprint(dead.Delivery.Attempts)}
	if name := t.mapping.Failure.Error; name != "" {
		outcome[name] = outcome["error"]
	}
	if name := t.mapping.Failure.Attempts; name != "" {
		outcome[name] = outcome["attempts"]
	}
	var names, values []string
	of := make(map[string]string)
	for _, c := range t.dead.Columns {
		value, there := outcome[c.Name]
		if at, sent := row.columns[c.Name]; sent && !there {
			value, there = nil, true
			if v := row.values[at]; !v.Null {
				value = string(v.Text)
			}
		}
		switch {
		case c.Generated:
		case c.Name == "dead_at":
			names, values = append(names, schema.QuoteIdentifier(c.Name)), append(values, "now()")
		case there:
			args = append(args, value)
			of[c.Name] = fmt.Sprintf("$%d::text::%s", len(args), c.Type)
			names, values = append(names, schema.QuoteIdentifier(c.Name)), append(values, of[c.Name])
		}
	}
	return fmt.Sprintf("INSERT INTO %s (%s) OVERRIDING SYSTEM VALUE SELECT %s WHERE %s", t.dead.TableName(), strings.Join(names, ", "),
		strings.Join(values, ", "), t.notDeadYet(func(name string) string { return of[name] })), args
}
