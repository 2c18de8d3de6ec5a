// Package http delivers messages as webhooks, by the specification Standard Webhooks.
//
// A message is one POST, and is accepted when the receiver has answered 2xx. Requests run in parallel, but
// the next one of a key leaves when the one before it is accepted. A request that was not answered has an
// unknown outcome; the engine sends it again with the same Webhook-Id, by which receivers recognise a repeat.
// Receivers that use the package webhook may be sent batches, several messages in one POST.
//
// The wire format is described in package webhook. docs/brokers/http.md has the treatment of every status,
// the limits, and which addresses are never connected to.
package http
