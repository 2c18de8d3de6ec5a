package mapped

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
)

// failing fails the first so many calls, and tells of each.
type failing struct {
	first  int
	failed chan int
	n      int
}

func (b *failing) Publish(ctx context.Context, batch []*outbox.Message) []error {
	errs := make([]error, len(batch))
	if b.n++; b.n > b.first {
		return nil
	}
	select {
	case b.failed <- b.n:
	case <-ctx.Done():
	}
	for i := range errs {
		errs[i] = errors.New("not now")
	}
	return errs
}

func (b *failing) Close() error { return nil }

// noting are the strategies that have columns to count failures in.
var noting = []string{"skiplocked", "advisory", "lease", "lease by status"}

// Every failure stands in the table when the message is delivered, though its pauses were short.
func TestEveryFailureIsNoted(t *testing.T) {
	t.Parallel()
	for _, name := range noting {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.Exec(insertEvent, "k", "1")
			source := opened(t)(strategies()[name](db.Config(), Config{Name: "one", PollIdle: 5 * time.Millisecond}))
			broker := &failing{first: 3, failed: make(chan int, 3)}
			_, stop := testdb.Run(t, source, broker, relay.Config{Backoff: relay.Backoff{Initial: time.Millisecond, Max: time.Millisecond}})
			db.Await(`SELECT status = 'done' FROM events`)
			stop()
			want := "3 not now"
			if name == "lease by status" {
				want = "4 not now" // the mapping counts claims
			}
			if got := db.Value(`SELECT attempts || ' ' || error FROM events`); got != want {
				t.Errorf("the table says %q, want %q", got, want)
			}
		})
	}
}

// A relay that is killed again and again after a few failures goes on counting where it was.
func TestACrashLoopEndsInADeadLetter(t *testing.T) {
	t.Parallel()
	for _, name := range noting {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.Exec(insertEvent, "k", "1")
			for life := 1; db.Value(`SELECT count(*) FROM dead_events`) == "0"; life++ {
				if life > 5 {
					t.Fatalf("after %d lives with three failures each the table says %s",
						life-1, db.Value(`SELECT attempts::text FROM events`))
				}
				var line testdb.Line
				source := opened(t)(strategies()[name](line.Through(t, db.Config()), Config{Name: "one", PollIdle: 5 * time.Millisecond}))
				broker := &failing{first: 100, failed: make(chan int)}
				r, err := relay.New(source, broker, relay.Config{MaxAttempts: 5,
					DrainTimeout: await.Expiry(time.Millisecond), Grace: time.Minute,
					Backoff: relay.Backoff{Initial: time.Millisecond, Max: time.Millisecond}})
				must(t, err)
				ctx, kill := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- r.Run(ctx) }()
				for alive := true; alive; {
					select {
					case n := <-broker.failed:
						alive = n < 3
					case <-time.After(100 * time.Millisecond):
						alive = db.Value(`SELECT count(*) FROM dead_events`) == "0"
					}
				}
				line.Kill()
				kill()
				must(t, <-ended)
				db.Await(`SELECT count(*) = 0 FROM (SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'outbox relay%') gone`)
			}
			if got := db.Value(`SELECT reason || ' ' || attempts FROM dead_events`); got != fmt.Sprint("exhausted ", 5) {
				t.Errorf("the dead letter says %q", got)
			}
		})
	}
}

// A claim can take longer than a lease, where it walks along many rows that are done. The session waits for it, and the
// claim is as long as any other.
func TestAClaimMayTakeLongerThanTheLease(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	for _, strategy := range []string{mapping.SkipLocked, mapping.Lease} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			m := events()
			if strategy == mapping.Lease {
				m.Claim = mapping.Claim{Until: "locked_until", Owner: "owner"}
			}
			db.Exec(`INSERT INTO events (topic, key, payload) VALUES ('t', 'k', 'x')`)
			source := opened(t)(Open(strategy, db.Config(), m, Config{Name: "one", Lease: 5 * time.Second, PollIdle: time.Millisecond}))
			s := acquired(t, source)
			// The lock stands for slow reading, which lock_timeout doesn't end.
			var claims *pgx.Conn
			if strategy == mapping.Lease {
				claims = s.(*leaseSession).reader.Conn
			} else {
				claims = s.(*skipLockedSession).links[0].Conn
			}
			if _, err := claims.Exec(t.Context(), "SET lock_timeout = 0"); err != nil {
				t.Fatal(err)
			}
			lock, err := db.Connect().Begin(t.Context())
			must(t, err)
			// Only the claim needs this lock.
			if _, err = lock.Exec(t.Context(), "LOCK TABLE events IN EXCLUSIVE MODE"); err != nil {
				t.Fatal(err)
			}
			freed := make(chan error, 1)
			time.AfterFunc(7*time.Second, func() { freed <- lock.Rollback(context.Background()) })
			b, err := s.Next(t.Context(), 10)
			must(t, <-freed)
			if err != nil || len(b.Deliveries) != 1 || time.Now().After(s.Expires()) {
				t.Fatalf("%d messages came, until %s, %v", len(b.Deliveries), s.Expires(), err)
			}
			left := db.Value("SELECT coalesce(locked_until > now(), $1) FROM events", strategy == mapping.SkipLocked)
			if left != "true" {
				t.Error("the claim has ended while it was made")
			}
		})
	}
}
