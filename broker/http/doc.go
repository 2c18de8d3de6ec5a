// Package http delivers messages as webhooks, by the specification Standard Webhooks.
//
// A message is one POST, and is accepted when the receiver has answered 2xx. Requests run in parallel, but the next one
// of a key is sent when the previous one is accepted. A request without an answer has an unknown outcome; the engine
// sends it again with the same Webhook-Id, by which receivers recognise a repeat. Receivers that use package webhook
// can receive batches, several messages in one POST.
//
// Package webhook describes the wire format. docs/brokers/http.md has the treatment of every status, the limits, and
// which addresses are never connected to.
package http
