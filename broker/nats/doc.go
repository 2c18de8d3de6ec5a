// Package nats delivers messages to NATS JetStream.
//
// A message is accepted when the stream has acknowledged it. Publishing is pipelined over one connection, except within
// a key: JetStream can refuse one message and accept the next (a stream that was full for a moment, a new leader), so
// the next message of a key is sent when the previous one is acknowledged. A call uses only the connection on which it
// began. If that breaks, or answers don't come, the outcome of the messages in flight is unknown; the call returns
// that, and the engine sends again. Every copy of a message has the same Nats-Msg-Id, by which the stream drops repeats
// within its duplicate window.
//
// # Wire format
//
// The body is the payload. Headers are the message's own, and these, left out when empty:
//
//	Nats-Msg-Id              message id
//	Nats-Expected-Stream     Config.Stream
//	Content-Type             content type
//	Outbox-Topic             topic, if the subject differs from it
//	Outbox-Key               key; without it the aggregate id is the ordering key
//	Outbox-Event-Type        event type
//	Outbox-Aggregate-Type    aggregate type
//	Outbox-Aggregate-Id      aggregate id
//	Outbox-Position          position, decimal
//	Outbox-Created-At        creation time, RFC 3339 in UTC
//	Outbox-Deliver-At        the time before which it was not to be delivered, RFC 3339 in UTC
//	Outbox-Payload           "null" when the payload is NULL; the body is empty then
//
// NATS headers can't carry control characters, nor spaces at the ends of a value. In Content-Type and the Outbox-
// headers such bytes, and the percent sign, are percent-encoded; consumers that may meet them decode with
// url.PathUnescape. In the message's own headers control characters are refused, and surrounding spaces are lost.
//
// docs/brokers/nats.md describes streams, limits, permissions and the treatment of every error.
package nats
