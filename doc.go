// Package outbox writes events into a PostgreSQL transaction, so that a relay can deliver every committed one to a
// broker and never one that was rolled back.
//
// A [Writer] takes the caller's transaction, never a pool: events exist exactly if the business rows beside them do.
// Package relay delivers them; the packages below broker are the brokers.
package outbox
