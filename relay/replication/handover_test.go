package replication

import (
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/destinations"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/relay/polling"
)

// A database of its own and a cluster of its own: a slot waits for every transaction of the cluster.
func TestAHandoverUnderLoadLosesRepeatsAndInvertsNothing(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	db := newDatabase(t)
	l := newLedger()
	w := startLoad(db, l, 4)
	c := consume(t, db, l, Config{Table: polling.SnapshotConfig{Lease: time.Minute}}) // one that is lost repeats messages
	await.Until(t, "the log is read", db.streams)
	ctx := await.Context(t)
	conn := db.Connect()
	for range rounds(t, 4) {
		for _, to := range []string{destinations.ByTable, destinations.ByLog} {
			if err := destinations.Handover(ctx, conn, "d", to, destinations.HandoverOptions{}, admin.Action{Actor: "test"}); err != nil {
				t.Fatal(err)
			}
			// Some load on this side.
			l.mu.Lock()
			n := len(l.count)
			l.mu.Unlock()
			await.Until(t, "messages come", func() bool {
				l.mu.Lock()
				defer l.mu.Unlock()
				return len(l.count) > n+20
			})
		}
	}
	w.stop()
	await.Until(t, "everything comes", func() bool { return l.missing() == 0 })
	c.stop()
	l.check(t)
	if n := l.repeated(); n > 0 {
		t.Errorf("%d messages came twice", n)
	}
	if n := db.Value("SELECT count(*) FROM outbox.audit WHERE verb = 'handover'"); n == "0" {
		t.Error("the audit has no handover")
	}
	if len(c.log.all) > 0 {
		t.Errorf("alarms: %q", c.log.all)
	}
}

func TestADestinationThatIsReadFromTheTableCanNotBeHandedOver(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	err := destinations.Handover(t.Context(), db.Connect(), "d", destinations.ByLog, destinations.HandoverOptions{},
		admin.Action{Actor: "test"})
	if err == nil || !strings.Contains(err.Error(), "strategy: replication") {
		t.Error(err)
	}
}

// A commit that waits for a synchronous standby is in the log, and is delivered, long before a snapshot sees it. A
// cursor made meanwhile would have it come again.
func TestTheWayBackToTheTableWaitsForWhatWasDeliveredToBeVisible(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	source, _ := db.source("d", Config{})
	s := acquire(t, source)
	streaming(t, s)
	tx, err := db.Connect().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var xid int64
	if err := tx.QueryRow(t.Context(), "SELECT pg_current_xact_id()::text::bigint").Scan(&xid); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.unseen = append(s.unseen, uint64(xid)) // as if it had come by the log
	s.mu.Unlock()
	db.Exec("UPDATE outbox.slots SET mode = 'snapshot'")
	ctx := await.Context(t)
	for s.retryAt.IsZero() { // until it has given up for now
		if _, err := s.Next(ctx, 1); err != nil {
			t.Fatal(err)
		}
		if !s.isStreaming() {
			t.Fatal("the table is read, though a snapshot doesn't see all that was delivered")
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	for s.isStreaming() {
		if _, err := s.Next(ctx, 1); err != nil {
			t.Fatal(err)
		}
	}
}
