// Package jsonl writes messages as JSON, one object a line: to a file, as a log or a hand-over to batch
// jobs; to an archive of compressed files; or to any io.Writer such as standard output, to look on or to pipe onwards.
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
//	headers          object of strings, in the order of the message
//	created_at       creation time, RFC 3339 in UTC
//	deliver_at       the time before which it was not to be delivered, RFC 3339 in UTC
//	payload          the payload: JSON if the content type is JSON (application/json or …+json), else a
//	                 string; null if it is NULL
//	payload_base64   the payload's bytes, beside payload or in its place, if payload doesn't say what each byte was:
//	                 it isn't UTF-8, has control characters other than tabs and line breaks, or is called JSON and
//	                 isn't, is the text null, is empty, or has line breaks or space around it
//
// So a line has all that the message has, and [Decode] returns it byte for byte.
//
// A message that is delivered again, as after a crash between writing and reporting, is a second line
// with the same id. docs/brokers/jsonl.md says what happens when the disk is full.
package jsonl
