package lease

import (
	"fmt"

	"github.com/pgoutbox/outbox/relay/internal/owner"
	"github.com/pgoutbox/outbox/schema"
)

// LockOf is the lock of a shard group's owner, on the connection of its Link. outbox.cursors.locked says whether the
// owner has it; then another session that gets it knows that the owner's has ended, and takes the lease before it
// expires. Two shard groups whose hashes are the same have one lock: the owner of one of them has none.
func LockOf(destination string, group int) owner.Lock {
	name := schema.QuoteLiteral(fmt.Sprintf("%d %s", group, destination))
	return owner.Lock{Key: "'outbox.cursors'::regclass::oid::int4, hashtext(" + name + ")"}
}
