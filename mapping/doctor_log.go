package mapping

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/pgoutbox/outbox/schema"
)

// byLog reports what delivery of a table by the write-ahead log requires, gives and costs.
func byLog(ctx context.Context, q schema.Querier, t *Table, m *Mapping) (Finding, error) {
	var level, database string
	if err := q.QueryRow(ctx, "SELECT current_setting('wal_level'), current_database()::text").Scan(&level, &database); err != nil {
		return Finding{}, err
	}
	name := strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_' {
			return c
		}
		return '_'
	}, strings.ToLower(t.Name))
	// A slot belongs to the whole server, a publication to the database. A destination called like the table has this
	// slot by default.
	slot, publication := schema.SlotName(database, name), "outbox_"+name
	publication = publication[:min(len(publication), 63)]
	f := Finding{
		About: "log",
		Text: fmt.Sprintf("with strategy: replication and, beside source, replication: {slot: %s, publication: %s}, "+
			"inserts come from the write-ahead log: in the order of commits, whatever the ids are, without a query or "+
			"a write. No row is marked, so deleting them is up to you, and rows from before the slot don't come. A "+
			"slot without a reader retains the log until the disk is full; a lost slot has lost what was "+
			"committed meanwhile. Once, run:", slot, publication),
		SQL: CreatePublicationSQL(publication, t.TableName()) + "\n" + CreateSlotSQL(slot),
	}
	if level != "logical" {
		f.Text = fmt.Sprintf("(not yet: wal_level is %s, and has to be logical, which takes a restart) ", level) + f.Text
	}
	if err := t.InLog(); err != nil {
		f.Text = "(not as it is: " + strings.TrimPrefix(err.Error(), ErrMapping.Error()+": ") + ") " + f.Text
	}
	used := m.MessageColumns()
	for _, c := range t.Columns {
		if c.Generated && slices.Contains(used, c.Name) {
			f.Text = fmt.Sprintf("(not as it is: column %q is a generated one, which the log leaves out) ", c.Name) + f.Text
			break
		}
	}
	return f, nil
}

// CreateSlotSQL returns the statement that creates a slot for a table's inserts: those that commit from then on.
func CreateSlotSQL(slot string) string {
	return "SELECT pg_create_logical_replication_slot(" + schema.QuoteLiteral(slot) + ", 'pgoutput');"
}

// CreatePublicationSQL returns the statement that creates the publication for it; the owner of the table runs it.
// Inserts into a partitioned table are published in that table's name.
func CreatePublicationSQL(publication string, table TableName) string {
	return "CREATE PUBLICATION " + schema.QuoteIdentifier(publication) + " FOR TABLE " + table.String() +
		" WITH (publish = 'insert', publish_via_partition_root = true);"
}
