// Package mapped reads an outbox table that exists already, described by a mapping.Mapping, by one of the strategies of
// package mapping: SkipLocked, Advisory and Lease mark or delete its rows, XMin and Serial move an offset, Replication
// reads the write-ahead log. They need nothing of the schema "outbox".
//
// Such a table has one destination. A row waits for another attempt as it waited for the first: unmarked.
// Which rows of which key do so, and until when, a session keeps in memory and where the table has columns
// for it; docs/mapping.md says what each strategy can promise and what it costs.
package mapped
