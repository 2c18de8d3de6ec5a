package mapping

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/sqlstate"
	"github.com/pgoutbox/outbox/schema"
)

// ErrMapping means that a mapping and its table don't fit each other.
var ErrMapping = errors.New("the mapping doesn't fit the table")

// Kind is the class of a column's type.
type Kind string

const (
	KindInteger Kind = "integer"
	KindUUID    Kind = "uuid"
	KindText    Kind = "text" // text, varchar, char, citext, name
	KindEnum    Kind = "enum"
	KindBytes   Kind = "bytea"
	KindJSON    Kind = "json" // json or jsonb
	KindTime    Kind = "time" // timestamp, with or without a zone
	KindBoolean Kind = "boolean"
	KindXID8    Kind = "xid8"
	KindOther   Kind = "other"
)

// Table is a table's description from the catalogue.
type Table struct {
	OID         uint32
	Schema      string
	Name        string
	Owner       string
	Writer      bool // the owner may write messages of the outbox
	Partitioned bool
	Columns     []TableColumn
	Indexes     []TableIndex

	// Children are the tables that inherit from it and are no partitions, Foreign are its foreign partitions and
	// children. Queries of the table read their rows; its log doesn't have them.
	Children, Foreign []string
}

// TableColumn is a column of a Table.
type TableColumn struct {
	Name string
	Type string // as format_type writes it
	Base string // the same of the type below a domain
	Kind Kind   // of Base

	// Cast means that a cast to text gives another text than the type's output. Varies means that the output depends on
	// the session: on its search path, or on its time zone although it isn't a time.
	Cast, Varies bool

	NotNull bool   // also by a domain
	Default string // expression; empty for none; also of a domain

	Generated bool // always, from other columns
	Identity  bool // always, from its sequence

	Labels []string      // of an enum
	Length int           // the most characters; 0: any number
	Folds  bool          // equal values can be different texts, as of citext
	Checks []ColumnCheck // conditions on this column alone: of the table and of domains

	// Sequence is the OID of the sequence whose numbers are the values, unchanged; 0 for none. See Disorder.
	Sequence         uint32
	Cache, Increment int64 // of Sequence: how many numbers a session draws at once, and how far apart they are
	Cycle            bool

	// Apart are the partitions and children of the table whose own rows get their values from another source: another
	// sequence or default, or, in children, none.
	Apart []string
}

// InLog returns an error that wraps ErrMapping if queries of the table read rows that its log doesn't have.
func (t *Table) InLog() error {
	const text = "%w: table %s can't be read by its log, which doesn't have what is inserted into %s: it is %s. " +
		"Read the table by a strategy that polls, or make it a partitioned table"
	switch {
	case len(t.Children) > 0:
		return fmt.Errorf(text, ErrMapping, t.TableName(), t.Children[0], "a child by INHERITS and no partition")
	case len(t.Foreign) > 0:
		return fmt.Errorf(text, ErrMapping, t.TableName(), t.Foreign[0], "a foreign table")
	}
	return nil
}

// Disorder says why the values of a column don't ascend in the order in which they are drawn; "" if they do.
func (c *TableColumn) Disorder() string {
	switch {
	case c.Kind != KindInteger || c.Sequence == 0:
		return fmt.Sprintf("column %q is of type %s and comes from no sequence", c.Name, c.Type)
	case len(c.Apart) > 0:
		return fmt.Sprintf("column %q gets its values in %s from elsewhere than in the table itself", c.Name, strings.Join(c.Apart, ", "))
	case c.Increment < 0:
		return fmt.Sprintf("the sequence of column %q descends (INCREMENT %d)", c.Name, c.Increment)
	case c.Cycle:
		return fmt.Sprintf("the sequence of column %q begins again after its last number (CYCLE)", c.Name)
	case c.Cache > 1:
		return fmt.Sprintf("the sequence of column %q has CACHE %d: sessions draw numbers ahead", c.Name, c.Cache)
	}
	return ""
}

// uniquely reports whether the table has a unique index of a column alone, and one that has the column at all.
func (t *Table) uniquely(column string) (alone, within bool) {
	for _, i := range t.Indexes {
		unique := i.Unique && i.Predicate == ""
		alone = alone || unique && slices.Equal(i.Columns, []string{column})
		within = within || unique && slices.Contains(i.Columns, column)
	}
	return alone, within
}

