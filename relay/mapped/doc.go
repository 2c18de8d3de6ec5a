// Package mapped reads an existing outbox table, described by a mapping.Mapping, by one of the strategies of package
// mapping: SkipLocked, Advisory and Lease mark or delete its rows, XMin and Serial move an offset, Replication reads
// the write-ahead log. None of them needs the schema "outbox".
//
// Such a table has one destination. A row that waits for another attempt is unmarked, like one that waits for the
// first. The session remembers in memory, and in columns of the table if there are any, which rows of which key wait
// and until when. docs/mapping.md describes what each strategy promises and what it costs.
package mapped
