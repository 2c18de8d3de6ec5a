// Package jsonl writes messages as JSON, one object a line: to a file, as a log or a hand-over to batch
// jobs, or to any io.Writer such as standard output, to look on or to pipe onwards.
//
// # Format
//
// Members without a value are left out:
//
//	id               message id
//	position         position in the outbox
//	topic            topic
//	key              key; without it aggregate_id is the ordering key
//	aggregate_type   aggregate type
//	aggregate_id     aggregate id
//	event_type       event type
//	content_type     content type
//	headers          object of strings
//	created_at       creation time, RFC 3339 in UTC
//	deliver_at       the time before which it was not to be delivered, RFC 3339 in UTC
//	payload          the payload: JSON if the content type is JSON (application/json or …+json), else a
//	                 string; null if it is NULL
//	payload_base64   instead of payload, if the payload isn't UTF-8, has control characters other than
//	                 tabs and line breaks, or is called JSON and isn't
//
// JSON payloads lose the space between their tokens, numbers keep all their digits.
//
// A message that is delivered again, as after a crash between writing and reporting, is a second line
// with the same id. docs/brokers/jsonl.md says what happens when the disk is full.
package jsonl
