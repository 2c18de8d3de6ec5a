package mapped

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
)

// A writer locks the rows of an aggregate, one after the other, while the relay marks them. Whoever waits for the
// other, the writer's transaction goes through; the rows are marked when it has ended.
func TestAWriterThatLocksRowsIsNeverAborted(t *testing.T) {
	t.Parallel()
	outcomes := map[string]struct {
		settle func(ds []relay.Delivery) relay.Settlement
		stored string
	}{
		"delivered": {func(ds []relay.Delivery) relay.Settlement {
			return relay.Settlement{Through: &ds[1], Delivered: 2}
		}, `SELECT count(*) = 2 FROM events WHERE status = 'done'`},
		"set aside": {func(ds []relay.Delivery) relay.Settlement {
			ds[0].Attempts, ds[1].Attempts = 7, 7
			again := time.Now().Add(time.Hour)
			return relay.Settlement{Through: &ds[1], Hold: []relay.Hold{{Delivery: &ds[0], RetryAt: again, Err: errors.New("no")},
				{Delivery: &ds[1], RetryAt: again, Err: errors.New("no")}}}
		}, `SELECT count(*) = 2 FROM events WHERE attempts >= 7 AND error = 'no' AND status = 'new'`},
		"dead": {func(ds []relay.Delivery) relay.Settlement {
			return relay.Settlement{Through: &ds[1],
				Dead: []relay.Dead{{Delivery: &ds[0], Err: errors.New("no")}, {Delivery: &ds[1], Err: errors.New("no")}}}
		}, `SELECT (SELECT count(*) = 2 FROM dead_events) AND NOT EXISTS (SELECT FROM events WHERE key IN ('1', '2'))`},
	}
	for _, name := range []string{"advisory", "lease", "lease by status"} {
		for what, outcome := range outcomes {
			t.Run(name+", "+what, func(t *testing.T) {
				t.Parallel()
				db := newDatabase(t)
				source := opened(t)(strategies()[name](db.Config(), Config{Name: "one", Lease: time.Hour, PollIdle: 5 * time.Millisecond}))
				for n := 1; n <= 2; n++ {
					db.Exec(insertEvent, fmt.Sprint(n), fmt.Sprint(n))
				}
				s := acquired(t, source)
				ds := read(t, s, 2)
				writer, err := db.Connect().Begin(t.Context())
				must(t, err)
				for _, sql := range []string{`SET LOCAL deadlock_timeout = '10ms'`, `SELECT FROM events WHERE id = 2 FOR UPDATE`} {
					if _, err := writer.Exec(t.Context(), sql); err != nil {
						t.Fatal(err)
					}
				}
				settled := make(chan error, 1)
				go func() { settled <- s.Settle(t.Context(), outcome.settle(ds)) }()
				for done := false; !done && db.Value("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)") != "true"; {
					select {
					case err := <-settled:
						settled <- err
						done = true
					default:
					}
				}
				if _, err := writer.Exec(t.Context(), `SELECT FROM events WHERE id = 1 FOR UPDATE`); err != nil {
					t.Fatalf("the writer's transaction was ended: %v", err)
				}
				must(t, writer.Commit(t.Context()))
				must(t, <-settled)
				db.Exec(insertEvent, "3", "3")
				read(t, s, 1)
				if db.Value(outcome.stored) != "true" {
					t.Errorf("what became of the rows is not stored: %s", outcome.stored)
				}
			})
		}
	}
}

// A message that waits for another attempt is not forgotten while its row is locked, nor overtaken.
func TestALockedRowThatIsTriedAgainKeepsItsPlace(t *testing.T) {
	t.Parallel()
	for _, name := range sharing {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			source := opened(t)(strategies()[name](db.Config(), Config{Name: "one", Lease: time.Hour, PollIdle: 5 * time.Millisecond}))
			for n := 1; n <= 3; n++ {
				db.Exec(insertEvent, "k", fmt.Sprint(n))
			}
			s := acquired(t, source)
			ds := read(t, s, 3)
			err := s.Settle(t.Context(), relay.Settlement{Through: &ds[2], Hold: []relay.Hold{
				{Delivery: &ds[0], RetryAt: time.Now(), Err: errors.New("no")}, {Delivery: &ds[1]}, {Delivery: &ds[2]}}})
			must(t, err)
			held := func() (all []string) {
				list := testdb.Held(t, s, "k", 10)
				for i := range list {
					if list[i].Payload != nil {
						all = append(all, string(list[i].Payload))
					}
				}
				return all
			}
			writer, err := db.Connect().Begin(t.Context())
			must(t, err)
			if _, err := writer.Exec(t.Context(), `SELECT FROM events WHERE id = 1 FOR UPDATE`); err != nil {
				t.Fatal(err)
			}
			if got := held(); len(got) > 0 {
				t.Fatalf("got %q while the first row of the key is locked", got)
			}
			must(t, writer.Commit(t.Context()))
			if got := fmt.Sprint(held()); got != "[1 2 3]" {
				t.Errorf("got %s", got)
			}
		})
	}
}
