// Package replication has the strategy that reads the outbox from the write-ahead log: by logical decoding with the
// plugin pgoutput, through a replication slot and a publication. [New] returns a source.
//
// # What can be trusted after a crash
//
// Three places store a destination's progress: the slot's confirmed position (what the server may forget), the stored
// position (outbox.slots, in the database), and the cursor's snapshot (outbox.cursors, from which the table would be
// read). They move in an order that makes every crash harmless:
//
//   - After a publish without a settlement, the stored position is before the message, and the log sends it again.
//   - After a settlement of which the server was not told, streaming starts at the stored position, to which the server
//     skips, and no message comes twice. Inside a transaction, the stored count leaves out the messages that were
//     settled.
//   - The server is told only what is stored. So a slot beyond the stored position was moved or created by somebody
//     else, and may have skipped messages: it is replaced, not read.
//   - The cursor follows: a snapshot becomes the cursor when everything that had committed when it was taken is
//     settled, in the transaction that stores the position. So if the slot is lost, the table is read from there, which
//     repeats only the last moments.
//
// Everything that the cursor's snapshot sees is settled, and so is everything that commits before the position. At a
// start, rows that the snapshot sees are left out of what the log sends. So the switch from the table to the log has
// neither gap nor repetition; see switch.go.
//
// A session's lease is that of the snapshot strategy, in the same row, so the two strategies never deliver at the same
// time.
package replication
