package owner

import (
	"context"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
)

func TestMain(m *testing.M) { servers.Main(m) }

// A wait may end and get the lock in the same moment. Whatever it says is so: of a lock that was given back once,
// nothing is left.
func TestAWaitThatEndsKnowsWhetherItHasTheLock(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	lock := Lock{Key: "7, 7"}
	ctx, stop := context.WithCancel(t.Context())
	flapping := make(chan struct{})
	go func() {
		defer close(flapping)
		conn := db.Connect()
		for ctx.Err() == nil {
			if _, err := conn.Exec(t.Context(), "SELECT pg_advisory_lock(7, 7)"); err != nil {
				t.Error(err)
				return
			}
			// As long as the wait of 1 ms, so that the two ends meet.
			if _, err := conn.Exec(t.Context(), "SELECT pg_sleep(0.001), pg_advisory_unlock(7, 7)"); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	conn := db.Connect()
	var had, not int
	for range 2000 {
		got, err := lock.wait(t.Context(), conn, time.Millisecond, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		not++
		if got {
			not, had = not-1, had+1
			if err := lock.Unlock(t.Context(), conn); err != nil {
				t.Fatal(err)
			}
		}
		var left bool
		if err := conn.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_locks
			WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND granted)`).Scan(&left); err != nil {
			t.Fatal(err)
		}
		if left {
			t.Fatalf("the wait said %v, and the session has the lock", got)
		}
	}
	stop()
	<-flapping
	t.Logf("%d waits have got the lock, %d have not", had, not)
}

func TestTheServerEndsASilentSessionThatHasTheLock(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	lock := Lock{Key: "8::bigint"}
	for name, take := range map[string]func() (bool, error){
		"try":  func() (bool, error) { return lock.Try(t.Context(), db.Connect(), 300*time.Millisecond) },
		"wait": func() (bool, error) { return lock.Wait(t.Context(), db.Connect(), 300*time.Millisecond) },
	} {
		got, err := take()
		if err != nil || !got {
			t.Fatalf("%s: %v, %v", name, got, err)
		}
		db.AwaitSoon("SELECT count(*) = 0 FROM pg_locks WHERE locktype = 'advisory' AND objid = 8")
	}
	conn := db.Connect()
	if got, err := lock.Try(t.Context(), conn, time.Hour); err != nil || !got {
		t.Fatal(got, err)
	}
	if got, err := lock.Wait(t.Context(), db.Connect(), await.Expiry(300*time.Millisecond)); err != nil || got {
		t.Errorf("another session has the lock: %v, %v", got, err)
	}
	if err := lock.Unlock(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	if got, err := lock.Wait(t.Context(), db.Connect(), time.Hour); err != nil || !got {
		t.Errorf("a lock that was given back: %v, %v", got, err)
	}
}
