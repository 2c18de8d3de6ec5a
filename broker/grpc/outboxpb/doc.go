// Package outboxpb is the service outbox.v1.Delivery, generated from outbox.proto. Servers in other languages
// generate theirs from the same file.
package outboxpb

//go:generate ./generate.sh
