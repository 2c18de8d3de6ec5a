// Package pubsub delivers messages to Google Cloud Pub/Sub.
//
// A message is accepted when the service has confirmed it. A request holds messages of one topic and one ordering key,
// and is accepted or refused as a whole. At most one request of a key is in flight, so no message overtakes an earlier
// one that failed. Messages without a key share requests. The adapter doesn't use the client library's publisher, which
// batches, retries and pauses keys by itself, but the client below it. Retries are off: if the outcome of a request is
// unknown, the call returns that and the engine sends again.
//
// # Wire format
//
// The data is the payload and the ordering key is the message's. Attributes are the message's own headers, and these,
// left out when empty:
//
//	outbox-id                message id
//	outbox-payload           "null" if the payload is NULL; the data is empty then
//	outbox-topic             topic, if Config.Topic gives the message another
//	outbox-event-type        event type
//	outbox-aggregate-type    aggregate type
//	outbox-aggregate-id      aggregate id
//	outbox-created-at        creation time, RFC 3339 in UTC with microseconds
//	content-type             content type
//
// docs/brokers/pubsub.md describes topics, limits, permissions and the treatment of every error.
package pubsub
