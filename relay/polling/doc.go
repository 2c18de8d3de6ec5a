// Package polling has the strategies that read the outbox by querying it. [NewSnapshot] makes the
// default one.
//
// # Connections
//
// A session holds two connections of its own: one reads, one writes the cursor and everything that is
// settled with it. They use prepared statements and session settings, so they must reach the server
// directly or through a pooler in session mode.
package polling
