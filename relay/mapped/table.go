package mapped

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/schema"
)

// table is a mapping that fits a table, as pieces of SQL. In statements the table is m.
type table struct {
	mapping mapping.Mapping
	info    *mapping.Table

	name    string // quoted
	id      string // m."id"
	idType  string // to cast a text to the type of id
	columns string // what decode reads
	keyed   string // the same without texts, except the key
	bare    string // the same without any text
	waiting string // a row that is not done
	order   string // ORDER BY
	along   along
	by      string // the column m."column" that order follows, if it can be bounded
	headers []string
	jsonish bool // the payload is JSON and has no column for its content type

	dead  *mapping.Table
	lacks string // what the role may not do, of what a dead letter takes

	layout int64  // of the mapped columns, see layoutSQL
	zone   string // see zoneSQL

	follows *atomic.Bool // triggers run after a mark, so what they leave is looked at

	controlled bool // outbox.controls is there, and may be read
	recorded   bool // outbox.brokers is there, and may be written to
}

// along is what the order of rows says about rows that are still to be committed.
type along uint8

const (
	alongNothing  along = iota // they can appear anywhere
	alongTime                  // they appear late, in the order in which their transactions began
	alongSequence              // they appear at the end, except those of open transactions
)

// resolve compares a mapping with the catalogue.
func resolve(ctx context.Context, conn *pgx.Conn, m mapping.Mapping, strategy string) (*table, error) {
	if strategy == mapping.Replication {
		m.Done, m.Claim, m.Offsets = mapping.Done{}, mapping.Claim{}, mapping.Offsets{} // it marks nothing
	}
	info, err := readTable(ctx, conn, m.Table)
	if err == nil && strategy == mapping.Replication {
		err = permanentMapping(info.InLog())
	}
	if err == nil {
		err = permanentMapping(m.Fit(info))
	}
	if err == nil {
		err = permanentMapping(m.Allowed(ctx, conn, info))
	}
	if err != nil {
		return nil, err
	}
	t := &table{mapping: m, info: info, follows: new(atomic.Bool),
		name: info.TableName().String(), id: column(m.ID), idType: info.Column(m.ID).Type}
	if m.Failure.DeadTable != "" {
		t.dead, err = readTable(ctx, conn, m.Failure.DeadTable)
		if errors.Is(err, mapping.ErrMapping) {
			err = outbox.Permanent(fmt.Errorf("the table of dead letters: %w; if it is missing, run: outbox migrate sources --apply", err))
		}
		if err != nil {
			return nil, err
		}
		if err := t.rights(ctx, conn, strategy); err != nil {
			return nil, err
		}
	}
	tables := []string{t.name}
	if t.dead != nil {
		tables = append(tables, t.dead.TableName().String())
	}
	if err := seen(ctx, conn, tables...); err != nil {
		return nil, err
	}
	err = conn.QueryRow(ctx, "SELECT "+schema.MaySQL("controls", "SELECT")+", "+schema.MaySQL("brokers", "SELECT", "INSERT", "UPDATE")).
		Scan(&t.controlled, &t.recorded)
	if err != nil {
		return nil, fmt.Errorf("look for outbox.controls: %w", err)
	}
	t.waiting = m.Waiting()
	t.orderBy()
	t.selectLists()
	if t.layout, t.zone, err = t.look(ctx, conn); err != nil {
		return nil, err
	}
	return t, t.same(ctx, conn)
}

// rightsSQL tells which grants this role lacks to keep dead letters: for the table $1 its columns $2 that are copied,
// and whether rows are deleted ($3); for the table for dead letters $4 its columns $5 that are filled.
const rightsSQL = `
SELECT concat_ws('; ',
	'GRANT SELECT (' || (SELECT string_agg(quote_ident(c), ', ') FROM unnest($2::text[]) c WHERE NOT has_column_privilege($1::text, c, 'SELECT')) || ') ON ' || $1,
	CASE WHEN $3::boolean AND NOT has_table_privilege($1::text, 'DELETE') THEN 'GRANT DELETE ON ' || $1 END,
	'GRANT INSERT (' || (SELECT string_agg(quote_ident(c), ', ') FROM unnest($5::text[]) c WHERE NOT has_column_privilege($4::text, c, 'INSERT')) || ') ON ' || $4,
	CASE WHEN NOT has_any_column_privilege($4::text, 'SELECT') THEN 'GRANT SELECT ON ' || $4 END)`

// rights notes which grants for dead letters the role lacks: the server's own error names no column.
func (t *table) rights(ctx context.Context, conn *pgx.Conn, strategy string) error {
	copied, filled := []string{}, []string{}
	for _, c := range t.dead.Columns {
		same := t.info.Column(c.Name) != nil
		if same && strategy != mapping.Replication {
			copied = append(copied, c.Name)
		}
		if !c.Generated && (same || slices.Contains([]string{"reason", "error", "attempts", "dead_at"}, c.Name)) {
			filled = append(filled, c.Name)
		}
	}
	deletes := strategy != mapping.Replication && t.mapping.Done.How != ""
	err := conn.QueryRow(ctx, rightsSQL, t.name, copied, deletes, t.dead.TableName().String(), filled).Scan(&t.lacks)
	if err != nil {
		return fmt.Errorf("look at the rights for dead letters: %w", explain(err))
	}
	return nil
}

