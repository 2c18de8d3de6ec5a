package mapped

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

// A row is not read while one with a lower id may still be committed: it would be lost with the offset, for writers
// whose lock doesn't conflict with itself, or who take none, commit out of order.
func TestSerialWaitsForLowerIdsWhateverLockTheirWritersTake(t *testing.T) {
	t.Parallel()
	for _, lock := range []string{"SELECT 1", "LOCK TABLE events IN ROW EXCLUSIVE MODE"} {
		t.Run(lock, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			source, err := strategies()["serial"](db.Config(), Config{Name: "one", PollIdle: 5 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			const insert = "; INSERT INTO events (topic, key, payload, part) VALUES ('t', 'k', '%d', 0)"
			first, second := db.Connect(), db.Connect()
			if _, err := first.Exec(t.Context(), "BEGIN; "+lock+fmt.Sprintf(insert, 1)); err != nil {
				t.Fatal(err)
			}
			if _, err := second.Exec(t.Context(), "BEGIN; "+lock+fmt.Sprintf(insert, 2)+"; COMMIT"); err != nil {
				t.Fatal(err)
			}
			s := acquired(t, source).(*offsetSession)
			for range 3 { // polls of the session, one after the other
				if err := s.look(t.Context()); err != nil {
					t.Fatal(err)
				}
				ds, err := s.read(t.Context(), 10)
				if err != nil {
					t.Fatal(err)
				}
				if len(ds) > 0 {
					t.Fatalf("%q is read before 1 is committed", ds[0].Payload)
				}
			}
			if _, err := first.Exec(t.Context(), "COMMIT"); err != nil {
				t.Fatal(err)
			}
			if ds := read(t, s, 2); string(ds[0].Payload) != "1" || string(ds[1].Payload) != "2" {
				t.Errorf("got %q and %q", ds[0].Payload, ds[1].Payload)
			}
		})
	}
}

// V4 as its author has printed it: writers of several rows at once under ROW EXCLUSIVE, some of which roll back.
func TestSerialLosesNothingOfWritersUnderRowExclusive(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	source, err := strategies()["serial"](db.Config(), Config{Name: "one", PollIdle: 5 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	broker := relaytest.NewMemory()
	ctx, stop := testdb.Run(t, source, broker, relay.Config{})
	var wg sync.WaitGroup
	const writers, each = 8, 60
	var mu sync.Mutex
	committed := make(map[string]bool)
	for w := range writers {
		conn := db.Connect()
		wg.Go(func() {
			for n := range each {
				var rows []string
				for i := range 1 + rand.N(15) {
					rows = append(rows, fmt.Sprintf("%d/%d/%d", w, n, i))
				}
				end := "COMMIT"
				if n%5 == 4 {
					end = "ROLLBACK"
				}
				_, err := conn.Exec(ctx,
					"BEGIN; LOCK TABLE events IN ROW EXCLUSIVE MODE; INSERT INTO events (topic, key, payload, part) VALUES ('t', 'k"+
						fmt.Sprint(w)+"', '"+strings.Join(rows, fmt.Sprintf("', 0), ('t', 'k%d', '", w))+
						"', 0); SELECT pg_sleep(random() * 0.004); "+end)
				if err != nil {
					t.Error(err)
					return
				}
				if end == "COMMIT" {
					mu.Lock()
					for _, row := range rows {
						committed[row] = true
					}
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	if err := broker.Wait(ctx, func() bool { return len(broker.Messages()) >= len(committed) }); err != nil {
		t.Errorf("%d of %d messages came: %v", len(broker.Messages()), len(committed), err)
	}
	stop()
	last := make(map[string]int64)
	for _, m := range broker.Messages() {
		if !committed[string(m.Payload)] {
			t.Errorf("%s came twice, or was rolled back", m.Payload)
		}
		delete(committed, string(m.Payload))
		if m.Position < last[m.Key] {
			t.Errorf("key %s: %d after %d", m.Key, m.Position, last[m.Key])
		}
		last[m.Key] = m.Position
	}
	if len(committed) > 0 {
		t.Errorf("%d messages are lost", len(committed))
	}
}

// A session that draws numbers ahead commits them behind those of others, under any lock.
func TestSerialRefusesASequenceThatIsCached(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Exec(`ALTER SEQUENCE events_id_seq CACHE 20`)
	source, err := strategies()["serial"](db.Config(), Config{Name: "one"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := source.Acquire(t.Context()); err == nil || !strings.Contains(err.Error(), "CACHE 20") {
		t.Errorf("got %v", err)
	}
}
