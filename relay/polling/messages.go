package polling

import "github.com/pgoutbox/outbox/schema"

// reading is sql over the table that a destination reads: the outbox, or the stored inbox of the same
// shape.
func reading(destination, sql string) string {
	return schema.Reading(schema.MessagesOf(destination), sql)
}
