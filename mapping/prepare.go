package mapping

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/schema"
)

// Statement creates something that a mapping needs beside its table.
type Statement struct {
	What string // in words
	SQL  string

	// Again is what is left to do for this table if a statement for another one has created What; "" for nothing.
	Again string
}

// Missing returns the statements that create what the database lacks for a relay to read the table of m by strategy:
// the table of dead letters, the table of offsets; for strategy replication the publication and the slot, in this
// order: a slot passes over what is inserted before its publication is there. So a slot that has been made before is
// refused. It changes nothing. The table itself is the application's.
func Missing(ctx context.Context, q schema.Querier, m *Mapping, strategy, slot, publication string) (all []Statement, err error) {
	name, err := ParseTableName(m.Table)
	if err != nil {
		return nil, err
	}
	table, err := ReadTable(ctx, q, name)
	if err != nil {
		return nil, err
	}
	lacks := func(what, sql, asked string, name any) error {
		var there bool
		if err := q.QueryRow(ctx, asked, name).Scan(&there); err != nil {
			return err
		}
		if !there {
			all = append(all, Statement{What: what, SQL: sql})
		}
		return nil
	}
	const isTable = "SELECT to_regclass($1) IS NOT NULL"
	if m.Failure.DeadTable != "" {
		dead, err := ParseTableName(m.Failure.DeadTable)
		if err != nil {
			return nil, err
		}
		if err := lacks("table of dead letters "+m.Failure.DeadTable, DeadDDL(dead, table), isTable, dead.String()); err != nil {
			return nil, err
		}
	}
	if strategy == XMin || strategy == Serial {
		offsets, err := ParseTableName(m.Offsets.Table)
		if err != nil {
			return nil, err
		}
		if err := lacks("table of offsets "+m.Offsets.Table, OffsetsDDL(offsets), isTable, offsets.String()); err != nil {
			return nil, err
		}
	}
	if strategy != Replication {
		return all, nil
	}
	if err := table.InLog(); err != nil {
		return nil, err
	}
	var level string
	if err := q.QueryRow(ctx, "SELECT current_setting('wal_level')").Scan(&level); err != nil {
		return nil, err
	}
	if level != "logical" {
		return nil, fmt.Errorf("wal_level is %s, and the strategy replication needs logical: ALTER SYSTEM SET wal_level = logical, "+
			"and restart the server", level)
	}
	published, err := lacksPublication(ctx, q, publication, table.TableName())
	if err != nil {
		return nil, err
	}
	all = append(all, published...)
	before := len(all)
	if err := lacks("replication slot "+slot+", which has what is committed from now on", CreateSlotSQL(slot),
		"SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1)", slot); err != nil {
		return nil, err
	}
	if len(published) > 0 && len(all) == before {
		return nil, fmt.Errorf("slot %q is there, but not the %s, so what is inserted into the table isn't sent through the slot, "+
			"afterwards either. Deliver the waiting messages by a strategy that reads the table. Then run: "+
			"SELECT pg_drop_replication_slot(%s); and this again", slot, published[0].What, schema.QuoteLiteral(slot))
	}
	return all, nil
}

// publishedSQL lists what a publication ($1) does for a table ($2, with schema and name $3 and $4): one that doesn't
// list it, or lists its partitions instead, sends nothing in its name.
const publishedSQL = `
SELECT concat_ws(', ', 'insert', CASE WHEN p.pubupdate THEN 'update' END, CASE WHEN p.pubdelete THEN 'delete' END,
		CASE WHEN p.pubtruncate THEN 'truncate' END), p.pubinsert,
	EXISTS (SELECT FROM pg_publication_tables t WHERE t.pubname = p.pubname AND t.schemaname = $3 AND t.tablename = $4),
	p.puballtables OR EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = c.oid),
	c.relkind = 'p' AND NOT p.pubviaroot,
	EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = c.oid AND to_jsonb(r) ->> 'prqual' IS NOT NULL)
FROM pg_publication p, pg_class c WHERE p.pubname = $1 AND c.oid = to_regclass($2)`

// lacksPublication returns the statement that creates a publication, or has it send inserts into the table.
func lacksPublication(ctx context.Context, q schema.Querier, publication string, table TableName) ([]Statement, error) {
	var operations string
	var inserts, listed, member, unrooted, filtered bool
	alter := "ALTER PUBLICATION " + schema.QuoteIdentifier(publication)
	add := alter + " ADD TABLE " + table.String() + ";"
	err := q.QueryRow(ctx, publishedSQL, publication, table.String(), table.Schema, table.Name).
		Scan(&operations, &inserts, &listed, &member, &unrooted, &filtered)
	if errors.Is(err, pgx.ErrNoRows) {
		return []Statement{{"publication " + publication, CreatePublicationSQL(publication, table), add}}, nil
	}
	if err == nil && filtered {
		return nil, fmt.Errorf("publication %q has a row filter for table %s, so it leaves rows out: name another one "+
			"(replication.publication), and, if the slot is there already, another slot (replication.slot)", publication, table)
	}
	if err != nil || inserts && listed {
		return nil, err
	}
	var sql []string
	if !inserts {
		sql = append(sql, alter+" SET (publish = '"+operations+"');")
	}
	if !listed && unrooted {
		sql = append(sql, alter+" SET (publish_via_partition_root = true);")
	}
	if !listed && !member {
		sql = append(sql, add)
	}
	if len(sql) == 0 {
		return nil, nil
	}
	return []Statement{{What: "part of publication " + publication + " for table " + table.String(), SQL: strings.Join(sql, " ")}}, nil
}

// DeadDDL is the statement that creates a table for the dead letters of t.
func DeadDDL(dead TableName, t *Table) string {
	text := "CREATE TABLE " + dead.String() + " (LIKE " + t.TableName().String()
	for _, column := range []struct{ name, kind string }{
		{"reason", "text"}, {"error", "text"}, {"attempts", "integer"}, {"dead_at", "timestamptz"},
	} {
		if t.Column(column.name) == nil { // a column of that name comes with the others
			text += ", " + column.name + " " + column.kind
		}
	}
	return text + ");"
}
