package replication

import (
	"context"
	"errors"
	"testing"
	"time"
)

// A database of its own and a cluster of its own: a slot waits for every transaction of the cluster.
func TestAHandoverUnderLoadLosesRepeatsAndInvertsNothing(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	l := newLedger()
	w := startLoad(db, l, 4)
	c := consume(t, db, l, Config{})
	eventually(t, "the log is read", db.streams)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	conn := db.connect()
	for range rounds(t, 4) {
		for _, to := range []Mode{ModeSnapshot, ModeReplication} {
			if err := Handover(ctx, conn, "d", to, HandoverConfig{Actor: "test"}); err != nil {
				t.Fatal(err)
			}
			// Some load on this side.
			l.mu.Lock()
			n := len(l.count)
			l.mu.Unlock()
			eventually(t, "messages come", func() bool {
				l.mu.Lock()
				defer l.mu.Unlock()
				return len(l.count) > n+20
			})
		}
	}
	w.stop()
	eventually(t, "everything comes", func() bool { return l.missing() == 0 })
	c.stop()
	l.check(t)
	if n := l.repeated(); n > 0 {
		t.Errorf("%d messages came twice", n)
	}
	if n := db.value("SELECT count(*) FROM outbox.audit WHERE verb = 'handover'"); n == "0" {
		t.Error("the audit has no handover")
	}
	if len(c.log.all) > 0 {
		t.Errorf("alarms: %q", c.log.all)
	}
}

func TestADestinationThatIsReadFromTheTableCanNotBeHandedOver(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	err := Handover(t.Context(), db.connect(), "d", ModeReplication, HandoverConfig{Actor: "test"})
	if !errors.Is(err, ErrNotReplicated) {
		t.Error(err)
	}
}
