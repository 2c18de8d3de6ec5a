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

// MessagesOf returns the table that a destination reads.
func MessagesOf(destination string) string {
	if strings.HasPrefix(destination, InboxPrefix) {
		return InboxMessages
	}
	return OutboxMessages
}
