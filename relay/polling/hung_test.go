package polling

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

// deaf is a broker whose calls don't notice that their context has ended.
type deaf struct {
	called  chan struct{}
	release chan struct{}
}

func (d *deaf) Publish(context.Context, []*outbox.Message) []error {
	d.called <- struct{}{}
	<-d.release
	return nil
}

func (d *deaf) Close() error { return nil }

// What hangs may still be published, so another relay takes over when the lease has expired, as after a crash.
func TestARelayThatEndsWhileItsBrokerHangsLeavesItsLeaseToExpire(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Exec("INSERT INTO outbox.messages (topic, key, payload) VALUES ('orders', 'a', '1')")
	broker := &deaf{make(chan struct{}, 1), make(chan struct{})}
	defer close(broker.release)
	end := db.embed(db.source("orders", SnapshotConfig{Lease: time.Hour}), broker,
		relay.Config{DrainTimeout: await.Expiry(time.Millisecond), Grace: await.Expiry(time.Second)})
	<-broker.called
	if err := end(); !errors.Is(err, relay.ErrHung) {
		t.Fatalf("Run has ended with %v", err)
	}
	db.Await("SELECT state = 'stopped' AND lease_until > clock_timestamp() AND NOT locked FROM outbox.cursors")
	db.Await(`SELECT count(*) = 0 FROM pg_stat_activity
		WHERE datname = current_database() AND application_name LIKE 'outbox relay%'`) // nobody renews it

	end = db.embed(db.source("orders", SnapshotConfig{}), relaytest.NewMemory(), relay.Config{})
	db.Exec("UPDATE outbox.cursors SET lease_until = clock_timestamp()")
	db.verdict(health.StateIdle, "")
	if err := end(); err != nil {
		t.Error(err)
	}
}
