package schema

import (
	"fmt"
	"strings"
)

// InboxPrefix begins the names of the destinations that apply the messages of a stored inbox: the consumer's name
// follows. No destination of an outbox can have such a name.
const InboxPrefix = "inbox:"

// Tables that destinations read. They have the same columns and segments.
const (
	OutboxMessages = "outbox.messages"
	InboxMessages  = "outbox.inbox_messages"
)

// LeasedSQL is the condition that a relay has the lease of a row of outbox.cursors. A lease that ends later than twice
// its length from now was granted before the database's clock was set back, and has not been renewed since. The factor
// of two allows for small corrections of the clock.
const LeasedSQL = `lease_until > clock_timestamp() AND lease_until <= clock_timestamp() + 2 * lease`

// DormantSQL is the condition that a row of outbox.relays is of a relay that is dormant: it has no session, and has
// looked at the database within the time for which its row says that it may be silent.
const DormantSQL = `(backend_pid = 0 AND abs(extract(epoch FROM clock_timestamp() - heartbeat_at)) < extract(epoch FROM silence))`

// ShardCount is the number of shards; they are numbered from 0.
const ShardCount = 64

// Shards returns the first and the last shard of a shard group. Groups are neighbouring shards, so that the index finds
// them.
func Shards(group, groups int) (first, last int) {
	begin := func(group int) int { return (group*ShardCount + groups - 1) / groups }
	return begin(group), begin(group+1) - 1
}

// TableOf returns the table that a destination reads.
func TableOf(destination string) string {
	if strings.HasPrefix(destination, InboxPrefix) {
		return InboxMessages
	}
	return OutboxMessages
}

// WithTable returns sql, a statement over outbox.messages, for another table of the same shape.
func WithTable(table, sql string) string { return strings.ReplaceAll(sql, OutboxMessages, table) }

// MessageColumns are the columns of a message that holds and dead letters keep, besides its id.
const MessageColumns = `message_id, topic, key, shard, aggregate_type, aggregate_id, event_type, payload, content_type, headers,
	deliver_at, created_at`

// OriginalColumns are the columns in which holds and dead letters keep a message as it was before it was edited.
const OriginalColumns = `original, original_payload`

// ReplayPage is the number of ids in a page of outbox.job_pages.
const ReplayPage = 500

// ReplayedBy returns a statement that finds the first running replay that may still read a row of the segment with that
// number.
func ReplayedBy(segment string) string {
	return fmt.Sprintf(`
SELECT j.id FROM outbox.jobs j CROSS JOIN LATERAL (
	SELECT min(p.first)::text::xid8 AS first, max(p.last)::text::xid8 AS last
	FROM outbox.job_pages p WHERE p.job = j.id AND p.page >= (j.last_id + 1) / %d) r
WHERE j.verb = 'replay' AND j.state = 'running'
AND EXISTS (SELECT FROM %s m WHERE m.segment = %s AND m.xid BETWEEN r.first AND r.last)
ORDER BY j.id LIMIT 1`, ReplayPage, OutboxMessages, segment)
}

// WithTableOf is [WithTable] for the table that a destination reads: the outbox, or the stored inbox.
func WithTableOf(destination, sql string) string { return WithTable(TableOf(destination), sql) }

// Segments of the tables that destinations read: how many there are, and for how long one is written to.
const (
	SegmentCount   = 8
	SegmentSeconds = 600
)