// same returns an error if the table was changed since its description was read: then the layout isn't that of the
// description.
func (t *table) same(ctx context.Context, conn *pgx.Conn) error {
	info, err := readTable(ctx, conn, t.mapping.Table)
	dead := t.dead
	if err == nil && dead != nil {
		dead, err = readTable(ctx, conn, t.mapping.Failure.DeadTable)
	}
	if err == nil && !(reflect.DeepEqual(info, t.info) && reflect.DeepEqual(dead, t.dead)) {
		err = t.errChanged()
	}
	return err
}

// readTable reads a table's description from the catalogue.
func readTable(ctx context.Context, q schema.Querier, table string) (*mapping.Table, error) {
	name, err := mapping.ParseTableName(table)
	if err != nil {
		return nil, outbox.Permanent(err)
	}
	info, err := mapping.ReadTable(ctx, q, name)
	return info, permanentMapping(err)
}

// permanentMapping marks errors that waiting doesn't cure.
func permanentMapping(err error) error {
	if errors.Is(err, mapping.ErrMapping) {
		return outbox.Permanent(err)
	}
	return err
}

// seen refuses tables whose policies hide rows from this role.
func seen(ctx context.Context, conn *pgx.Conn, tables ...string) error {
	err := schema.CheckVisible(ctx, conn, tables...)
	if errors.Is(err, schema.ErrHidden) {
		err = outbox.Permanent(err)
	}
	return err
}

// column is a column of the message table as statements name it.
func column(name string) string { return "m." + schema.QuoteIdentifier(name) }

// orderBy chooses the order of rows, and what follows from it for uncommitted rows.
func (t *table) orderBy() {
	m := &t.mapping
	id := t.info.Column(m.ID)
	by := m.Order
	if by == "" {
		by = m.ID
		if id.Kind != mapping.KindInteger && m.CreatedAt != "" {
			by = m.CreatedAt
		}
	}
	c := t.info.Column(by)
	terms := []string{column(by)}
	switch {
	case c.Disorder() == "":
		t.along = alongSequence
	case c.Kind == mapping.KindInteger, c.Kind == mapping.KindTime:
		t.along = alongTime
	}
	t.by = column(by)
	if by != m.ID {
		terms = append(terms, t.id)
	}
	if m.Priority != "" {
		terms = slices.Insert(terms, 0, column(m.Priority)+" DESC NULLS LAST")
		t.along = alongNothing
	}
	if len(m.Types) > 0 {
		quoted := make([]string, len(m.Types))
		for i, name := range m.Types {
			quoted[i] = schema.QuoteLiteral(name)
		}
		terms = slices.Insert(terms, 0, "array_position(ARRAY["+strings.Join(quoted, ", ")+"]::text[], "+column(m.EventType)+"::text)")
		t.along = alongNothing
	}
	t.order = strings.Join(terms, ", ")
}

// ordered is the column that order follows.
func (t *table) ordered() *mapping.TableColumn { return t.info.Column(unqualified(t.by)) }

// The ends of a number of the order. A row without a time is the last, as it is in SQL.
const (
	firstBy = math.MinInt64 + 1
	lastBy  = math.MaxInt64 - 1
)

// bySQL is the order column as a whole number: an id, or microseconds since 2000. A time without a zone is counted as
// if it were in UTC: the order of such times is that of their clocks.
func (t *table) bySQL() string {
	switch {
	case t.along == alongNothing:
		return "0::bigint"
	case t.ordered().Kind == mapping.KindTime:
		return fmt.Sprintf("CASE WHEN isfinite(%[1]s) THEN ((extract(epoch FROM %[1]s) - 946684800) * 1000000)::bigint "+
			"WHEN %[1]s < '2000-01-01' THEN %[2]d::bigint ELSE %[3]d::bigint END", t.by, firstBy, lastBy)
	}
	return t.by + "::bigint"
}

func unqualified(column string) string {
	return strings.ReplaceAll(strings.TrimSuffix(strings.TrimPrefix(column, `m."`), `"`), `""`, `"`)
}

// fromStart replaces fromSQL in a poll without a bound: the column of a row may be NULL.
const fromStart = "$1::bigint IS NOT NULL"

// fromSQL bounds the order column from below by $1. Rows at the bound itself are read again if several rows can have
// the same value. A bound of times is a finite one: see horizon.
func (t *table) fromSQL() string {
	switch {
	case t.along == alongNothing:
		return fromStart
	case t.ordered().Kind == mapping.KindTime:
		return fmt.Sprintf("%s >= '2000-01-01 00:00:00Z'::%s + $1::bigint * interval '1 microsecond'", t.by, t.ordered().Base)
	}
	return fmt.Sprintf("%s > $1::bigint", t.by)
}

// rawKey means that a template is one column of type bytea, whose bytes are the key.
func (t *table) rawKey(parts []mapping.TemplatePart) bool {
	return t.mapping.RawKey && len(parts) == 1 && parts[0].Column != "" && t.info.Column(parts[0].Column).Kind == mapping.KindBytes
}

