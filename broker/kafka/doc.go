// Package kafka delivers messages to Apache Kafka and what speaks its protocol.
//
// A message is accepted when all in-sync replicas have it (acks=all), from an idempotent producer.
//
// # Order
//
// The client library sends a partition's records in batches, several of them at a time, repeats what got
// no answer for as long as it takes, and numbers them so that the server neither doubles nor reorders
// them. One hole remains: when a batch fails for good, everything that is buffered for its partition
// fails with it, but a record handed over a moment later starts afresh and is stored, while the earlier
// ones of its key are not. The hole is closed by construction:
//
//   - A call to Publish has a client of its own while it lasts, taken from a small free list. Nothing is
//     handed over to that client before the call, and nothing after its records have begun to leave: the
//     whole call is buffered first, then it is flushed. So whatever fails, fails with all that is behind
//     it in its partition.
//   - The order of a key holds across topics, and partitions of different topics fail independently. A
//     call in which a key changes from one topic to another is cut there: the rest of the key leaves when
//     the part before it was accepted. So is a call that is larger than what a client should buffer.
//   - The engine never has two calls with the same key at a time.
//   - A client whose call was not accepted entirely is closed, and the next call gets a new one. What the
//     old one still had on its way may be stored later, in its order and with everything before it
//     stored too; that is a repeat and never an inversion, because the key's next message leaves only
//     when this one was accepted.
//
// # Wire format
//
// The record's key is the ordering key, absent when that is empty. The value is the payload; NULL makes a
// tombstone. Partitions are chosen as by the Java client: murmur2 of the key. The record's timestamp is
// the time of publishing, not of creation, so that a topic's retention can't remove at once what an
// outage has delayed. Headers are the message's own in their order, then these, left out when empty:
//
//	outbox-id                message id, as a UUID in text form
//	outbox-topic             topic, if Config.Topic gives the record another
//	outbox-event-type        event type
//	outbox-aggregate-type    aggregate type
//	outbox-aggregate-id      aggregate id
//	outbox-created-at        creation time, RFC 3339 in UTC with microseconds
//	content-type             content type
//
// A header of the message with one of these names stands before ours: the last one of a name counts, as
// lastHeader of the Java client has it.
//
// docs/brokers/kafka.md describes topics, limits, permissions and the treatment of every error.
package kafka
