package polling

import "github.com/pgoutbox/outbox/schema"

// reading turns a statement over the outbox into one over the table that a destination reads: the outbox, or the stored
// inbox, which has the same shape.
func reading(destination, sql string) string {
	return schema.Reading(schema.MessagesOf(destination), sql)
}
