package polling

import (
	"strings"

	"github.com/pgoutbox/outbox/schema"
)

// reading is sql over the table that a destination reads: the outbox, or the stored inbox of the same
// shape.
func reading(destination, sql string) string {
	return readingTable(schema.MessagesOf(destination), sql)
}

func readingTable(table, sql string) string {
	return strings.ReplaceAll(sql, schema.OutboxMessages, table)
}
