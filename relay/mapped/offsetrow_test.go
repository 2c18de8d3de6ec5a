package mapped

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/relay"
)

// A table of offsets that more groups had before has a row of each of them.
func TestADeadLetterIsKeptByFewerGroups(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"xmin", "serial"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.Exec(`INSERT INTO events (topic, key, payload, part) VALUES ('t', 'a', '1', 0)`)
			open := func(group, groups int) relay.Session {
				source := opened(t)(strategies()[name](db.Config(),
					Config{Name: "one", Group: group, Groups: groups, PollIdle: 5 * time.Millisecond}))
				return acquired(t, source)
			}
			for group := range 2 {
				must(t, open(group, 2).Close(t.Context()))
			}
			s := open(0, 1)
			d := &read(t, s, 1)[0]
			if err := s.Settle(t.Context(), relay.Settlement{Through: d,
				Dead: []relay.Dead{{Delivery: d, Reason: relay.ReasonRefused, Err: errors.New("no")}}}); err != nil {
				t.Fatal(err)
			}
			if n := db.Value(`SELECT count(*) FROM dead_events`); n != "1" {
				t.Errorf("%s dead letters", n)
			}
		})
	}
}

// A session whose lease has run out inserts an offset, which its successor hasn't taken. That doesn't give it the
// others back.
func TestAnOffsetDoesNotRenewAGroupsLease(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"xmin", "serial"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			source := opened(t)(strategies()[name](db.Config(), Config{Name: "one", PollIdle: 5 * time.Millisecond}))
			s := acquired(t, source).(*offsetSession)
			db.Exec(`UPDATE offsets SET available_after = now() + interval '1 hour'`) // its successor's
			must(t, s.load(t.Context(), []partName{{"t", 7}}))
			if err := s.link.Do(func(conn *pgx.Conn) error { return s.renew(t.Context(), conn) }); !errors.Is(err, relay.ErrLeaseLost) {
				t.Errorf("the lease is renewed: %v", err)
			}
		})
	}
}
