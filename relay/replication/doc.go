// Package replication has the strategy that reads the outbox from the write-ahead log: by logical decoding with the
// plugin pgoutput, through a replication slot and a publication. [New] makes a source.
//
// # What may be trusted after a crash
//
// Three things say how far a destination is: the slot's confirmed position (what the server may forget),
// the stored position (outbox.slots, in the database), and the cursor's snapshot (outbox.cursors, where the table would
// be read from). They are moved in an order that makes every crash harmless:
//
//   - published, not settled: the stored position is before the message, the log sends it again;
//   - settled, the server not told: streaming starts at the stored position, which the server skips to, and nothing
//     comes twice; inside a transaction the stored count leaves out what was settled of it;
//   - the server told: only ever of what is stored. So a slot that is beyond the stored position was moved or made by
//     somebody else, and may have skipped something: it is not read but replaced;
//   - the cursor follows: a snapshot becomes the cursor when everything that had committed when it was taken is settled,
//     in the transaction that stores so. So when the slot is lost the table is read from there, and what it
//     repeats are the last moments.
//
// Everything that the cursor's snapshot sees is settled, and everything that commits before the position is: at a start,
// rows that the snapshot sees are left out of what the log sends. That is how the way from the table into the log
// has no gap and no repetition; see switch.go.
//
// A session's lease is that of the snapshot strategy, on the same row, so the two never deliver at once.
package replication
