package existing

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/pgoutbox/outbox/schema"
)

// The owner of a table can change it while a relay reads it. Statements that were made for its former types would then
// read other bytes: a text that has become a bytea, its digits. So every statement that reads messages also reads the
// layout of the mapped columns. It is the one by which the server reads the rows: the statement has locked the table
// before it sees anything, and ALTER TABLE waits for that lock.
//
// With another layout the session ends before a row of it is delivered, and the next one reads the catalogue again. The
// log has the layout of its rows itself (see logLayout), so a session that reads it goes on: another one would read
// again what was delivered behind a message that waits.

// layoutSQL is a number that changes with the table itself, with the types of the columns that statements name, and
// with whether they may be NULL: the mapped columns, and those that are copied into the dead-letter table, in both
// tables. Another table of the name has other numbers: its sequence begins again, behind what was read. So has
// the same table after TRUNCATE, by the file that it is in.
func (t *Table) layoutSQL() string {
	names, tables := t.Mapping.Columns(), []string{t.Name}
	if t.Dead != nil {
		tables = append(tables, t.Dead.TableName().String())
		for _, c := range t.Dead.Columns {
			names = append(names, c.Name)
		}
	}
	for _, list := range [][]string{names, tables} {
		for i, name := range list {
			list[i] = schema.QuoteLiteral(name)
		}
	}
	return fmt.Sprintf("(SELECT coalesce(sum(hashtext(concat_ws(' ', "+
		"a.attrelid, CASE WHEN r = %s THEN c.relfilenode END, a.attname, a.atttypid, a.atttypmod, a.attnotnull, a.attgenerated))), "+
		"0)::bigint FROM unnest(ARRAY[%s]) r JOIN pg_catalog.pg_class c ON c.oid = to_regclass(r) "+
		"JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid "+
		"WHERE a.attname = ANY(ARRAY[%s]::name[]))",
		tables[0], strings.Join(tables, ", "), strings.Join(names, ", "))
}

// zoneSQL is the time zone that the role and the database give to a session that begins now, beside the server's. What
// a column without a time zone means depends on it.
const zoneSQL = `coalesce((SELECT string_agg(c, ' ' ORDER BY s.setrole, s.setdatabase) FROM pg_catalog.pg_db_role_setting s, unnest(s.setconfig) c
	WHERE c ILIKE 'timezone=%' AND s.setdatabase IN (0, (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database()))
	AND s.setrole IN (0, (SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolname = session_user))), '')`

// followsSQL is whether triggers of a table, or of its partitions, run after rows are updated or deleted. tgtype has a
// bit each: 2 before, 8 DELETE, 16 UPDATE.
const followsSQL = `EXISTS (SELECT FROM pg_catalog.pg_trigger g WHERE NOT g.tgisinternal AND g.tgenabled IN ('O', 'A')
	AND g.tgtype & 2 = 0 AND g.tgtype & 24 <> 0 AND g.tgrelid IN (SELECT to_regclass(%[1]s) 
		UNION SELECT p.relid FROM pg_partition_tree(to_regclass(%[1]s)) p))`

// readLayout reads the layout and the zone, and notes whether triggers follow a mark.
func (t *Table) readLayout(ctx context.Context, q schema.Querier) (layout int64, zone string, err error) {
	var follows bool
	sql := "SELECT " + t.layoutSQL() + ", " + zoneSQL + ", " + fmt.Sprintf(followsSQL, schema.QuoteLiteral(t.Name))
	if err = q.QueryRow(ctx, sql).Scan(&layout, &zone, &follows); err != nil {
		return 0, "", fmt.Errorf("look at the columns of table %s: %w", t.Name, Explain(err))
	}
	t.Follows.Store(follows)
	return layout, zone, nil
}

// CheckLayout returns an error if the table has another layout than the one that t was made for, unless it is read by
// the log, or if a session that begins now has another time zone, or would not take the table: an index was dropped, or
// a child has come that numbers its rows by itself.
func (t *Table) CheckLayout(ctx context.Context, q schema.Querier, byLog bool) error {
	layout, zone, err := t.readLayout(ctx, q)
	switch {
	case err != nil:
		return err
	case layout != t.layout && !byLog:
		return t.errChanged()
	case zone != t.zone:
		return errors.New("the time zone of the role or of the database was changed: the session ends, and the next one has the new one")
	}
	info, err := ReadTable(ctx, q, t.Mapping.Table)
	switch {
	case err != nil:
		return err
	case byLog:
		return permanentMapping(info.InLog())
	}
	if err := t.Mapping.Fit(info); err != nil {
		return permanentMapping(err)
	}
	if c := info.Column(Unqualified(t.By)); c == nil || c.Disorder() != t.Ordered().Disorder() {
		return t.errChanged()
	}
	return nil
}