// spread reports whether rows are in several tables that no index of a column spans.
func (t *Table) spread(column string) bool {
	alone, _ := t.uniquely(column)
	return t.Partitioned && !alone || len(t.Children) > 0
}

// oneSource says what makes the values of a column unique in all tables of a family, without an index over them; ""
// if nothing does.
func (c *TableColumn) oneSource() string {
	switch {
	case c.Kind == KindUUID:
		return "they are UUIDs"
	case len(c.Apart) > 0:
	case c.Sequence != 0 && !c.Cycle:
		return "all of them come from one sequence"
	case c.Sequence == 0 && strings.Contains(strings.ToLower(c.Default), "uuid"):
		return "their default is a UUID"
	}
	return ""
}

// ColumnCheck is a condition that values of a column fulfil.
type ColumnCheck struct {
	Name      string // what the column is called in Condition
	Condition string
	Valid     bool // rows from before it fulfil it too
}

// TextSQL is a value of the column as text, in SQL: what its type's output is in a session of package dial, in UTC.
// Booleans are true and false, and what fills a char(n) up is left out. It runs no cast but the server's own: a
// cast of another type is code of the type's owner.
func (c *TableColumn) TextSQL(value string) string {
	switch {
	case c.Kind == KindTime && !c.Walls():
		return "regexp_replace((" + value + ` AT TIME ZONE 'UTC')::text, E'(\\d)( BC)?$', E'\\1+00\\2')`
	case c.Cast || c.Kind == KindEnum || c.Kind == KindOther:
		return "CASE WHEN num_nulls(" + value + ") = 0 THEN concat(" + value + ") END"
	}
	return value + "::text"
}

// Walls reports whether a column has times of a clock, in a zone that only the session knows.
func (c *TableColumn) Walls() bool { return strings.HasSuffix(c.Base, "without time zone") }

// MomentSQL is a time of the column as timestamptz, in SQL, where it is one that brokers know. Beyond the ends of time
// the zone doesn't matter, and some times have no equivalent.
func (c *TableColumn) MomentSQL(value string) string {
	if !c.Walls() {
		return value + "::timestamptz"
	}
	return fmt.Sprintf("CASE WHEN %[1]s BETWEEN '0001-01-01 BC' AND '10001-01-01' THEN %[1]s::timestamptz "+
		"WHEN %[1]s > '2000-01-01' THEN 'infinity' WHEN %[1]s IS NOT NULL THEN '-infinity' END", value)
}

// TableIndex is a valid index of a Table.
type TableIndex struct {
	Name       string
	Columns    []string // in order, without included columns; "" for an expression, and for other values than the column's =
	Unique     bool
	Primary    bool
	Predicate  string // of a partial index
	Definition string
}

// TableName is the table's full name.
func (t *Table) TableName() TableName { return TableName{Schema: t.Schema, Name: t.Name} }

// Column returns the named column, or nil.
func (t *Table) Column(name string) *TableColumn {
	for i := range t.Columns {
		if t.Columns[i].Name == name {
			return &t.Columns[i]
		}
	}
	return nil
}

const tableSQL = `
SELECT c.oid, n.nspname::text, c.relname::text, pg_get_userbyid(c.relowner)::text, ` + schema.WritesSQL + `, c.relkind = 'p',
	CASE c.relkind WHEN 'r' THEN '' WHEN 'p' THEN '' WHEN 'v' THEN 'a view' WHEN 'm' THEN 'a materialized view' WHEN 'f' THEN 'a foreign table'
		ELSE 'no table' END
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass($1)`

// downSQL, the oid and the modifier of a type, and toBaseSQL follow the type down through domains to its base.
const (
	downSQL = `
	WITH RECURSIVE down AS (
		SELECT 0 AS depth, `
	toBaseSQL = `
		UNION ALL
		SELECT w.depth + 1, t.typbasetype, t.typtypmod FROM down w JOIN pg_catalog.pg_type t ON t.oid = w.oid AND t.typtype = 'd'
	)
	SELECT (array_agg(w.oid ORDER BY w.depth DESC))[1] AS base, (array_agg(w.modifier ORDER BY w.depth DESC))[1] AS modifier,
		bool_or(t.typnotnull) AS notnull, array_agg(w.oid) FILTER (WHERE t.typtype = 'd') AS domains,
		(array_agg(pg_get_expr(t.typdefaultbin, 0) ORDER BY w.depth) FILTER (WHERE t.typdefaultbin IS NOT NULL))[1] AS initial
	FROM down w JOIN pg_catalog.pg_type t ON t.oid = w.oid`
)

