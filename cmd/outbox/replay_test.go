package main

import (
	"context"
	"fmt"
	"net/http/httptest"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/inbox"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/webhook"
)

// ledger is a consumer with an inbox. It keeps the order in which messages came, doubles too.
type ledger struct {
	url string

	mu   sync.Mutex
	came map[string][]int64 // by key
}

// ledger makes one in the database d.
func (d *database) ledger() *ledger {
	t := d.t
	t.Helper()
	d.exec(`CREATE TABLE effects (message_id uuid NOT NULL)`)
	pool, err := pgxpool.New(t.Context(), d.url)
	if err != nil {
		t.Fatal(err)
	}
	box, err := inbox.New("ledger", inbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	keys, err := webhook.ParseKeys("whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=")
	if err != nil {
		t.Fatal(err)
	}
	l := &ledger{came: map[string][]int64{}}
	handler, err := webhook.Handler(keys, func(ctx context.Context, m *outbox.Message) error {
		var n int64
		if _, err := fmt.Sscan(string(m.Payload), &n); err != nil {
			return err
		}
		l.mu.Lock()
		l.came[m.Key] = append(l.came[m.Key], n)
		l.mu.Unlock()
		_, err := box.Handle(ctx, pool, m, func(ctx context.Context, tx pgx.Tx, m *outbox.Message) error {
			_, err := tx.Exec(ctx, `INSERT INTO effects VALUES ($1)`, m.ID.String())
			return err
		})
		return err
	}, webhook.Config{})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(func() { server.Close(); pool.Close() })
	l.url = server.URL
	return l
}

// lengths are how many messages of each key have come.
func (l *ledger) lengths() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := map[string]int{}
	for key, ns := range l.came {
		list[key] = len(ns)
	}
	return list
}

// inOrder checks that, of what has come since lengths were before, the messages of a key up to number most came in
// order, and so did those beyond. A repeat doesn't count: a relay that died had not settled it. It returns how many of
// the first came.
func (l *ledger) inOrder(t *testing.T, before map[string]int, most int64) (came int) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, ns := range l.came {
		seen, last := map[int64]bool{}, map[bool]int64{}
		for _, n := range ns[before[key]:] {
			if seen[n] {
				continue
			}
			if seen[n] = true; n <= most {
				came++
			}
			if n < last[n <= most] {
				t.Errorf("key %s: %d comes after %d", key, n, last[n <= most])
			}
			last[n <= most] = n
		}
	}
	return came
}

// flow writes 500 messages a second, with numbers after the given one, until stop is called, which returns the last
// number, or the test ends.
func (d *database) flow(keys, number int) (stop func() int) {
	d.t.Helper()
	conn, err := pgx.Connect(d.t.Context(), d.url)
	if err != nil {
		d.t.Fatal(err)
	}
	ended, written := make(chan struct{}), make(chan int, 1)
	go func() {
		defer func() { _ = conn.Close(context.Background()) }()
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ended:
				written <- number
				return
			case <-tick.C:
			}
			if _, err := conn.Exec(d.t.Context(), `INSERT INTO outbox.messages (topic, key, payload)
				SELECT 'orders', 'k' || i % $2::int, convert_to(i::text, 'UTF8') FROM generate_series($1::int + 1, $1::int + 10) i`, number, keys); err != nil {
				if d.t.Context().Err() == nil {
					d.t.Error(err)
				}
				written <- number
				return
			}
			number += 10
		}
	}()
	return func() int {
		close(ended)
		return <-written
	}
}

// noDeadlocks checks that nobody was ended because two waited for each other.
func (d *database) noDeadlocks() {
	d.t.Helper()
	if n := d.int(`SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`); n > 0 {
		d.t.Errorf("%d deadlocks", n)
	}
}

const toLedger = `
name: relay-1
http: {listen: %q}
destinations:
  - name: ledger
    topics: [orders]
    broker: {http: {url: %q, allow_networks: [127.0.0.0/8], secret: whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=, request_messages: 50}}
`

