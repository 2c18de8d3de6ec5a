package polling

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/cursors"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/messages"
)

// Transactions are smaller and larger than chunks, end where chunks end, and share ranges of ids.
func TestABacklogIsReadToItsEndHoweverItIsCut(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	for round := range 5 {
		open := db.begin(3)
		for n := range 4 * (2 + round) {
			if _, err := open[(n*n+round)%len(open)].Exec(t.Context(), `INSERT INTO outbox.messages (topic, key, payload) VALUES ('t', $1, 'x')`,
				fmt.Sprint(n, round)); err != nil {
				t.Fatal(err)
			}
		}
		db.commit(open)
	}
	next, err := cursors.Parse(db.Value(`SELECT pg_current_snapshot()`))
	if err != nil {
		t.Fatal(err)
	}
	prev, err := cursors.Parse("1:1:")
	if err != nil {
		t.Fatal(err)
	}
	for group, groups := range []int{1, 4} {
		r := testdb.Acquire(t, db.source(fmt.Sprint("d", groups), SnapshotConfig{Group: group, Groups: groups})).(*snapshotSession).reader
		rows, _ := db.Connect().Query(t.Context(), `SELECT id FROM outbox.messages WHERE shard BETWEEN $1::text::int AND $2::text::int ORDER BY id`,
			string(r.firstShard), string(r.lastShard))
		want, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil || len(want) == 0 {
			t.Fatal(want, err)
		}
		for _, r.chunking = range []chunking{{1, 1}, {2, 1}, {3, 2}, {4, 3}, {5, 250}, {7, 1}, {1000, 250}} {
			var got []int64
			b, err := newBacklog(t.Context(), r, &prev, &next, 0)
			for err == nil && !b.done() {
				var pg *messages.Page
				if pg, err = b.read(t.Context(), r, 5, 1<<20); pg != nil {
					for i := range pg.Deliveries {
						got = append(got, pg.Deliveries[i].Position)
					}
					r.pool.Put(pg)
				}
			}
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%d groups, %+v: read %v, want %v (%v)", groups, r.chunking, got, want, err)
			}
		}
	}
}

// An id that was inserted by hand is far below the others.
func TestAFarIDCostsABacklogFewPages(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Exec(`INSERT INTO outbox.messages (id, topic, payload) VALUES (-1000000000000000, 't', 'x')`)
	for range 3 {
		db.Exec(`INSERT INTO outbox.messages (topic, payload) SELECT 't', 'x' FROM generate_series(1, 100)`)
	}
	r := testdb.Acquire(t, db.source("d", SnapshotConfig{})).(*snapshotSession).reader
	r.chunking.chunk = 50
	prev, err := cursors.Parse("1:1:")
	if err != nil {
		t.Fatal(err)
	}
	next, err := cursors.Parse(db.Value(`SELECT pg_current_snapshot()`))
	if err != nil {
		t.Fatal(err)
	}
	const limit, doublings = 5, 50 // of the step, until it reaches from the far id to the others
	rows, answers := 0, 0
	b, err := newBacklog(t.Context(), r, &prev, &next, math.MinInt64)
	for ; err == nil && !b.done(); answers++ {
		var pg *messages.Page
		if pg, err = b.answer(t.Context(), r, limit, 1<<20); pg != nil {
			rows += len(pg.Deliveries)
			r.pool.Put(pg)
		}
	}
	if want := 301; err != nil || rows != want || answers > want/limit+doublings {
		t.Errorf("%d rows in %d pages of %d, want %d in at most %d (%v)", rows, answers, limit, want, want/limit+doublings, err)
	}
}

// This is not a parallel test, because it counts what the process allocates.
func TestADrainAllocatesHardlyAnythingForAMessage(t *testing.T) {
	const messages, first = 60_000, 20_000
	db := newDatabase(t)
	for range 3 {
		db.Exec(`INSERT INTO outbox.messages (topic, key, event_type, payload, headers)
			SELECT 't', 'key ' || i % 1000, 'e', convert_to(repeat('x', 256), 'UTF8'), '{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a": "b"}'
			FROM generate_series(1, $1::int) i`, messages/3)
	}
	var from, to runtime.MemStats
	broker := &counted{at: map[int]func(){first: func() { runtime.ReadMemStats(&from) }, messages: func() { runtime.ReadMemStats(&to) }}}
	_, stop := testdb.Run(t, db.source("d", SnapshotConfig{}), broker, relay.Config{Stripes: 1})
	db.Await(`SELECT coalesce(sum(delivered), 0) = $1 FROM outbox.cursors`, messages)
	stop()
	each := float64(to.Mallocs-from.Mallocs) / (messages - first)
	t.Logf("%.3f allocations a message", each)
	if each > 0.5 {
		t.Errorf("a message costs %.2f allocations", each)
	}
}

// counted accepts everything, and does something when it has so many messages.
type counted struct {
	n  int
	at map[int]func()
}

func (c *counted) Publish(_ context.Context, batch []*outbox.Message) []error {
	for n, do := range c.at {
		if c.n < n && n <= c.n+len(batch) {
			do()
		}
	}
	c.n += len(batch)
	return nil
}

func (c *counted) Close() error { return nil }

func TestPagesSpanMoreWhereIDsAreSparse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name           string
		limit, n       int
		step, want     int64
		after, through int64
	}{
		{"a page that is nearly full", 1000, 700, 1000, 1000, 0, 1000},
		{"a quarter of the ids", 1000, 250, 1000, 2000, 0, 1000},
		{"and the next step", 1000, 500, 2000, 3200, 1000, 3000},
		{"a page that was asked for with a smaller step", 1000, 250, 3200, 3200, 3000, 4000},
		{"nothing", 1000, 0, 1000, 2000, 0, 1000},
		{"nothing, of large messages that come one by one", 1, 0, 1, 2, 0, 1},
		{"one of those", 1, 1, 2, 2, 0, 2},
		{"nothing for ever", 1000, 0, maxStep, maxStep, 0, maxStep},
	} {
		b := backlog{step: c.step}
		b.widen(pageQuery{after: c.after, through: c.through, limit: c.limit}, c.n)
		if b.step != c.want {
			t.Errorf("%s: %d ids, want %d", c.name, b.step, c.want)
		}
	}
}
