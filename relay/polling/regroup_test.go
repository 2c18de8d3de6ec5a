package polling

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/check"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/registration"
)

// follow delivers and settles until ctx ends, as a relay does.
func follow(ctx context.Context, source relay.Source, deliver func(*relay.Delivery)) error {
	for {
		session, err := source.Acquire(ctx)
		if err != nil {
			return unlessEnded(ctx, err)
		}
		err = followSession(ctx, session, deliver)
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), await.Patience)
		closeErr := session.Close(closing)
		cancel()
		if !errors.Is(err, relay.ErrLeaseLost) {
			return errors.Join(unlessEnded(ctx, err), closeErr)
		}
	}
}

func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func followSession(ctx context.Context, session relay.Session, deliver func(*relay.Delivery)) error {
	for {
		b, err := session.Next(ctx, 1+rand.IntN(500))
		if err != nil {
			return err
		}
		for i := range b.Deliveries {
			deliver(&b.Deliveries[i])
		}
		last := b.Deliveries[len(b.Deliveries)-1]
		if err := session.Settle(context.WithoutCancel(ctx), relay.Settlement{Through: &last, Delivered: len(b.Deliveries)}); err != nil {
			return err
		}
		b.Recycle()
	}
}

func TestChangingTheNumberOfGroupsLosesDoublesAndInvertsNothing(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	db := newDatabase(t)
	ctx := await.Context(t)
	db.Exec(`CREATE TABLE aggregates (id integer PRIMARY KEY, n bigint NOT NULL DEFAULT 0) WITH (fillfactor = 50)`)
	db.Exec(`INSERT INTO aggregates SELECT generate_series(0, $1::integer - 1)`, stressKeys)
	checker := check.New(check.Config{})
	to := checker.Destination("default")
	w := &stressWriter{db: db, checker: checker, rows: 12_000}
	var writers sync.WaitGroup
	for i := range 6 {
		writers.Go(func() {
			if err := w.run(ctx, i); err != nil && ctx.Err() == nil {
				t.Errorf("writer: %v", err)
			}
		})
	}
	written := make(chan struct{})
	go func() {
		writers.Wait()
		w.prepared.Wait()
		close(written)
	}()

	var delivered atomic.Int64
	deliver := func(d *relay.Delivery) {
		if _, err := to.Payload(d.Payload); err != nil {
			t.Error(err)
		}
		delivered.Add(1)
	}
	await := func(what string, ok func() bool) {
		t.Helper()
		for !ok() {
			select {
			case <-ctx.Done():
				t.Fatalf("waited in vain for %s: %d delivered", what, delivered.Load())
			case <-time.After(time.Millisecond):
			}
		}
	}
	layouts := []int{1, 3, 8, 2, 1}
	for i, groups := range layouts {
		// Half of the time the sources are one relay's, half of the time each is its own.
		var registration *registration.Registration
		if i%2 == 0 {
			registration = db.register(fmt.Sprint("relay ", i), 5*time.Second)
		}
		running, stop := context.WithCancel(ctx)
		var readers sync.WaitGroup
		for group := range groups {
			source := db.source("d",
				SnapshotConfig{Groups: groups, Group: group, Registration: registration, Lease: 5 * time.Second})
			readers.Go(func() {
				if err := follow(running, source, deliver); err != nil {
					t.Errorf("group %d of %d: %v", group, groups, err)
				}
			})
		}
		db.Await("SELECT count(*) = $1::int AND max(shard_groups) = $1 FROM outbox.cursors WHERE owner IS NOT NULL", groups)
		if i == len(layouts)-1 {
			<-written
			await("the rest", func() bool { return checker.Outstanding() == 0 })
		} else {
			from := delivered.Load()
			await("some messages", func() bool { return delivered.Load() > from+300 || checker.Outstanding() == 0 })
		}
		stop()
		readers.Wait()
	}
	report := checker.Report()
	if !report.OK() || report.Duplicated != 0 {
		t.Error(report)
	}
	if got := db.Value("SELECT sum(delivered)::bigint FROM outbox.cursors"); got != fmt.Sprint(delivered.Load()) {
		t.Errorf("the cursors count %s delivered, want %d", got, delivered.Load())
	}
}

func TestAChangeOfGroupsThatIsInterruptedGoesOn(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.numbered(1, 300)
	for group := range 3 {
		s := testdb.Acquire(t, db.source("d", SnapshotConfig{Groups: 3, Group: group}))
		ds := testdb.Next(t, s, 20)
		if len(ds) < 20 {
			t.Fatalf("group %d has %d messages", group, len(ds))
		}
		testdb.Settle(t, s, &ds[9])
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	// A relay that dies in the middle, and one that goes on.
	for attempt := range 2 {
		source := db.source("d", SnapshotConfig{Groups: 2, Group: 1})
		source.owner = "one"
		session := testdb.Acquire(t, source)
		for {
			b, err := session.Next(t.Context(), 7)
			if errors.Is(err, relay.ErrLeaseLost) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			for i := range b.Deliveries {
				got = append(got, string(b.Deliveries[i].Payload))
			}
			testdb.Settle(t, session, &b.Deliveries[len(b.Deliveries)-1])
			if attempt == 0 && len(got) > 120 {
				for _, sub := range session.(*regroupSession).groups {
					sub.lease.StopKeeping()
				}
				dial.HangUp(session.(*regroupSession).link.Conn)
				break
			}
		}
		db.numbered(301+attempt*10, 310+attempt*10)
		if attempt == 1 {
			_ = session.Close(t.Context())
		}
	}
	// What comes last, for both groups.
	db.Exec(`INSERT INTO outbox.messages (topic, key, payload) SELECT 't', g::text, 'end' FROM generate_series(1, 100) g`)
	for group := range 2 {
		s := testdb.Acquire(t, db.source("d", SnapshotConfig{Groups: 2, Group: group}))
		for ended := false; !ended; {
			for _, text := range strings.Fields(testdb.Payloads(testdb.Next(t, s, 1000))) {
				if ended = text == "end"; !ended {
					got = append(got, text)
				}
			}
		}
	}
	slices.Sort(got)
	if n := len(got); n != 320-30 || len(slices.Compact(got)) != n {
		t.Errorf("%d messages, %d different ones, want %d", n, len(slices.Compact(got)), 320-30)
	}
}

func TestHoldsOfAllGroupsAreDeliveredWhileTheirNumberChanges(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.numbered(1, 40)
	held := 0
	for group := range 2 {
		s := testdb.Acquire(t, db.source("d", SnapshotConfig{Groups: 2, Group: group}))
		ds := testdb.Next(t, s, 100)
		var hold []relay.Hold
		for i := range ds {
			hold = append(hold, relay.Hold{Delivery: &ds[i]})
		}
		held += len(hold)
		if err := s.Settle(t.Context(), relay.Settlement{Through: &ds[len(ds)-1], Hold: hold}); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s := testdb.Acquire(t, db.source("d", SnapshotConfig{}))
	if got := drain(t, s, held); len(got) != held {
		t.Errorf("%d holds delivered, want %d", len(got), held)
	}
	if n := db.Value("SELECT count(*) FROM outbox.holds"); n != "0" {
		t.Errorf("%s holds left", n)
	}
	_, err := s.Next(t.Context(), 10)
	if !errors.Is(err, relay.ErrLeaseLost) || !strings.Contains(err.Error(), "1 shard groups now") {
		t.Errorf("got %v", err)
	}
}