// template is a template as an expression of type text, or of bytea if it is a raw key.
func (t *table) template(s string) string {
	parts, _ := mapping.ParseTemplate(s) // the template was validated
	if t.rawKey(parts) {
		return column(parts[0].Column)
	}
	var terms []string
	for _, p := range parts {
		switch {
		case p.Column == "":
			terms = append(terms, schema.QuoteLiteral(p.Text))
		case t.info.Column(p.Column).Kind == mapping.KindBytes:
			terms = append(terms, "encode("+column(p.Column)+", 'hex')")
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
func (t *table) textSQL(name string) string { return t.info.Column(name).TextSQL(column(name)) }

// selectLists builds the lists of columns that decode reads, in its order.
func (t *table) selectLists() {
	m := &t.mapping
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
		return t.info.Column(name).MomentSQL(column(name))
	}
	list := make([]string, columnCount)
	list[colID] = t.id + "::text"
	list[colBy] = t.bySQL()
	list[colMessageID] = text(m.MessageID)
	list[colTopic] = t.template(m.Topic)
	list[colKey] = t.template(m.Key)
	list[colAggregateType] = text(m.AggregateType)
	list[colAggregateID] = text(m.AggregateID)
	list[colEventType] = text(m.EventType)
	list[colPayload] = column(m.Payload)
	if t.info.Column(m.Payload).Kind != mapping.KindBytes {
		list[colPayload] += "::text"
	}
	list[colContentType] = text(m.ContentType)
	t.jsonish = m.ContentType == "" && t.info.Column(m.Payload).Kind == mapping.KindJSON
	list[colHeaders] = text(m.Headers)
	list[colDeliverAt] = moment(m.DeliverAt)
	list[colNextAttempt] = moment("")
	if m.Failure.NextAttempt != "" {
		list[colNextAttempt] = m.NextAttempt(t.info)
	}
	list[colCreatedAt] = moment(m.CreatedAt)
	list[colAttempts] = "0::bigint"
	if m.Failure.Attempts != "" {
		list[colAttempts] = "coalesce(" + column(m.Failure.Attempts) + ", 0)::bigint"
		if m.Claim.Counts {
			// the claim has counted this attempt
			list[colAttempts] = "greatest(coalesce(" + column(m.Failure.Attempts) + ", 0) - 1, 0)::bigint"
		}
	}
	list[colLayout] = t.layoutSQL()
	list[colIdentity] = t.identitySQL()
	for _, h := range m.HeaderColumns {
		t.headers = append(t.headers, h.Name)
		list = append(list, text(h.Column))
	}
	t.columns = strings.Join(list, ", ")

	key, aggregateID := list[colKey], list[colAggregateID]
	for i, c := range list {
		switch i {
		case colID, colBy, colDeliverAt, colNextAttempt, colCreatedAt, colAttempts, colLayout, colIdentity:
		case colMessageID:
			if m.MessageID != "" && t.info.Column(m.MessageID).Kind == mapping.KindText {
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

// identitySQL is a number of what tells a row from another that gets its id later, after TRUNCATE … RESTART IDENTITY,
// setval, or by hand: the id, the message's own id and the time of its creation, or the payload if the table has
// neither.
func (t *table) identitySQL() string {
	m := &t.mapping
	terms := []string{t.id + "::text"}
	if m.MessageID != "" && m.MessageID != m.ID {
		terms = append(terms, column(m.MessageID)+"::text")
	}
	switch c := t.info.Column(m.CreatedAt); {
	case c == nil:
	case c.Kind == mapping.KindTime:
		terms = append(terms, "extract(epoch FROM "+column(c.Name)+")::text")
	default:
		terms = append(terms, column(c.Name)+"::text")
	}
	if len(terms) == 1 {
		terms = append(terms, "md5("+column(m.Payload)+"::text)")
	}
	return fmt.Sprintf(`hashtextextended(concat_ws(' ', %s) COLLATE "C", 0)`, strings.Join(terms, ", "))
}

// lock is the pair of numbers of the table's advisory lock.
func (t *table) lock() string {
	switch l := t.mapping.Lock; len(l) {
	case 1:
		return fmt.Sprintf("%d::bigint", l[0])
	case 2:
		return fmt.Sprintf("%d::integer, %d::integer", int32(l[0]), int32(l[1]))
	}
	return fmt.Sprintf("%d::bigint", int64(hash64("pgoutbox\x00"+t.info.Schema+"\x00"+t.info.Name)))
}

// nameLock is the advisory lock of a relay's name.
func (t *table) nameLock(name string) string {
	return fmt.Sprintf("%d::bigint", int64(hash64("pgoutbox relay\x00"+t.info.Schema+"\x00"+t.info.Name+"\x00"+name)))
}

func hash64(s string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s)) // it never fails
	return h.Sum64()
}

// numbered reports whether ids are whole numbers.
func (t *table) numbered() bool { return t.info.Column(t.mapping.ID).Kind == mapping.KindInteger }
