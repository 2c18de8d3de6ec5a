// Package amazon is what SQS and SNS share: requests of up to ten messages, each with its own outcome; messages with a
// text, ten attributes and a group; the kinds of errors; the client.
//
// # Order
//
// A request that succeeds may have refused any of its messages and accepted later ones. So at most one message of a key
// is in flight: the next one becomes ready when the previous one was accepted. Requests are filled from all keys that
// are ready, and several requests are in flight at a time.
//
// No request is repeated automatically: the client's retries are off. A connection that breaks leaves an unknown
// outcome, which the engine resolves.
package amazon
