package polling

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

// verdict waits until status sees a state of the destination whose cause has the text.
func (db database) verdict(state health.State, text string) {
	db.T.Helper()
	db.seen(string(state)+": "+text, func(d *health.Destination) bool {
		return d.Verdict.State == state && strings.Contains(d.Verdict.Cause, text)
	})
}

// seen waits until what status says of the destination is so.
func (db database) seen(want string, so func(d *health.Destination) bool) {
	db.T.Helper()
	conn := db.Connect()
	var report *health.Report
	await.UntilElse(db.T, func() bool {
		var err error
		if report, err = health.Status(db.T.Context(), conn); err != nil {
			db.T.Fatal(err)
		}
		i := slices.IndexFunc(report.Destinations, func(d health.Destination) bool { return d.Name == "orders" })
		return i >= 0 && so(&report.Destinations[i])
	}, func() string { return fmt.Sprintf("%s; status says %+v", want, report.Verdict) })
}

// embed runs a relay as a service does in its own process, with the library alone. end stops it and returns what Run
// did.
func (db database) embed(source relay.Source, broker relay.Broker, cfg relay.Config) (end func() error) {
	db.T.Helper()
	cfg.Name = "orders"
	r, err := relay.New(source, broker, cfg)
	if err != nil {
		db.T.Fatal(err)
	}
	ctx, cancel := context.WithCancel(db.T.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	return func() error {
		cancel()
		return <-ended
	}
}

func TestStatusTellsTheTruthAboutARelayInAService(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	insert := func(key string) {
		db.Exec("INSERT INTO outbox.messages (topic, key, payload) VALUES ('orders', $1, '1')", key)
	}
	t.Run("stalled and well again", func(t *testing.T) {
		db := db
		db.T = t
		broker := relaytest.NewMemory()
		end := db.embed(db.source("orders", SnapshotConfig{}), broker, relay.Config{})
		insert("a")
		db.verdict(health.StateIdle, "")
		broker.Kill()
		insert("b")
		db.verdict(health.StateStalled, "does not answer")
		broker.Restart()
		db.verdict(health.StateIdle, "")
		if err := end(); err != nil {
			t.Error(err)
		}
	})
	t.Run("broken and well again", func(t *testing.T) {
		db := db
		db.T = t
		end := db.embed(db.source("orders", SnapshotConfig{}), relaytest.NewMemory(), relay.Config{})
		db.verdict(health.StateIdle, "")
		db.Exec("ALTER TABLE outbox.messages RENAME COLUMN payload TO gone")
		db.verdict(health.StateBroken, "payload")
		db.Exec("ALTER TABLE outbox.messages RENAME COLUMN gone TO payload")
		db.verdict(health.StateIdle, "")
		if err := end(); err != nil {
			t.Error(err)
		}
	})
	t.Run("stopped", func(t *testing.T) {
		db := db
		db.T = t
		broker := relaytest.NewMemory()
		broker.Fail("bad", 100, outbox.Permanent(errors.New("no such account")))
		end := db.embed(db.source("orders", SnapshotConfig{}), broker, relay.Config{OnExhausted: relay.Stop})
		insert("bad")
		db.verdict(health.StateStopped, "no such account")
		if err := end(); err == nil {
			t.Error("the relay ended without an error")
		}
	})
}

func TestTheStateOfASharedRegistrationIsWritten(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	broker := relaytest.NewMemory()
	source := db.source("orders", SnapshotConfig{Registration: db.register("service", time.Minute)})
	end := db.embed(source, broker, relay.Config{})
	db.verdict(health.StateIdle, "")
	broker.Kill()
	db.Exec("INSERT INTO outbox.messages (topic, key, payload) VALUES ('orders', 'a', '1')")
	db.verdict(health.StateStalled, "")
	if got := db.Value("SELECT owner || ' ' || state FROM outbox.cursors"); got != "service stalled" {
		t.Errorf("the cursor says %q", got)
	}
	broker.Restart()
	if err := end(); err != nil {
		t.Error(err)
	}
}

// A relay's state is that of the Run that has the source. Another one ends at once and leaves the state alone.
func TestASecondRunOfASourceIsRefusedAndReportsNothing(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	cfg := SnapshotConfig{Registration: db.register("service", time.Minute)}
	source := db.source("orders", cfg)
	end := db.embed(source, relaytest.NewMemory(), relay.Config{})
	db.Await("SELECT EXISTS (SELECT FROM outbox.cursors WHERE state = 'flowing')")
	for what, second := range map[string]relay.Source{"the source": source, "shard group 0": db.source("orders", cfg)} {
		r, err := relay.New(second, relaytest.NewMemory(), relay.Config{})
		if err != nil {
			t.Fatal(err)
		}
		ctx := await.Context(t)
		if err := r.Run(ctx); !errors.Is(err, relay.ErrActive) || !outbox.IsPermanent(err) || !strings.Contains(err.Error(), what) {
			t.Errorf("Run: %v, want ErrActive about %s", err, what)
		}
	}
	if got := db.Value("SELECT state || coalesce(last_error, '') FROM outbox.cursors"); got != "flowing" {
		t.Errorf("the cursor says %q", got)
	}
	if err := end(); err != nil {
		t.Error(err)
	}
	testdb.Acquire(t, source)
}

func TestTheObjectiveOfADestinationIsKnownToAllWhoLook(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	for _, c := range []struct {
		objective, want time.Duration
	}{{0, 30 * time.Second}, {time.Minute, time.Minute}, {-1, 0}} {
		end := db.embed(db.source("orders", SnapshotConfig{LagObjective: c.objective}), relaytest.NewMemory(), relay.Config{})
		db.seen(c.want.String(), func(d *health.Destination) bool { return d.LagObjective == c.want })
		if err := end(); err != nil {
			t.Error(err)
		}
	}
}

func TestAKnownDeadLetterThatDiesAgainIsNew(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Exec("INSERT INTO outbox.messages (topic, key, payload) VALUES ('orders', 'bad', '1')")
	db.Exec(`INSERT INTO outbox.dead_letters (destination, lane, id, message_id, topic, shard, created_at, attempts, reason, error, acknowledged_at)
		SELECT 'orders', key, id, message_id, topic, shard, created_at, 1, 'refused', 'no', now() FROM outbox.messages`)
	broker := relaytest.NewMemory()
	broker.Fail("bad", 100, outbox.Permanent(errors.New("no such account")))
	end := db.embed(db.source("orders", SnapshotConfig{}), broker, relay.Config{})
	db.verdict(health.StateDead, "1 new dead letter; last error: no such account")
	if err := end(); err != nil {
		t.Error(err)
	}
}
