package replication

import (
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/polling"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

// A relay keeps a short lease while it prepares to read the log, however many round trips that takes. Otherwise two
// relays take it from each other, and neither begins to read. One that is lost to a busy machine is taken again.
func TestAShortLeaseOutlastsTheStartOverASlowLine(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	db := newDatabase(t)
	config := testdb.Distant(t, db.Config(), 150*time.Millisecond)
	broker := relaytest.NewMemory()
	for _, name := range []string{"one", "two"} {
		source, err := New(config, "d", Config{Table: polling.SnapshotConfig{Lease: await.Expiry(time.Second)}})
		if err != nil {
			t.Fatal(err)
		}
		source.table.SetOwner(name)
		testdb.Run(t, source, broker, relay.Config{})
	}
	await.Until(t, "the log is read", db.streams)
	db.insert("1")
	await.Until(t, "it is delivered", func() bool { return len(broker.Messages()) > 0 })
}
