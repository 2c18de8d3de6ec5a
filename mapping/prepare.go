package mapping

import (
	"context"
	"fmt"

	"github.com/pgoutbox/outbox/schema"
)

// Statement creates something that a mapping needs beside its table.
type Statement struct {
	What string // in words
	SQL  string
}

// Missing returns the statements that create what the database lacks for a relay to read the table of m by strategy:
// the table of dead letters, the table of offsets; for strategy replication the publication and the slot, in this
// order, because a slot without a publication can't be read. It changes nothing. The table itself is the
// application's.
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
			all = append(all, Statement{what, sql})
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
	var level string
	if err := q.QueryRow(ctx, "SELECT current_setting('wal_level')").Scan(&level); err != nil {
		return nil, err
	}
	if level != "logical" {
		return nil, fmt.Errorf("wal_level is %s, and the strategy replication needs logical: ALTER SYSTEM SET wal_level = logical, "+
			"and restart the server", level)
	}
	if err := lacks("publication "+publication, CreatePublicationSQL(publication, table.TableName()),
		"SELECT EXISTS (SELECT FROM pg_publication WHERE pubname = $1)", publication); err != nil {
		return nil, err
	}
	return all, lacks("replication slot "+slot+", which has what is committed from now on", CreateSlotSQL(slot),
		"SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1)", slot)
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
