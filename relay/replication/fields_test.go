package replication

import (
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/polling"
)

// Whatever a column holds, in whatever encoding, the row is delivered or becomes a dead letter, by the log as by the
// table.
func TestNoFieldStopsTheStream(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	for encoding, bad := range testdb.Encodings {
		t.Run(encoding, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t).NewEncoded(encoding)
			db.Install()
			t.Cleanup(func() { db.DropSlots() })
			db.RunFields(testdb.FieldsRun{
				Table: "outbox.messages", Bad: bad,
				Open: func(name string) relay.Source {
					// A lease that is lost repeats messages.
					s, _ := database{db}.source("d", Config{Table: polling.SnapshotConfig{Lease: time.Minute}})
					return s
				},
				Settled: func() { db.Await("SELECT count(position) > 0 FROM outbox.slots") },
				Dead:    "SELECT message_id::text, reason, error FROM outbox.dead_letters",
			})
		})
	}
}
