// Package sns delivers messages to Amazon SNS.
//
// A message is accepted when SNS has confirmed it. Messages are sent in requests of up to ten, several at a time. Each
// message has an outcome of its own: SNS may confirm some of a request and refuse others. So at most one message of a
// key is in flight. The client's retries are off: if the outcome of a request is unknown, the call returns that and the
// engine sends again.
//
// In a FIFO topic a message's group is its ordering key and its deduplication id is the message id, so SNS keeps the
// order of a key and drops a repeat within five minutes. Standard topics keep no order and drop nothing;
// Config.Unordered allows them.
//
// # Wire format
//
// The message is the payload. A payload that SNS can't take as text, because it isn't UTF-8 or has control characters,
// is sent in base64. Attributes, all of the type String, are left out when empty; a subscription filters by them, and
// passes them on to a queue if it delivers raw messages:
//
//	outbox-id                message id
//	outbox-payload           "base64" if the message is; "null" or "empty" if the payload is NULL or
//	                         empty, and the message then a stopgap
//	content-type             content type
//	outbox-topic             topic
//	outbox-key               key; without it the aggregate id is the ordering key
//	outbox-event-type        event type
//	outbox-aggregate-type    aggregate type
//	outbox-aggregate-id      aggregate id
//	outbox-created-at        creation time, RFC 3339 in UTC with microseconds
//
// The message's own headers are attributes too. A queue takes ten attributes, with values that are text and not empty.
// The headers of a trace come first, outbox-created-at comes last. Names and values that don't fit are a JSON object in
// the attribute outbox-headers.
//
// docs/brokers/sns.md describes topics, limits, permissions and the treatment of every error.
package sns
