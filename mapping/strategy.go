package mapping

// The strategies for existing tables.
const (
	// SkipLocked uses one transaction per batch: it locks rows FOR UPDATE SKIP LOCKED, publishes them, marks or deletes
	// them, and then commits. Any number of relays share a table. The messages of a key keep their order on a table
	// ordered by a sequence: rows behind a locked row of their key wait.
	SkipLocked = "skiplocked"

	// Advisory has one active relay, which holds an advisory lock while it reads; the others wait for the lock. Rows
	// are read in the order of the table and marked or deleted when they are delivered. The messages of a key keep
	// their order if the table is ordered by a sequence.
	//
	// Everything goes through one shard, so the calls to the broker keep the order of the table. Other keys overtake a
	// message that has to wait, unless the key of the mapping is a constant.
	Advisory = "advisory"

	// Lease uses short transactions: one statement reserves rows for a time, another marks or deletes them when they
	// are delivered. Any number of relays share a table. The messages of a key keep their order on a table ordered by a
	// sequence: rows behind a row of their key that is reserved or not yet due wait.
	Lease = "lease"

	// XMin uses virtual partitions with offsets: it reads rows below the oldest transaction in progress, by transaction
	// id and id, and stores an offset for each topic and partition. It changes no row. Relays share the partitions by
	// groups; a partition goes through one shard, in order.
	//
	// Any open transaction that writes, anywhere in the cluster, delays what commits after it. A key's messages are
	// inverted if a transaction takes its transaction id before it waits for another one that writes the key.
	//
	// A row that is set aside keeps its offset back: rows behind it are delivered, and come again after a restart.
	XMin = "xmin"

	// Serial is XMin by id alone, which keeps the order of keys. It reads a row when all transactions that could still
	// commit a lower id have ended: only those that have written to the table. So its writers need no lock. If ids
	// don't come from a sequence, or are drawn long before the INSERT, writers have to take turns, see WriterLock.
	Serial = "serial"

	// Replication reads the write-ahead log: it delivers what is inserted into the table in the order of commits, and
	// reads or changes no row. One relay reads at a time, others stand by. The role needs the attribute REPLICATION and
	// SELECT on the table, and connects to the primary itself.
	Replication = "replication"
)

// Strategies lists the strategies.
func Strategies() []string {
	return []string{SkipLocked, Advisory, Lease, XMin, Serial, Replication}
}
