package cursors

import (
	"context"
	"errors"
	"fmt"

	"github.com/pgoutbox/outbox/schema"
)

// ErrSequence means that the ids' sequence gives no order: it is behind ids that were drawn, or is set to draw them in
// another order. Errors that wrap it are marked by outbox.Permanent.
var ErrSequence = errors.New("the sequence of the ids gives no order")

// LastSQL is the last id that was drawn. The function reads the sequence under its lock. A SELECT from the sequence
// doesn't: while nextval writes the log, every 32nd time, it shows a number that is up to 32 too high. The function
// gives NULL for a sequence that nothing was drawn from, and is called once more in case that ends meanwhile.
const LastSQL = `coalesce(pg_sequence_last_value('outbox.messages_id_seq'),
	(SELECT s.last_value - 1 FROM outbox.messages_id_seq s WHERE NOT s.is_called), pg_sequence_last_value('outbox.messages_id_seq'))`

// MaxDrawn is above every id that a sequence draws. An id beyond it was inserted by hand: no sequence is set to it,
// because none would be left for writers.
const MaxDrawn = "4611686018427387904"

// sequenceSQL looks at the greatest ids that an index or a bounded walk finds: the ends of the table, dead letters, the
// first holds. It reads the sequence after its snapshot was taken, so the sequence isn't behind what the snapshot sees.
const sequenceSQL = `
SELECT q.seqincrement > 0 AND q.seqcache = 1 AND NOT q.seqcycle, ` + LastSQL + `, greatest(0,
	(SELECT m.id FROM outbox.messages m WHERE m.id < ` + MaxDrawn + ` ORDER BY m.xid DESC, m.id DESC LIMIT 1),
	(SELECT m.id FROM outbox.messages m WHERE m.id < ` + MaxDrawn + ` ORDER BY m.xid, m.id LIMIT 1),
	(SELECT max(d.id) FROM outbox.dead_letters d WHERE d.destination = $1 AND d.id < ` + MaxDrawn + `),
	(SELECT max(h.id) FROM (SELECT h.id FROM outbox.holds h WHERE h.destination = $1 AND h.id < ` + MaxDrawn + ` ORDER BY h.lane, h.id LIMIT 10000) h))
FROM pg_sequence q WHERE q.seqrelid = 'outbox.messages_id_seq'::regclass`

// SequenceWatch checks the ids' sequence while a relay runs. Only its goroutine uses it.
type SequenceWatch struct{ last int64 }

// Check compares the last id that was drawn, by LastSQL, with that of the call before. It returns ErrSequence if it is
// less: the sequence was set back. A sequence that has passed the old value again in between isn't noticed. The error
// isn't permanent: RefuseSequence finds out whether something waits that new messages would come before.
func (d *SequenceWatch) Check(last int64, destination string) error {
	if last < d.last {
		return fmt.Errorf("%w: %s_id_seq was set back from %d to %d (TRUNCATE … RESTART IDENTITY, setval)",
			ErrSequence, schema.TableOf(destination), d.last, last)
	}
	d.last = last
	return nil
}

// RefuseSequence returns ErrSequence if new messages would come before those that wait.
func RefuseSequence(ctx context.Context, db Querier, destination string) error {
	var ordered bool
	var last, greatest int64
	name := schema.TableOf(destination) + "_id_seq"
	err := db.QueryRow(ctx, schema.WithTableOf(destination, sequenceSQL), destination).Scan(&ordered, &last, &greatest)
	switch {
	case err != nil:
		return fmt.Errorf("look at the sequence %s: %w", name, err)
	case !ordered:
		return permanent("%w: %s must count upwards, without a cache and without starting again: run: ALTER SEQUENCE "+
			"%[2]s INCREMENT BY 1 CACHE 1 NO CYCLE",
			ErrSequence, name)
	case last < greatest:
		return permanent("%w: %s stands at %d, and there is a message with the id %d, so new ones would come before "+
			"old ones: it was set back (TRUNCATE … RESTART IDENTITY, setval), or the rows came by logical "+
			"replication, which carries no sequences. With all writers and relays stopped, run: outbox rebase "+
			"--destination %s", ErrSequence, name, last, greatest, destination)
	}
	return nil
}