// An hour is replayed while 500 messages a second flow. The relay dies, and so does who carries the job out. Behind
// the inbox each message has its effect once; the replayed messages of a key come in their order, and so do the new
// ones.
func TestAReplayOfAnHourDoublesNothingBehindTheInbox(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	const hour, keys = 3000, 20
	d := setup(t)
	l := d.ledger()
	yaml := fmt.Sprintf(toLedger, freeAddress(t), l.url)
	relay := d.relay(yaml)
	// They lie in the segment that is written to next, which is not emptied meanwhile. Those of another topic are
	// not for the ledger, and a replay sends it none.
	d.exec(`INSERT INTO outbox.messages (topic, key, payload, created_at, segment)
		SELECT CASE WHEN i % 10 = 0 THEN 'others' ELSE 'orders' END, 'k' || i % $2::int, convert_to(i::text, 'UTF8'),
		       now() - interval '1 hour' + i * interval '1 s',
		       (date_part('epoch', now())::bigint / 600 + 1) % 8 FROM generate_series(1, $1::int) i`, hour, keys)
	const delivered = hour * 9 / 10
	effects := func() int { return d.int(`SELECT count(*) FROM effects`) }
	until(t, "the hour is delivered", func() bool { return effects() == delivered })
	until(t, "and settled", func() bool { return d.int(`SELECT sum(delivered) FROM outbox.cursors`) == delivered })
	before := l.lengths()

	stop := d.flow(keys, hour)
	since := time.Now().Add(-2 * time.Hour).UTC().Format(time.RFC3339)
	minuteAgo := time.Now().Add(-time.Minute).UTC().Format(time.RFC3339)
	runner := d.start(nil, "replay", "--destination", "ledger", "--since", since, "--until", minuteAgo, "--rate", "800",
		"--now", "--yes", "--reason", "they lost an hour")
	until(t, "a part is held", func() bool { return d.int(`SELECT coalesce(max(done), 0) FROM outbox.jobs`) >= 500 })
	for _, p := range []*process{runner, relay} {
		if err := p.cmd.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		p.wait()
	}
	d.relay(yaml)
	until(t, "the job is done", func() bool {
		return d.int(`SELECT count(*) FROM outbox.jobs WHERE state = 'done' AND done = total`) == 1
	})
	all := delivered + stop() - hour // a busy machine may be slower than what flows
	until(t, "what it holds is sent", func() bool { return d.int(`SELECT count(*) FROM outbox.holds WHERE job IS NOT NULL`) == 0 })
	until(t, "everything has its effect", func() bool { return effects() >= all })
	until(t, "and nothing waits", func() bool { return d.int(`SELECT count(*) FROM outbox.holds`) == 0 })
	if n := effects(); n != all || d.int(`SELECT count(DISTINCT message_id) FROM effects`) != all {
		t.Errorf("%d effects of %d messages", n, all)
	}
	if n := d.int(`SELECT count(*) FROM outbox.dead_letters`); n != 0 {
		t.Errorf("%d dead letters", n)
	}
	if n := l.inOrder(t, before, hour); n != delivered {
		t.Errorf("%d of %d came once more", n, delivered)
	}
	d.noDeadlocks()
}

func TestTenThousandDeadLettersAreRequeuedInOrderWhileOthersFlow(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	const dead, keys = 10_000, 100
	d := setup(t)
	l := d.ledger()
	d.exec(`INSERT INTO outbox.dead_letters (destination, lane, id, message_id, topic, key, shard, payload, created_at, attempts, reason, error)
		SELECT 'ledger', k, i, gen_random_uuid(), CASE WHEN i > $1 THEN 'others' ELSE 'orders' END, k, hashtextextended(k, 0) & 63,
		       convert_to(i::text, 'UTF8'), now(), 10, 'exhausted', 'no' FROM generate_series(1, $1::int + 5) i, LATERAL (SELECT 'k' || i % $2::int) x (k)`, dead, keys)
	d.exec(`SELECT setval('outbox.messages_id_seq', $1)`, dead+5)
	d.relay(fmt.Sprintf(toLedger, freeAddress(t), l.url))
	until(t, "the relay has its lease", func() bool { return d.int(`SELECT count(*) FROM outbox.cursors WHERE owner IS NOT NULL`) == 1 })
	stop := d.flow(keys, dead+5)
	d.start(nil, "dead", "requeue", "--destination", "ledger", "--topic", "orders", "--now", "--yes")
	until(t, "the job is done", func() bool {
		return d.int(`SELECT count(*) FROM outbox.jobs WHERE state = 'done' AND done = $1`, dead) == 1
	})
	all := stop() - 5 // a busy machine may be slower than what flows
	until(t, "what it holds is sent", func() bool { return d.int(`SELECT count(*) FROM outbox.holds WHERE id <= $1`, dead) == 0 })
	until(t, "everything has its effect", func() bool { return d.int(`SELECT count(*) FROM effects`) >= all })
	if n := d.int(`SELECT count(DISTINCT message_id) FROM effects`); n != all || n != d.int(`SELECT count(*) FROM effects`) {
		t.Errorf("%d of %d messages have had their effect", n, all)
	}
	if n := d.int(`SELECT count(*) FROM outbox.dead_letters WHERE topic = 'others'`); n != 5 || d.int(`SELECT count(*) FROM outbox.dead_letters`) != n {
		t.Errorf("%d others are dead letters still", n)
	}
	if n := l.inOrder(t, nil, dead); n != dead {
		t.Errorf("%d of %d came", n, dead)
	}
	d.noDeadlocks()
}
