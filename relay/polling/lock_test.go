package polling

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/lease"
)

// Leases in these tests last an hour: what happens doesn't happen because one has expired.

// standBy begins to wait for the lease, and returns once it waits in line. got has the session.
func (db database) standBy(s *Snapshot) (got <-chan *snapshotSession) {
	db.T.Helper()
	ctx := db.T.Context()
	sessions := make(chan *snapshotSession, 1)
	var acquiring sync.WaitGroup
	acquiring.Go(func() {
		if session, err := s.Acquire(ctx); err == nil {
			sessions <- session.(*snapshotSession)
		} else if ctx.Err() == nil {
			db.T.Error(err)
		}
	})
	db.T.Cleanup(func() {
		acquiring.Wait()
		select {
		case session := <-sessions:
			_ = session.Close(context.Background())
		default:
		}
	})
	conn := db.Connect()
	await.UntilSoon(db.T, "it waits for the lock", func() bool {
		waiting, err := Awaited(ctx, conn, s.destination, s.cfg.Group)
		if err != nil {
			db.T.Fatal(err)
		}
		return waiting
	})
	return sessions
}

// successor returns the session of who stood by.
func successor(t *testing.T, got <-chan *snapshotSession) *snapshotSession {
	t.Helper()
	select {
	case s := <-got:
		return s
	case <-await.Context(t).Done():
		t.Fatal("nobody takes over")
		return nil
	}
}

// endSession has the server end the session that writes, as it does when the process is gone.
func (db database) endSession(s *snapshotSession) {
	db.T.Helper()
	db.Exec("SELECT pg_terminate_backend($1::integer, 5000)", dial.PID(s.lease.Link.Conn))
}