// baseSQL describes the base b of a type: format_type, typname, typtype, Cast, Varies.
const baseSQL = `format_type(b.oid, y.modifier), b.typname::text, b.typtype::text,
	b.typcategory <> 'S' AND b.typname <> 'bool' AND EXISTS (
		SELECT FROM pg_catalog.pg_cast k WHERE k.castsource = b.oid AND k.casttarget = 'text'::regtype),
	(WITH RECURSIVE parts AS (
		SELECT b.oid
		UNION
		SELECT x.oid FROM parts p JOIN pg_catalog.pg_type t ON t.oid = p.oid CROSS JOIN LATERAL ` + schema.TypePartsSQL + ` x
	) SELECT bool_or(t.typname LIKE 'reg%' AND t.typnamespace = 'pg_catalog'::regnamespace OR t.typname = 'timestamptz' AND t.oid <> b.oid)
		FROM parts p JOIN pg_catalog.pg_type t ON t.oid = p.oid)`

// sequenceSQL is the sequence of a column a whose default is d: that of its identity, or the one whose next number is
// the default. A default that computes something from the number is another value.
const sequenceSQL = `(
	SELECT drawn AS s FROM pg_catalog.pg_depend p JOIN pg_catalog.pg_sequence drawn ON drawn.seqrelid = p.objid
	WHERE p.classid = 'pg_class'::regclass AND p.refclassid = 'pg_class'::regclass AND p.refobjid = a.attrelid
		AND p.refobjsubid = a.attnum AND p.deptype = 'i'
	UNION ALL
	SELECT drawn AS s FROM pg_catalog.pg_depend p JOIN pg_catalog.pg_sequence drawn ON drawn.seqrelid = p.refobjid
	WHERE p.classid = 'pg_attrdef'::regclass AND p.objid = d.oid
		AND replace(pg_get_expr(d.adbin, d.adrelid), '"', '') ~ '^[(]?(pg_catalog[.])?nextval[(]''([^'']|'''')*''::regclass[)][)]?(::[a-z ]+)?$'
	LIMIT 1)`

// ofChildSQL is the same of a column o whose default is e.
var ofChildSQL = strings.NewReplacer("a.att", "o.att", "d.oid", "e.oid", "d.ad", "e.ad").Replace(sequenceSQL)

// familySQL is what inherits from the table $1, directly or not, as partitions do.
const familySQL = `(WITH RECURSIVE family AS (
		SELECT i.inhrelid FROM pg_catalog.pg_inherits i WHERE i.inhparent = $1
		UNION
		SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN family f ON i.inhparent = f.inhrelid
	) SELECT f.inhrelid FROM family f)`

const childrenSQL = `
SELECT coalesce(array_agg(c.oid::regclass::text ORDER BY c.oid) FILTER (WHERE NOT c.relispartition), '{}'),
	coalesce(array_agg(c.oid::regclass::text ORDER BY c.oid) FILTER (WHERE c.relkind = 'f'), '{}')
FROM pg_catalog.pg_class c WHERE c.oid IN ` + familySQL

