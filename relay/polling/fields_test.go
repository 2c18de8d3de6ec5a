package polling

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
	"github.com/pgoutbox/outbox/schema"
)

// Whatever a column holds, in whatever encoding, the row is delivered or becomes a dead letter.
func TestNoFieldStopsADestination(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	for encoding, bad := range testdb.Encodings {
		t.Run(encoding, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t).NewEncoded(encoding)
			db.Install()
			db.RunFields(testdb.FieldsRun{
				Table: "outbox.messages", Bad: bad,
				Open: func(name string) relay.Source {
					s := database{db}.source("d", SnapshotConfig{Lease: time.Minute}) // one that is lost repeats messages
					s.owner = name
					return s
				},
				Dead: "SELECT message_id::text, reason, error FROM outbox.dead_letters",
			})
			heldFields(t, database{db}, bad)
		})
	}
}

// heldFields does the same with rows that operators have made holds of, and that are due. The lane comes from the key
// or the aggregate id, which are as they should be.
func heldFields(t *testing.T, db database, bad string) {
	t.Helper()
	want := 0
	for i, f := range append(testdb.Fields(bad), testdb.Field{Name: "due long ago", Column: "retry_at", Value: "'-infinity'"}) {
		if slices.Contains([]string{"key", "aggregate_id", "message_id"}, f.Column) {
			continue
		}
		lane := schema.QuoteLiteral("held " + f.Name)
		db.Exec(f.Insert("outbox.holds", map[string]string{
			"destination": "'d'", "lane": lane, "id": strconv.Itoa(-i - 1), "message_id": "gen_random_uuid()",
			"topic": "'t'", "key": lane, "shard": "0", "created_at": "now()", "retry_at": "now()"}))
		if f.Dead == "" {
			want++
		}
	}
	broker := relaytest.NewMemory()
	ctx, stop := testdb.Run(t, db.source("d", SnapshotConfig{Lease: time.Minute}), broker, relay.Config{})
	if err := broker.Wait(ctx, func() bool { return len(broker.Messages()) >= want }); err != nil {
		t.Errorf("%d of %d holds came: %v", len(broker.Messages()), want, err)
	}
	db.Await(`SELECT NOT EXISTS (SELECT FROM outbox.holds)`)
	stop()
	if n := len(broker.Messages()); n != want {
		t.Errorf("%d holds came, want %d", n, want)
	}
}

// A settlement that the database refuses for one message's sake is made without it: the others are settled and
// published once.
func TestAnOutcomeThatCanNotBeStoredIsADeadLetter(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Exec(`ALTER TABLE outbox.holds ADD CHECK (key <> 'refused')`)
	db.Exec(`INSERT INTO outbox.messages (topic, key, payload) SELECT 't', k, n::text::bytea
		FROM generate_series(1, 3) n, unnest(ARRAY['good', 'held', 'refused']) k ORDER BY n`)
	broker := relaytest.NewMemory()
	broker.Fail("held", 1, errors.New("later"))
	broker.Fail("refused", 1, errors.New("later"))
	r, err := relay.New(db.source("d", SnapshotConfig{}), broker, relay.Config{HoldAfter: time.Nanosecond,
		Backoff: relay.Backoff{Initial: 10 * time.Millisecond, Max: 10 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(await.Context(t))
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	if err := broker.Wait(ctx, func() bool { return len(broker.Messages()) >= 6 }); err != nil {
		t.Error(err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	got := make(map[string]string)
	for _, m := range broker.Messages() {
		got[m.Key] += string(m.Payload)
	}
	if want := map[string]string{"good": "123", "held": "123"}; !maps.Equal(got, want) {
		t.Errorf("delivered %v, want %v", got, want)
	}
	if got := db.Value(`SELECT string_agg(reason || ' ' || convert_from(payload, 'UTF8') || ' ' || (error LIKE '%violates check constraint%'), ', ' ORDER BY id) FROM outbox.dead_letters`); got != "invalid 1 true, invalid 2 true, invalid 3 true" {
		t.Errorf("dead letters: %s", got)
	}
}

// Who may set every column can write ids far from all others, and transactions that were or are to come.
func TestColumnsThatAWriterLeavesAloneStopNothing(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"as they come", "from a backlog"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			insert := func(payload, column, value string) {
				t.Helper()
				db.Exec(testdb.Field{Column: column, Value: value}.Insert("outbox.messages",
					map[string]string{"topic": "'t'", "payload": "'" + payload + "'"}))
			}
			want := map[string]int{"negative": 1, "smallest": 1, "largest": 1, "segment of another time": 1, "epoch": 1, "end": 1}
			write := func() {
				insert("no transaction", "xid", "'0'")
				insert("negative", "id", "-7")
				insert("smallest", "id", "-9223372036854775807")
				insert("largest", "id", "9223372036854775807")
				insert("segment of another time", "segment", "(date_part('epoch', now())::bigint / 600 % 8 + 3)::int % 8")
				insert("epoch", "created_at", "'-infinity'")
				insert("end", "created_at", "'infinity'")
			}
			if way == "from a backlog" {
				write()
			}
			source := db.source("d", SnapshotConfig{})
			source.minPage = 1
			broker := relaytest.NewMemory()
			r, err := relay.New(source, broker, relay.Config{Batch: 2})
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(await.Context(t))
			defer stop()
			ended := make(chan error, 1)
			go func() { ended <- r.Run(ctx) }()
			wait := func() {
				t.Helper()
				n := 0
				for _, each := range want {
					n += each
				}
				if err := broker.Wait(ctx, func() bool { return len(broker.Messages()) >= n }); err != nil {
					t.Fatalf("%d of %d messages came: %v", len(broker.Messages()), n, err)
				}
			}
			if way == "as they come" {
				all := want
				want = map[string]int{"first": 1}
				insert("first", "id", "DEFAULT")
				wait()
				maps.Copy(want, all)
				write()
				insert("to come", "xid", "(pg_current_xact_id()::text::bigint + 20)::text::xid8")
				wait()
				want["to come"], want["last"] = 1, 25
				for range 25 { // transactions
					insert("last", "id", "DEFAULT")
				}
			}
			wait()
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			got := make(map[string]int)
			for _, m := range broker.Messages() {
				got[string(m.Payload)]++
			}
			if !maps.Equal(got, want) {
				t.Errorf("delivered %v, want %v", got, want)
			}
		})
	}
}
