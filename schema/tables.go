package schema

import "strings"

// InboxPrefix begins the names of destinations that apply the messages of a stored inbox: what follows is
// the consumer's name. No destination of an outbox can have such a name.
const InboxPrefix = "inbox:"

// Tables that destinations read. They have the same columns and segments.
const (
	OutboxMessages = "outbox.messages"
	InboxMessages  = "outbox.inbox_messages"
)

// Leased is the condition, in SQL, that somebody has the lease of a row of outbox.cursors. One that lasts longer than any is
// given was given before the database's clock was set back: nobody renews it, or it would be of now. Twice as long is left to
// clocks that are corrected by a little.
const Leased = `lease_until > clock_timestamp() AND lease_until <= clock_timestamp() + 2 * lease`

// ShardCount is how many shards there are: a message's is a number below.
const ShardCount = 64

// Shards returns the first and the last shard of a shard group. Groups are neighbouring shards, so that the index finds
// them.
func Shards(group, groups int) (first, last int) {
	begin := func(group int) int { return (group*ShardCount + groups - 1) / groups }
	return begin(group), begin(group+1) - 1
}

// MessagesOf returns the table that a destination reads.
func MessagesOf(destination string) string {
	if strings.HasPrefix(destination, InboxPrefix) {
		return InboxMessages
	}
	return OutboxMessages
}

// Reading is a statement over outbox.messages that reads another table of the same shape.
func Reading(table, sql string) string { return strings.ReplaceAll(sql, OutboxMessages, table) }

// MessageColumns are what holds and dead letters keep of a message, besides its id.
const MessageColumns = `message_id, topic, key, shard, aggregate_type, aggregate_id, event_type, payload, content_type, headers,
	deliver_at, created_at`

// OriginalColumns are what holds and dead letters keep of a message from before it was edited.
const OriginalColumns = `original, original_payload`

// Segments of the tables that destinations read: how many there are, and for how long one is written to.
const (
	SegmentCount   = 8
	SegmentSeconds = 600
)