var columnsSQL = `
WITH family AS MATERIALIZED ` + familySQL + `
SELECT a.attname::text, format_type(a.atttypid, a.atttypmod), ` + baseSQL + `,
	a.attnotnull OR y.notnull, coalesce(pg_get_expr(d.adbin, d.adrelid), y.initial, ''),
	coalesce((own.s).seqrelid, 0), coalesce((own.s).seqcache, 0), coalesce((own.s).seqincrement, 0), coalesce((own.s).seqcycle, false),
	ARRAY(SELECT c.oid::regclass::text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_attribute o ON o.attrelid = c.oid AND o.attname = a.attname
		LEFT JOIN pg_catalog.pg_attrdef e ON e.adrelid = o.attrelid AND e.adnum = o.attnum
		LEFT JOIN LATERAL ` + ofChildSQL + ` q ON true
		WHERE c.oid IN (SELECT inhrelid FROM family) AND CASE WHEN e.oid IS NULL AND q.s IS NULL THEN NOT c.relispartition
			WHEN (q.s).seqrelid IS NOT NULL OR (own.s).seqrelid IS NOT NULL THEN (q.s).seqrelid IS DISTINCT FROM (own.s).seqrelid
			ELSE pg_get_expr(e.adbin, e.adrelid) IS DISTINCT FROM pg_get_expr(d.adbin, d.adrelid) END ORDER BY c.oid),
	a.attgenerated <> '', a.attidentity = 'a',
	ARRAY(SELECT e.enumlabel::text FROM pg_catalog.pg_enum e WHERE e.enumtypid = b.oid ORDER BY e.enumsortorder),
	CASE WHEN b.typname IN ('varchar', 'bpchar') AND y.modifier > 4 THEN y.modifier - 4 ELSE 0 END,
	b.typname = 'citext' OR EXISTS (SELECT FROM pg_catalog.pg_collation l WHERE l.oid = a.attcollation AND NOT l.collisdeterministic),
	ARRAY(SELECT ARRAY[CASE WHEN k.conrelid = 0 THEN 'value' ELSE a.attname::text END, pg_get_expr(k.conbin, k.conrelid), k.convalidated::text]
		FROM pg_catalog.pg_constraint k WHERE k.contype = 'c' AND (to_jsonb(k) ->> 'conenforced') IS DISTINCT FROM 'false'
		AND (k.conrelid = a.attrelid AND k.conkey = ARRAY[a.attnum] OR k.contypid = ANY(y.domains)) ORDER BY k.conname)
FROM pg_catalog.pg_attribute a
CROSS JOIN LATERAL (` + downSQL + `a.atttypid AS oid, a.atttypmod AS modifier` + toBaseSQL + `
) y
JOIN pg_catalog.pg_type b ON b.oid = y.base
LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
LEFT JOIN LATERAL ` + sequenceSQL + ` own ON true
WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum`

const indexesSQL = `
SELECT c.relname::text,
	ARRAY(SELECT coalesce((SELECT a.attname::text FROM pg_catalog.pg_attribute a LEFT JOIN pg_catalog.pg_collation l ON l.oid = a.attcollation
			WHERE a.attrelid = i.indrelid AND a.attnum = k.attnum AND (k.by = a.attcollation OR l.collisdeterministic IS NOT false)), '')
		FROM unnest(i.indkey::int2[], i.indcollation::oid[]) WITH ORDINALITY k (attnum, by, place) WHERE k.place <= i.indnkeyatts ORDER BY k.place),
	i.indisunique, i.indisprimary, coalesce(pg_get_expr(i.indpred, i.indrelid), ''), pg_get_indexdef(i.indexrelid)
FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
WHERE i.indrelid = $1 AND i.indisvalid
ORDER BY i.indisprimary DESC, c.relname`

// ReadTable reads a table's description from the catalogue. If there is no such table, or its schema may not be used,
// the error wraps ErrMapping.
func ReadTable(ctx context.Context, q schema.Querier, name TableName) (*Table, error) {
	t, err := readTable(ctx, q, name)
	if err != nil && !errors.Is(err, ErrMapping) {
		return nil, fmt.Errorf("read the catalogue of %s: %w", name, err)
	}
	return t, err
}

func readTable(ctx context.Context, q schema.Querier, name TableName) (*Table, error) {
	t, kind := &Table{}, ""
	err := q.QueryRow(ctx, tableSQL, name.String()).Scan(&t.OID, &t.Schema, &t.Name, &t.Owner, &t.Writer, &t.Partitioned, &kind)
	if errors.Is(err, pgx.ErrNoRows) || sqlstate.Of(err) == "42501" {
		return nil, fmt.Errorf("%w: there is no table %s, or this role may not see it; name it with its schema if it is "+
			"not in the search path", ErrMapping, name)
	}
	if err != nil {
		return nil, err
	}
	if kind != "" {
		return nil, fmt.Errorf("%w: %s is %s, which no relay reads: name the table that has the rows", ErrMapping, name, kind)
	}
	if err := q.QueryRow(ctx, childrenSQL, t.OID).Scan(&t.Children, &t.Foreign); err != nil {
		return nil, err
	}
	rows, err := q.Query(ctx, columnsSQL, t.OID)
	if err != nil {
		return nil, err
	}
	t.Columns, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (c TableColumn, err error) {
		var base, class string
		var checks [][]string
		err = row.Scan(&c.Name, &c.Type, &c.Base, &base, &class, &c.Cast, &c.Varies, &c.NotNull, &c.Default, &c.Sequence, &c.Cache,
			&c.Increment, &c.Cycle, &c.Apart, &c.Generated, &c.Identity, &c.Labels, &c.Length, &c.Folds, &checks)
		for _, k := range checks {
			c.Checks = append(c.Checks, ColumnCheck{k[0], k[1], k[2] == "true"})
		}
		c.Kind = kindOf(base, class)
		return c, err
	})
	if err != nil {
		return nil, err
	}
	if rows, err = q.Query(ctx, indexesSQL, t.OID); err != nil {
		return nil, err
	}
	t.Indexes, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (i TableIndex, err error) {
		err = row.Scan(&i.Name, &i.Columns, &i.Unique, &i.Primary, &i.Predicate, &i.Definition)
		return i, err
	})
	return t, err
}

