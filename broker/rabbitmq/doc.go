// Package rabbitmq delivers messages to RabbitMQ, over AMQP 0.9.1.
//
// A message is accepted when the server has confirmed it and has not returned it. It is persistent and mandatory, so a
// confirmation means that there was a queue for it, and that every such queue has it. Publishing is pipelined, except
// within a key: a full queue refuses one message and, once a consumer has made room, accepts the next. So the next
// message of a key is sent when the previous one is confirmed.
//
// A call has a channel of its own on the one connection, and publishes from one goroutine. It uses no other channel or
// connection. If one of them breaks, or answers don't come, the outcome of the messages in flight is unknown; the call
// returns that, and the engine sends again. AMQP doesn't recognise repeats; consumers do, by the message id.
//
// # Wire format
//
// The body is the payload. Properties, left out when empty:
//
//	message_id       message id
//	content_type     content type
//	type             event type
//	timestamp        creation time, in seconds
//	delivery_mode    2, persistent
//
// Headers are the message's own, and these, left out when empty:
//
//	outbox-topic             topic, if the routing key differs from it
//	outbox-key               key; without it the aggregate id is the ordering key
//	outbox-aggregate-type    aggregate type
//	outbox-aggregate-id      aggregate id
//	outbox-position          position, an integer
//	outbox-created-at        creation time, RFC 3339 in UTC
//	outbox-deliver-at        the time before which it was not to be delivered, RFC 3339 in UTC
//	outbox-payload           "null" when the payload is NULL; the body is empty then
//
// docs/brokers/rabbitmq.md describes queues, limits, permissions and the treatment of every error.
package rabbitmq