func closed(t *testing.T, s relay.Session) {
	t.Helper()
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestWhoStandsByHasTheLeaseWhenTheSessionOfItsOwnerEnds(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	cfg := SnapshotConfig{Lease: time.Hour}
	owner := testdb.Acquire(t, db.source("d", cfg)).(*snapshotSession)
	db.Await("SELECT locked FROM outbox.cursors")
	second := db.standBy(db.source("d", cfg))
	third := db.standBy(db.source("d", cfg))
	db.endSession(owner)
	// The two are in line: one has it, and the other has it from that.
	var next *snapshotSession
	select {
	case next = <-second:
	case next = <-third:
		third = second
	case <-await.Context(t).Done():
		t.Fatal("nobody takes over")
	}
	if next.lease.Epoch != owner.lease.Epoch+1 {
		t.Errorf("the epoch went from %d to %d", owner.lease.Epoch, next.lease.Epoch)
	}
	// The owner's process lives, and may publish once more. It can settle nothing.
	if err := owner.lease.Write(t.Context(), 0, owner.position, nil); err == nil {
		t.Error("the owner has written without its session")
	}
	db.endSession(next)
	last := successor(t, third)
	if last.lease.Epoch != next.lease.Epoch+1 {
		t.Errorf("the epoch went from %d to %d", next.lease.Epoch, last.lease.Epoch)
	}
	closed(t, last)
}

func TestWhoStandsByHasTheLeaseWhenItIsGivenBack(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	cfg := SnapshotConfig{Lease: time.Hour}
	owner := testdb.Acquire(t, db.source("d", cfg)).(*snapshotSession)
	second := db.standBy(db.source("d", cfg))

	// The row is written first: while that waits, nobody has the lock but the owner.
	conn := db.Connect()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SELECT FROM outbox.cursors FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	pid := dial.PID(owner.lease.Link.Conn)
	ended := make(chan error, 1)
	go func() { ended <- owner.Close(t.Context()) }()
	db.AwaitSoon("SELECT $1::integer = ANY (pg_blocking_pids($2::integer))", conn.PgConn().PID(), pid)
	if got := db.Value(`SELECT string_agg(pid::text, ' ') FROM pg_locks
		WHERE locktype = 'advisory' AND granted AND classid = 'outbox.cursors'::regclass
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`); got != fmt.Sprint(pid) {
		t.Errorf("while the owner %d writes that it gives the lease back, %q have the lock", pid, got)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("the lease was taken before it was given back: %v", err)
	}
	closed(t, successor(t, second))
}

// Another session may have the lock, for one that is frozen or cut off, or for another shard group of the same hash.
// Then the lease is taken without it, and nobody concludes anything from the lock being free.
func TestAnOwnerWithoutTheLockKeepsItsLeaseAndHasTheLockLater(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	key := lease.LockOf("d", 0)
	other := db.Connect()
	if got, err := key.Try(t.Context(), other, time.Hour); err != nil || !got {
		t.Fatal(got, err)
	}
	owner := testdb.Acquire(t, db.source("d", SnapshotConfig{Lease: time.Hour})).(*snapshotSession)
	if got := db.Value("SELECT locked FROM outbox.cursors"); got != "false" {
		t.Fatalf("locked is %s", got)
	}
	// One waits in line that believes that the owner has the lock.
	db.Exec("UPDATE outbox.cursors SET locked = true")
	second := db.standBy(db.source("d", SnapshotConfig{Lease: time.Hour}))
	db.Exec("UPDATE outbox.cursors SET locked = false")
	if err := key.Unlock(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	// It gives the lock back, and waits for none.
	db.AwaitSoon(`SELECT count(*) = 0 FROM pg_locks WHERE locktype = 'advisory' AND classid = 'outbox.cursors'::regclass
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
	if err := owner.lease.Write(t.Context(), 0, owner.position, nil); err != nil {
		t.Errorf("the owner has lost its lease: %v", err)
	}
	if got := db.Value("SELECT locked FROM outbox.cursors"); got != "true" {
		t.Errorf("the lock was free at a renewal, and locked is %s", got)
	}
	select {
	case <-second:
		t.Error("the lease was taken from an owner that lives")
	default:
	}
	closed(t, owner)
}

// Two destinations whose hashes are the same differ in speed alone.
func TestTwoShardGroupsOfOneHashAreOwnedAtOnce(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	conn := db.Connect()
	var one, other string
	err := conn.QueryRow(t.Context(), `SELECT min(n)::text, max(n)::text FROM generate_series(1, 400000) n
		GROUP BY hashtext('0 ' || n) HAVING count(*) > 1 LIMIT 1`).Scan(&one, &other)
	if err != nil {
		t.Fatal(err)
	}
	cfg := SnapshotConfig{Lease: time.Hour}
	first := testdb.Acquire(t, db.source(one, cfg)).(*snapshotSession)
	second := testdb.Acquire(t, db.source(other, cfg)).(*snapshotSession)
	if got := db.Value("SELECT string_agg(locked::text, ' ' ORDER BY locked) FROM outbox.cursors"); got != "false true" {
		t.Errorf("locked: %s", got)
	}
	waiting := db.standBy(db.source(one, cfg))
	db.endSession(first)
	next := successor(t, waiting)
	closed(t, next)
	closed(t, second)
	_ = first.Close(t.Context())
}

func TestARelayThatIsCutOffKeepsTheLockNoLongerThanItsLease(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	db := newDatabase(t)
	var line testdb.Line
	cut, err := NewSnapshot(line.Through(t, db.Config()), "d", SnapshotConfig{Lease: await.Expiry(2 * time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	owner := testdb.Acquire(t, cut).(*snapshotSession)
	second := db.standBy(db.source("d", SnapshotConfig{Lease: 10 * time.Second}))
	line.Kill()
	next := successor(t, second)
	if next.lease.Epoch != owner.lease.Epoch+1 {
		t.Errorf("the epoch went from %d to %d", owner.lease.Epoch, next.lease.Epoch)
	}
	// The server ends the silent session. Then the new owner has the lock, and the next one is as fast as ever.
	db.AwaitSoon("SELECT locked FROM outbox.cursors WHERE epoch = $1", next.lease.Epoch)
	closed(t, next)
}

// A session of PgBouncer's is the relay's own until the relay hangs up or dies; then PgBouncer resets it.
func TestAPoolerOfSessionsGivesTheLockBack(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	pool := db.pooled(map[string]string{"pool_mode": "session"})
	cfg := SnapshotConfig{Lease: time.Hour}
	owner := testdb.Acquire(t, pool.source("d", cfg)).(*snapshotSession)
	second := pool.standBy(pool.source("d", cfg))
	_ = owner.lease.Link.Conn.PgConn().Conn().Close()
	_ = owner.reader.conn.PgConn().Conn().Close()
	next := successor(t, second)
	third := db.standBy(db.source("d", cfg))
	closed(t, next)
	closed(t, successor(t, third))
}

// What waits for hours leaves no line in the server's log, whatever of waits is logged there, and ends without one.
func TestToStandByIsNoMatterForTheLogOfTheServer(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	pg := servers.OwnPostgres(t, servers.PostgresConfig{Settings: map[string]string{
		"log_lock_waits": "on", "log_min_messages": "warning", "log_min_error_statement": "debug5"}})
	db := database{testdb.DB{T: t, URL: pg.URL("postgres")}}
	db.Install()
	owner := testdb.Acquire(t, db.source("d", SnapshotConfig{Lease: time.Hour}))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	source := db.source("d", SnapshotConfig{Lease: time.Hour})
	before := len(pg.Log())
	go func() {
		_, err := source.Acquire(ctx)
		ended <- err
	}()
	time.Sleep(4 * time.Second) // several waits
	conn := db.Connect()
	await.Until(t, "it waits", func() bool {
		waiting, err := Awaited(ctx, conn, "d", 0)
		return waiting && err == nil
	})
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	db.Await("SELECT count(*) = 2 FROM pg_stat_activity WHERE application_name LIKE 'outbox relay%'") // the owner's
	if got := pg.Log()[before:]; got != "" {
		t.Errorf("the server has logged:\n%s", got)
	}
	closed(t, owner)
}

func TestNobodyWaitsForAShardGroupThatNobodyStandsByFor(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	conn := db.Connect()
	owner := testdb.Acquire(t, db.source("d", SnapshotConfig{Lease: time.Hour}))
	db.standBy(db.source("d", SnapshotConfig{Lease: time.Hour}))
	for destination, group := range map[string]int{"d": 1, "e": 0} {
		if waiting, err := Awaited(t.Context(), conn, destination, group); waiting || err != nil {
			t.Errorf("shard group %d of %s: %v, %v", group, destination, waiting, err)
		}
	}
	closed(t, owner)
}