const typesSQL = `
SELECT format_type(o.oid, o.modifier), ` + baseSQL + `
FROM unnest($1::oid[], $2::integer[]) WITH ORDINALITY o (oid, modifier, place)
LEFT JOIN LATERAL (` + downSQL + `o.oid, o.modifier` + toBaseSQL + `
) y ON true LEFT JOIN pg_catalog.pg_type b ON b.oid = y.base ORDER BY o.place`

// ReadTypes describes columns by their types alone, such as those that a table had when it was changed since. Kind is
// empty if there is no such type any more.
func ReadTypes(ctx context.Context, q schema.Querier, oids []uint32, modifiers []int32) ([]TableColumn, error) {
	rows, err := q.Query(ctx, typesSQL, oids, modifiers)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (c TableColumn, err error) {
		var whole, base, name, class *string
		var cast, varies *bool
		if err = row.Scan(&whole, &base, &name, &class, &cast, &varies); err == nil && name != nil {
			c = TableColumn{Type: *whole, Base: *base, Kind: kindOf(*name, *class), Cast: *cast, Varies: *varies}
		}
		return c, err
	})
}

func kindOf(base, class string) Kind {
	switch class {
	case "e":
		return KindEnum
	case "b":
	default: // a range or a composite type may have the name of another type
		return KindOther
	}
	switch base {
	case "int2", "int4", "int8":
		return KindInteger
	case "uuid":
		return KindUUID
	case "text", "varchar", "bpchar", "citext", "name":
		return KindText
	case "bytea":
		return KindBytes
	case "json", "jsonb":
		return KindJSON
	case "timestamp", "timestamptz":
		return KindTime
	case "bool":
		return KindBoolean
	case "xid8":
		return KindXID8
	}
	return KindOther
}

// TableName is a table's name, with its schema if given.
type TableName struct {
	Schema string
	Name   string
}

// ParseTableName reads "name", "schema.name", and parts in double quotes.
func ParseTableName(s string) (TableName, error) {
	var parts []string
	for rest := s; ; {
		part, after, err := identifier(rest)
		if err != nil {
			return TableName{}, fmt.Errorf("%q is not a table's name such as outbox_events or orders.outbox: %w", s, err)
		}
		parts = append(parts, part)
		if after == "" {
			break
		}
		rest = after[1:]
	}
	switch len(parts) {
	case 1:
		return TableName{Name: parts[0]}, nil
	case 2:
		return TableName{Schema: parts[0], Name: parts[1]}, nil
	}
	return TableName{}, fmt.Errorf("%q has %d parts: a table's name has one or two", s, len(parts))
}

// identifier cuts off the first identifier; after is empty or begins with a dot.
func identifier(s string) (name, after string, err error) {
	if !strings.HasPrefix(s, `"`) {
		end := strings.IndexByte(s, '.')
		if end < 0 {
			end = len(s)
		}
		name, after = s[:end], s[end:]
	} else {
		var b strings.Builder
		i := 1
		for ; i < len(s); i++ {
			if s[i] != '"' {
				b.WriteByte(s[i])
				continue
			}
			if i+1 < len(s) && s[i+1] == '"' {
				b.WriteByte('"')
				i++
				continue
			}
			break
		}
		if i >= len(s) {
			return "", "", errors.New("a quote is not closed")
		}
		name, after = b.String(), s[i+1:]
	}
	switch {
	case name == "":
		return "", "", errors.New("a part is empty")
	case strings.ContainsRune(name, 0):
		return "", "", errors.New("it has a NUL in it")
	case after != "" && after[0] != '.':
		return "", "", errors.New("something follows a closing quote")
	}
	return name, after, nil
}

// String returns the quoted name for SQL.
func (n TableName) String() string {
	if n.Schema == "" {
		return schema.QuoteIdentifier(n.Name)
	}
	return schema.QuoteIdentifier(n.Schema) + "." + schema.QuoteIdentifier(n.Name)
}
