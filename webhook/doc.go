// Package webhook is the wire format of messages over HTTP, for both ends: signatures by the
// specification Standard Webhooks 1.0, how a message becomes a request and how it is read back, and a
// handler for receivers. It needs nothing beyond the standard library.
//
// # Wire format
//
// A message is one POST. The body is the payload. Headers are the message's own, and these, left out when
// empty:
//
//	Webhook-Id               message id, the same in every repeat
//	Webhook-Timestamp        when this attempt was signed, in Unix seconds
//	Webhook-Signature        one signature per key, separated by spaces: "v1,…" (HMAC-SHA256) or "v1a,…" (Ed25519)
//	Content-Type             content type
//	Outbox-Topic             topic
//	Outbox-Key               key; without it the aggregate id is the ordering key
//	Outbox-Event-Type        event type
//	Outbox-Aggregate-Type    aggregate type
//	Outbox-Aggregate-Id      aggregate id
//	Outbox-Position          position, decimal
//	Outbox-Created-At        creation time, RFC 3339 in UTC
//	Outbox-Deliver-At        the time before which it was not to be delivered, RFC 3339 in UTC
//	Outbox-Payload           "null" when the payload is NULL; the body is empty then
//	Outbox-Headers           names of the message's own headers, in their order and spelling
//
// In the Outbox- headers control characters, the percent sign, spaces at the ends and everything beyond
// ASCII are percent-encoded, as in a URL's path. The message's own headers are sent as they are: HTTP can't
// carry control characters in them, and drops spaces at their ends.
//
// The signatures cover the id, the timestamp and the body, not the other headers. Only TLS protects those.
//
// # Batches
//
// A receiver of ours may be sent several messages in one POST, one JSON object in each line of the body.
// Its content type is BatchType, its Webhook-Id is made of the ids in it. The receiver answers 2xx without a
// body if it has accepted all, or 207 with one Result in each line. Everything in a batch is signed.
package webhook
