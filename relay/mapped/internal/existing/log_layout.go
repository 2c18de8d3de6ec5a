package existing

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay/internal/wal"
)

// logLayout is the table as it was when rows of the log were written. A log that is behind has rows of former types.
type logLayout struct {
	table   *Table // with the former types
	columns map[string]int
	invalid error // why no such row is a message
}

// newLogLayout looks up the types of a relation message. A type that the mapping can't use, or that is gone, makes its
// rows invalid: they become dead letters with that reason.
func newLogLayout(ctx context.Context, conn *pgx.Conn, t *Table, r *wal.Relation) (*logLayout, error) {
	l := &logLayout{columns: make(map[string]int, len(r.Columns))}
	oids, modifiers := make([]uint32, len(r.Columns)), make([]int32, len(r.Columns))
	for i, c := range r.Columns {
		l.columns[c.Name], oids[i], modifiers[i] = i, c.OID, c.Modifier
	}
	m := t.Mapping
	var missing []string
	for _, name := range m.MessageColumns() {
		if _, there := l.columns[name]; !there {
			missing = append(missing, strconv.Quote(name))
		}
	}
	if missing != nil {
		return nil, outbox.Permanent(fmt.Errorf("%w: table table %s the publication doesn't send what the mapping names, %s: "+
			"it has a column list; or a column is a generated one, which only PostgreSQL 18 sends (publish_generated_columns); "+
			"or a column was renamed, and a row keeps the name that the column had when it was written: give the column "+
			"and the mapping that name until such rows are delivered. The row has %s",
			mapping.ErrMapping, t.Name, strings.Join(missing, ", "), strings.Join(slices.Sorted(maps.Keys(l.columns)), ", ")))
	}
	types, err := mapping.ReadTypes(ctx, conn, oids, modifiers)
	if err != nil {
		return nil, fmt.Errorf("look up the types table the log: %w", Explain(err))
	}
	former := *t.Info
	former.Columns = types
	for i, c := range r.Columns {
		former.Columns[i].Name = c.Name
		if former.Columns[i].Kind == "" && l.invalid == nil && slices.Contains(m.MessageColumns(), c.Name) {
			former.Columns[i].Kind = mapping.KindOther
			l.invalid = fmt.Errorf("column %q had a type when the row was written that has been dropped since", c.Name)
		}
	}
	table := *t
	table.Info = &former
	table.jsonish = m.ContentType == "" && former.Column(m.Payload).Kind == mapping.KindJSON
	l.table = &table
	m.Failure, m.Offsets = mapping.Failure{}, mapping.Offsets{}
	if err := m.FitTypes(&former); err != nil && l.invalid == nil {
		l.invalid = fmt.Errorf("the row was written when the table had other types: %w", err)
	}
	return l, nil
}

// NullRow is a row of the present types in which every column is NULL.
func (t *Table) NullRow() *LogRow {
	row := &LogRow{layout: &logLayout{table: t, columns: make(map[string]int)}}
	for i, c := range t.Info.Columns {
		row.layout.columns[c.Name], row.values = i, append(row.values, wal.Value{Null: true})
	}
	return row
}

// text is a column's text as textSQL has it.
func (l *logLayout) text(name string, row *LogRow) []byte {
	text, c := row.text(name), l.table.Info.Column(name)
	switch {
	case text == nil || c == nil:
		return text
	case c.Kind == mapping.KindBoolean && string(text) == "t":
		return []byte("true")
	case c.Kind == mapping.KindBoolean && string(text) == "f":
		return []byte("false")
	case strings.HasPrefix(c.Base, "character(") || c.Base == "bpchar":
		return bytes.TrimRight(text, " ")
	}
	return text
}

// bytes returns a payload or a key; for a bytea, its bytes.
func (l *logLayout) bytes(name string, row *LogRow) ([]byte, error) {
	c := l.table.Info.Column(name)
	if c == nil || c.Kind != mapping.KindBytes {
		return l.text(name, row), nil
	}
	text := row.text(name)
	if text == nil {
		return nil, nil
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

// template evaluates a template as Table.Template does in SQL.
func (l *logLayout) template(parts []mapping.TemplatePart, row *LogRow) ([]byte, error) {
	if l.table.rawKey(parts) {
		return l.bytes(parts[0].Column, row)
	}
	var all []byte
	for _, p := range parts {
		if p.Column == "" {
			all = append(all, p.Text...)
			continue
		}
		text := l.text(p.Column, row)
		if text == nil {
			return nil, nil
		}
		if l.table.Info.Column(p.Column).Kind == mapping.KindBytes {
			text = bytes.TrimPrefix(text, []byte(`\x`))
		}
		all = append(all, text...)
	}
	return all, nil
}

var errMoments = errors.New("the server has read other times than those that it was asked for")

// moments reads times as the table's are read: all texts that need it are sent to the server, in one query. It knows
// the session's time zone, and all forms of a time. The answers are the server's binary output.
func (l *logLayout) moments(ctx context.Context, conn *pgx.Conn, name string, rows []*LogRow) (all [][]byte, err error) {
	all = make([][]byte, len(rows))
	c := l.table.Info.Column(name)
	if c == nil || c.Kind != mapping.KindTime {
		return all, nil
	}
	var texts []string
	var places []int
	for i, row := range rows {
		text := row.text(name)
		if text == nil {
			continue
		}
		if !c.Walls() {
			if all[i] = parseUTC(text); all[i] != nil {
				continue
			}
		}
		texts, places = append(texts, string(text)), append(places, i)
	}
	if texts == nil {
		return all, nil
	}
	as := "timestamptz"
	if c.Walls() {
		as = "timestamp"
	}
	answer, err := conn.Query(ctx,
		"SELECT "+c.MomentSQL("o.t::"+as)+" FROM unnest($1::text[]) WITH ORDINALITY o (t, n) ORDER BY o.n", texts)
	if err != nil {
		return nil, fmt.Errorf("read times of the log: %w", Explain(err))
	}
	defer answer.Close()
	for n := 0; answer.Next(); n++ {
		if n >= len(places) {
			return nil, errMoments
		}
		all[places[n]] = bytes.Clone(answer.RawValues()[0])
	}
	return all, answer.Err()
}

// LogRow is an inserted row, with the texts of its columns.
type LogRow struct {
	number   uint64
	relation *wal.Relation
	layout   *logLayout // of the relation, once it is read
	ID       string
	values   []wal.Value
}

// text returns a column's text; nil for NULL.
func (r *LogRow) text(name string) []byte {
	at, there := r.layout.columns[name]
	if !there || r.values[at].Null {
		return nil
	}
	return r.values[at].Text
}

// parseUTC reads a time with the offset of UTC and a year of four digits, as the server writes most of them, into the
// server's binary output. It returns nil for any other: those are the server's to read.
func parseUTC(text []byte) []byte {
	at, err := time.Parse("2006-01-02 15:04:05.999999+00", string(text))
	if err != nil {
		return nil
	}
	return binary.BigEndian.AppendUint64(nil, uint64(at.UnixMicro()-Epoch))
}
