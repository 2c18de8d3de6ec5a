package mapped

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

// A key stays blocked when its relay restarts, and is free again by each way that docs/mapping.md names, whether the
// relay runs or not.
func TestABlockedKeyStaysBlockedAndIsReleased(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	const blocked = `coalesce(next_at = 'infinity', false) OR coalesce(locked_until = 'infinity', false)`
	for what, release := range map[string]string{
		"deleted":      `DELETE FROM events WHERE id = 1`,
		"done":         `UPDATE events SET status = 'done' WHERE id = 1`,
		"attempts":     `UPDATE events SET attempts = 0 WHERE id = 1`,
		"next attempt": `UPDATE events SET next_at = NULL WHERE id = 1`,
		"claim":        `UPDATE events SET locked_until = NULL WHERE id = 1`,
	} {
		for _, strategy := range append(noting, "lease alone") {
			alone := strategy == "lease alone" // its time is the only column that tells
			if alone == (what == "next attempt") && alone || what == "claim" && !alone ||
				what == "attempts" && strategy == "lease by status" {
				continue
			}
			for _, running := range []bool{true, false} {
				name := map[bool]string{true: " running ", false: " stopped "}[running]
				t.Run(what+name+strategy, func(t *testing.T) {
					t.Parallel()
					db := newDatabase(t)
					db.Exec(`ALTER TABLE events ADD next_at timestamptz`)
					open := changed(func(m *mapping.Mapping) {
						if !alone {
							m.Failure.NextAttempt = "next_at"
						}
					})[strings.TrimSuffix(strategy, " alone")]
					broker := relaytest.NewMemory()
					broker.Fail("k", 1, outbox.Permanent(errors.New("never")))
					begin := func() func() {
						source := opened(t)(open(db.Config(), Config{Name: "one", PollIdle: 5 * time.Millisecond}))
						_, stop := testdb.Run(t, source, broker, relay.Config{OnExhausted: relay.Block})
						return stop
					}
					// others tells when the relay has read everything.
					others := func(text string) {
						t.Helper()
						db.Exec(`INSERT INTO events (topic, key, payload) VALUES ('t', $1, 'x')`, text)
						db.Await(`SELECT status = 'done' FROM events WHERE key = $1`, text)
					}
					db.Exec(`INSERT INTO events (topic, key, payload) VALUES ('t', 'k', '1'), ('t', 'k', '2'), ('t', 'k', '3')`)
					stop := begin()
					others("a")
					db.Await(`SELECT count(*) = 1 FROM events WHERE ` + blocked)
					stop()
					stop = begin()
					others("b")
					stop()
					if n := db.Value(`SELECT string_agg(id::text, ',') FROM events WHERE ` + blocked); n != "1" {
						t.Fatalf("after a restart, %s are blocked, want 1", n)
					}
					if running {
						stop = begin()
						others("c")
					}
					db.Exec(release)
					if !running {
						stop = begin()
					}
					db.Await(`SELECT count(*) = 0 FROM events WHERE status <> 'done'`)
					stop()
					var got string
					for _, m := range broker.Messages() {
						if m.Key == "k" {
							got += string(m.Payload)
						}
					}
					if want := map[bool]string{true: "23", false: "123"}[what == "deleted" || what == "done"]; got != want {
						t.Errorf("%s came, want %s", got, want)
					}
				})
			}
		}
	}
}

// A hold ends when its row is gone and another has its id: that one is new, and in the order of its key.
func TestAHoldEndsWhenAnotherRowHasItsId(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]string{
		"truncated": `TRUNCATE events RESTART IDENTITY; INSERT INTO events (topic, key, payload) VALUES ('t', 'k', '1'), ('t', 'k', '2'), ('t', 'k', '3')`,
		"set back": `BEGIN; DELETE FROM events; SELECT setval(pg_get_serial_sequence('events', 'id'), 1, false);
			INSERT INTO events (topic, key, payload) VALUES ('t', 'k', '1'), ('t', 'k', '2'), ('t', 'k', '3'); COMMIT`,
	} {
		for _, strategy := range noting {
			t.Run(what+" "+strategy, func(t *testing.T) {
				t.Parallel()
				db := newDatabase(t)
				source := opened(t)(strategies()[strategy](db.Config(), Config{Name: "one", PollIdle: 5 * time.Millisecond}))
				broker := relaytest.NewMemory()
				broker.Fail("k", 1, outbox.Permanent(errors.New("never")))
				_, stop := testdb.Run(t, source, broker, relay.Config{OnExhausted: relay.Block})
				db.Exec(`INSERT INTO events (topic, key, payload) VALUES ('t', 'k', 'old'), ('t', 'other', 'old'), ('t', 'a', 'old'), ('t', 'b', 'old')`)
				db.Await(`SELECT count(*) FILTER (WHERE status = 'done') = 3 AND bool_or(error LIKE '%never%') FROM events`)
				if _, err := db.Connect().PgConn().Exec(t.Context(), change).ReadAll(); err != nil {
					t.Fatal(err)
				}
				db.Await(`SELECT count(*) = 3 FROM events WHERE status = 'done'`)
				stop()
				var got string
				for _, m := range broker.Messages() {
					if m.Key == "k" {
						got += string(m.Payload)
					}
				}
				if got != "123" {
					t.Errorf("%s came, want 123", got)
				}
			})
		}
	}
}

// What a relay has sent isn't marked in a row that has got its id since.
func TestAnotherRowOfTheIdIsNotMarked(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{"advisory", "lease", "lease by status"} { // the other locks its rows
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			source := opened(t)(strategies()[strategy](db.Config(), Config{Name: "one", PollIdle: time.Millisecond}))
			s := acquired(t, source)
			db.Exec(`INSERT INTO events (topic, key, payload) VALUES ('t', 'k', 'old')`)
			d := read(t, s, 1)
			db.Exec(`TRUNCATE events RESTART IDENTITY`)
			db.Exec(`INSERT INTO events (topic, key, payload) VALUES ('t', 'k', 'new')`)
			must(t, s.Settle(t.Context(), relay.Settlement{Through: &d[0], Delivered: 1}))
			if got := db.Value(`SELECT id || ' ' || status FROM events`); got != "1 new" {
				t.Errorf("the row is %s", got)
			}
		})
	}
}
