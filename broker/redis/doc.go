// Package redis delivers messages to Redis streams.
//
// A script appends the messages of a stream, and also keeps the ids of the last ones: in one atomic step a message is
// appended and noted, or recognised as a repeat and left out. So a relay that repeats messages after a crash, a cut or
// an outage of any length adds nothing, as long as they are among the last Config.DedupWindow messages of their stream.
// Explicit entry ids, made from a message's position, would not do: positions grow within a key and not within a
// stream, and Redis refuses an id that is not above the stream's last one.
//
// A script takes up to a few hundred messages of one stream and stops a key at its first failure; several scripts are
// sent at once. If a key continues in another stream, or beyond the size of a script, its next message is sent after
// the answer.
//
// # Wire format
//
// An entry's fields are these, left out when empty, and then the message's headers in their order:
//
//	id               message id
//	topic            topic, if the stream's name differs from it
//	key              key; without it the aggregate id is the ordering key
//	event_type       event type
//	aggregate_type   aggregate type
//	aggregate_id     aggregate id
//	content_type     content type
//	position         position, decimal
//	created_at       creation time, RFC 3339 in UTC
//	deliver_at       the time before which it was not to be delivered, RFC 3339 in UTC
//	payload          the payload, also when empty; missing when it is NULL
//	header:<name>    a header
//
// docs/brokers/redis.md describes durability, limits, permissions and the treatment of every error.
package redis
