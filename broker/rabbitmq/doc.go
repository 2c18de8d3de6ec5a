// Package rabbitmq delivers messages to RabbitMQ, over AMQP 0.9.1.
//
// A message is accepted when the server has confirmed it and has not returned it: it is persistent and
// mandatory, so a confirmation means that every queue it was routed to has it, and that there was one.
// Publishing is pipelined, except within a key: a queue that is full refuses one message and, a consumer
// having made room, takes the next, so the next message of a key leaves when the one before it is confirmed.
//
// A call has a channel of its own on the one connection, and publishes from one goroutine. It is bound to
// both. When one of them breaks, or answers stay away, the outcome of what was on its way is unknown; the call
// says so and the engine sends again. AMQP recognises no repeats: consumers do, by the message id.
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
