package polling

import (
	"fmt"
	"testing"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
)

func TestTheHoldsOfSeveralLanesAreReadTogether(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	s := testdb.Acquire(t, db.source("d", SnapshotConfig{}))
	for i, lane := range []string{"b", "a", "c", "a", "b", `"{,}`, "a"} {
		db.Exec(`INSERT INTO outbox.holds (destination, lane, id, message_id, topic, key, shard, payload, created_at, retry_at, attempts)
			VALUES ('d', $1, $2::int, gen_random_uuid(), 't', $1, 0, 'x', now(), now(), $2::int)`, lane, i+1)
	}
	lists, err := s.Held(t.Context(), []string{"a", "none", "b", `"{,}`, "no more"}, 2)
	if err != nil {
		t.Fatal(err)
	}
	var got [][]int64
	for _, list := range lists {
		ids := []int64{}
		for _, d := range list {
			if ids = append(ids, d.Position); d.Attempts != int(d.Position) {
				t.Errorf("message %d has %d attempts", d.Position, d.Attempts)
			}
		}
		got = append(got, ids)
	}
	if want := "[[2 4] [] [1 5] [6] []]"; fmt.Sprint(got) != want {
		t.Errorf("read %v, want %s", got, want)
	}
}

// A job of an operator locks holds in the order of their ids. A settlement that took them in another order would wait
// for the job while the job waits for it.
func TestASettlementLocksHoldsInTheOrderOfTheirIDs(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	s := testdb.Acquire(t, db.source("d", SnapshotConfig{}))
	for _, id := range []int{2, 1} {
		db.Exec(`INSERT INTO outbox.holds (destination, lane, id, message_id, topic, key, shard, payload, created_at, retry_at, attempts)
			VALUES ('d', 'k' || 3 - $1::int, $1::int, gen_random_uuid(), 't', 'k' || 3 - $1::int, 0, 'x', now(), now(), 1)`, id)
	}
	lists, err := s.Held(t.Context(), []string{"k1", "k2"}, 1) // 2 is in k1
	if err != nil {
		t.Fatal(err)
	}
	job, err := db.Connect().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	lock := func(id int) {
		if _, err := job.Exec(t.Context(), `SELECT FROM outbox.holds WHERE destination = 'd' AND id = $1 FOR UPDATE`, id); err != nil {
			t.Errorf("the job locks %d: %v", id, err)
		}
	}
	lock(1)
	settled := make(chan error, 1)
	go func() {
		settled <- s.Settle(t.Context(), relay.Settlement{HeldDelivered: []*relay.Delivery{&lists[0][0], &lists[1][0]}, Delivered: 2})
	}()
	await.Until(t, "the settlement waits for the job", func() bool {
		return db.Value(`SELECT count(*) FROM pg_locks WHERE NOT granted AND pid IN
			(SELECT pid FROM pg_stat_activity WHERE datname = current_database())`) == "1"
	})
	lock(2)
	if err := job.Commit(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-settled; err != nil {
		t.Errorf("the settlement: %v", err)
	}
	if n := db.Value(`SELECT count(*) FROM outbox.holds`); n != "0" {
		t.Errorf("%s holds are left", n)
	}
}
