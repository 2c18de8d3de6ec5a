// Package grpc delivers messages to a server of the service outbox.v1.Delivery, and helps to write one.
//
// Each call of Publish is one stream, on which all messages of the call are in flight at once; the server answers each.
// The server keeps the order of a key: after a message that it did not accept, it accepts no later one of that key in
// the stream. Concurrent calls of the engine never share a key. A message without an answer has an unknown outcome, and
// comes again with the same id.
//
// outboxpb/outbox.proto is the contract; Receiver implements it around a function that takes a message.
// docs/brokers/grpc.md has the treatment of every code, the limits and the settings.
package grpc
