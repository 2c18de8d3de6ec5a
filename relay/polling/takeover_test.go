package polling

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay/registration"
)

func (db database) register(name string, lease time.Duration) *registration.Registration {
	db.T.Helper()
	r, err := registration.Register(db.T.Context(), db.Config(), name, registration.Config{Lease: lease, Version: "test"})
	if err != nil {
		db.T.Fatal(err)
	}
	db.T.Cleanup(r.Close)
	return r
}

func TestARelayThatRestartsUnderItsNameHasItsLeaseBackAtOnce(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Exec(`INSERT INTO outbox.messages (topic, payload) VALUES ('t', 'a')`)
	const lease = time.Hour
	first, err := registration.Register(t.Context(), db.Config(), "a", registration.Config{Lease: lease})
	if err != nil {
		t.Fatal(err)
	}
	old := testdb.Acquire(t, db.source("d", SnapshotConfig{Registration: first, Lease: lease})).(*snapshotSession)
	testdb.Next(t, old, 1)
	// It dies: its connections end, and nobody says anything. It had no lock, by which others would know.
	db.Exec("UPDATE outbox.cursors SET locked = false")
	stranger := db.source("d", SnapshotConfig{Lease: lease})
	crash(old)
	first.Close() // leaves as a killed one wouldn't, so put its row back
	db.Exec(`INSERT INTO outbox.relays (name, instance, backend_pid, backend_start, host, pid, version)
		VALUES ('a', gen_random_uuid(), 1, '2000-01-01', 'h', 1, 'v')`)

	ctx, cancel := context.WithTimeout(t.Context(), await.Expiry(300*time.Millisecond))
	defer cancel()
	if _, err := stranger.Acquire(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("another relay got the lease: %v", err)
	}
	s := testdb.Acquire(t, db.source("d", SnapshotConfig{Registration: db.register("a", lease), Lease: lease}))
	if ds := testdb.Next(t, s, 1); testdb.Payloads(ds) != "a" {
		t.Errorf("got %q", testdb.Payloads(ds))
	}
}

func TestASilentPredecessorIsReplacedAndMayNotGoOn(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	// A stopped process: its sessions live, and it says nothing.
	frozen := db.Connect()
	if _, err := frozen.Exec(t.Context(), `INSERT INTO outbox.relays (name, instance, backend_pid, backend_start, host, pid, version)
		SELECT 'a', gen_random_uuid(), pid, backend_start, 'h', 1, 'v' FROM pg_stat_activity WHERE pid = pg_backend_pid()`); err != nil {
		t.Fatal(err)
	}
	r := db.register("a", await.Expiry(300*time.Millisecond))
	// Now somebody takes it over in turn, and does so again when this one has found the other silent.
	instance := db.Value("SELECT gen_random_uuid()::text")
	alive, stop := context.WithCancel(t.Context())
	conn := db.Connect()
	var usurper sync.WaitGroup
	defer usurper.Wait()
	defer stop()
	usurper.Go(func() {
		for alive.Err() == nil {
			_, _ = conn.Exec(alive, `UPDATE outbox.relays SET instance = $1::text::uuid, heartbeat_at = clock_timestamp(),
				backend_pid = pg_backend_pid(), backend_start = (SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid())`, instance)
		}
	})
	source := db.source("d", SnapshotConfig{Registration: r})
	await.Until(t, "the lost name is used no more", func() bool {
		session, err := source.Acquire(t.Context())
		if err == nil {
			_ = session.Close(t.Context())
		}
		return errors.Is(err, registration.ErrNamesake)
	})
}

func TestTwoSourcesOfAProcessDoNotShareAGroup(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	r := db.register("a", time.Minute)
	s := testdb.Acquire(t, db.source("d", SnapshotConfig{Registration: r}))
	other := db.source("d", SnapshotConfig{Registration: r})
	if _, err := other.Acquire(t.Context()); !outbox.IsPermanent(err) {
		t.Errorf("got %v", err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	testdb.Acquire(t, other)
}
