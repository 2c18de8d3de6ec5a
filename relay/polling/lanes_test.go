package polling

import (
	"slices"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/testdb"
)

// Renewals and settlements wait for a page, so a page is short, however much it has to pass over.
func TestAPageOfHeldLanesIsShortWhateverItPassesOver(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	const hold = `INSERT INTO outbox.holds (destination, lane, id, message_id, topic, key, shard, created_at, retry_at) `
	db.Exec(hold + `SELECT 'd', gen_random_uuid()::text, -i, gen_random_uuid(), 't', NULL, 40, now(), now() FROM generate_series(1, 300) i`)
	db.Exec(hold + `SELECT 'd', 'g of another group ' || i, -i, gen_random_uuid(), 't', 'g' || i, 3, now(), now() FROM generate_series(1, 300) i`)
	db.Exec(hold + `SELECT 'd', 'h' || i % 3, -i, gen_random_uuid(), 't', 'h', 40, now(), CASE WHEN i <= 2997 THEN now() END FROM generate_series(1, 3000) i`)
	db.Exec(hold + `SELECT 'd', 'i', -i, gen_random_uuid(), 't', 'i', 40, now(), now() FROM generate_series(1, 3) i`)
	s := testdb.Acquire(t, db.source("d", SnapshotConfig{Group: 1, Groups: 2, Lease: time.Minute}))
	const limit = 20
	var all []string
	calls, after := 0, ""
	for {
		lanes, next, err := s.Lanes(t.Context(), after, limit)
		if err != nil {
			t.Fatal(err)
		}
		calls++
		all = append(all, lanes...)
		if next == "" {
			break
		}
		if next == after {
			t.Fatalf("after %q comes %q", after, next)
		}
		after = next
	}
	if want := []string{"h0", "h1", "h2", "i"}; !slices.Equal(all, want) {
		t.Errorf("lanes %q, want %q", all, want)
	}
	// 30 for the 600 that are passed over; the thousands of rows behind three heads are skipped.
	if calls < 30 || calls > 36 {
		t.Errorf("%d calls", calls)
	}
	if n := db.Value(`SELECT count(*)::text FROM outbox.holds WHERE retry_at IS NULL`); n != "0" {
		t.Errorf("%s heads have no time", n)
	}
}
