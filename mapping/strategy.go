package mapping

// The strategies that read a table which exists.
const (
	// SkipLocked is the strategy of one transaction per batch: rows are locked FOR UPDATE SKIP LOCKED, published,
	// marked or deleted, and then the transaction commits. Any number of relays share a table. The messages of
	// a key keep their order on a table ordered by a sequence: what stands behind a locked row of its key waits.
	SkipLocked = "skiplocked"

	// Advisory is the strategy of one active relay: it holds an advisory lock for as long as it reads, the
	// others wait for it. Rows are read in the order of the table and marked or deleted when they are
	// delivered; the messages of a key keep their order if the table is ordered by a sequence.
	//
	// Everything goes through one shard, so calls to the broker follow one another in the order of the table.
	// A message that has to wait lets other keys go by, unless the key of the mapping is a constant.
	Advisory = "advisory"

	// Lease is the strategy of short transactions: one statement reserves rows for a while, another marks or
	// deletes them when they are delivered. Any number of relays share a table. The messages of a key keep
	// their order on a table ordered by a sequence: what stands behind a row of its key that is reserved, or whose time has not
	// come, waits.
	Lease = "lease"

	// XMin is the strategy of virtual partitions with offsets: rows below the oldest transaction in progress are
	// read by transaction id and id, and an offset for each topic and partition says how far they are
	// delivered. No row is changed. Relays share the partitions by groups; a partition goes through one shard,
	// in order.
	//
	// Any open transaction that writes, anywhere in the cluster, holds up what commits after it; and a key's
	// messages are inverted when a transaction takes its id before it waits for another that writes the key.
	//
	// A row that is set aside holds its offset back: rows behind it are delivered, and again after a restart.
	XMin = "xmin"

	// Serial is XMin by id alone, which keeps the order of keys. A row is read when whoever could still commit a lower id has
	// ended: whoever has written to the table, and nobody else. So its writers need no lock. Where ids don't come from a sequence, or
	// are drawn long before the INSERT, they have to take turns, see WriterLock.
	Serial = "serial"

	// Replication is the strategy of the write-ahead log: what is inserted into the table is delivered in the order of commits,
	// and no row is read or changed. One relay reads at a time, others stand by. The role has the attribute REPLICATION and SELECT on
	// the table, and connects to the primary itself.
	Replication = "replication"
)

// Strategies lists them.
func Strategies() []string {
	return []string{SkipLocked, Advisory, Lease, XMin, Serial, Replication}
}
