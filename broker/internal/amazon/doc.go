// Package amazon is what SQS and SNS have in common: requests of up to ten messages, of which each has an
// outcome of its own; messages with a text, ten attributes and a group; the kinds of errors; the client.
//
// # Order
//
// A request that succeeds may have refused any of its messages, and accepted those behind it. Therefore a
// key has at most one message on its way: its next one becomes ready when the one before it was accepted.
// Requests are filled from all keys that are ready, and several are on their way at a time.
//
// Nothing is sent twice by itself: the client's retries are off, and a connection that breaks leaves an
// unknown outcome, which the engine deals with.
package amazon
