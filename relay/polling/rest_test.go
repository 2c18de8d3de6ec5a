package polling

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/seed"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
)

// restingSQL reports whether a session of the database rests.
const restingSQL = `SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database
	WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.mode = 'ExclusiveLock' AND l.granted
	AND l.classid = 'outbox.messages'::regclass AND l.objid = 1 AND l.objsubid = 2)`

// inVain is a pause between polls after which a test has long failed: what comes before it was called for.
const inVain = 24 * time.Hour

func (db database) insert(payload string) {
	db.T.Helper()
	db.Exec(`INSERT INTO outbox.messages (topic, key, payload) VALUES ('t', $1, $1::text::bytea)`, payload)
}

// arrivals follows a source until the end of the test. The channel gets each message's payload.
func arrivals(t *testing.T, source relay.Source) <-chan string {
	got := make(chan string, 10_000)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- follow(ctx, source, func(d *relay.Delivery) { got <- string(d.Payload) }) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return got
}

func receive(t *testing.T, from <-chan string) string {
	t.Helper()
	select {
	case m := <-from:
		return m
	case <-await.Context(t).Done():
		t.Fatal("a message was missed: no poll was called for")
		return ""
	}
}

// Writers come in bursts and alone, at the very time when the session goes to rest. Polls are so rare that a message
// whose notification is missed stays away.
func TestNoMessageIsMissedWhileASessionGoesToRest(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	db := newDatabase(t)
	got := arrivals(t, db.source("d", SnapshotConfig{PollIdle: inVain}))
	writer := db.Connect()
	insert := func() {
		if _, err := writer.Exec(t.Context(), `INSERT INTO outbox.messages (topic, payload) VALUES ('t', 'x')`); err != nil {
			t.Fatal(err)
		}
	}
	rests, random := 0, seed.Rand(t)
	for range 150 {
		burst := 1 + random.IntN(30)
		for range burst {
			insert()
		}
		for range burst {
			receive(t, got)
		}
		time.Sleep(time.Duration(3000+random.IntN(3000)) * time.Microsecond) // restAbove is in the middle
		insert()
		receive(t, got)
		if random.IntN(5) == 0 {
			db.Await(restingSQL)
			rests++
		}
	}
	if rests == 0 {
		t.Error("the session never rested")
	}
}

func TestALongTransactionIsNotMissedByASessionThatWantsToRest(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	got := arrivals(t, db.source("d", SnapshotConfig{PollIdle: inVain}))
	db.Await(restingSQL)
	db.insert("first")
	receive(t, got)

	// This one is older than the session's rest, so it has nothing to do with notifications.
	other := newDatabase(t)
	txs := other.begin(1)
	if _, err := txs[0].Exec(t.Context(), `INSERT INTO outbox.messages (topic, payload) VALUES ('t', 'long')`); err != nil {
		t.Fatal(err)
	}
	from := arrivals(t, other.source("d", SnapshotConfig{PollIdle: inVain}))
	if other.Value(restingSQL) == "true" {
		t.Error("a session rests while a transaction runs that doesn't know of it")
	}
	other.commit(txs)
	receive(t, from)
}

// A session whose broker hangs for a moment stops reading, and gives back the lock of one that rests. What is written
// then calls nobody. It must not wait for the end of a pause that was meant for a rest.
func TestWhatComesBesideACrowdedCursorIsReadWhenItIsSettled(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	s := testdb.Acquire(t, db.source("d", SnapshotConfig{PollIdle: inVain})).(*snapshotSession)
	var last relay.Delivery
	await.Until(t, "the session rests and is crowded", func() bool {
		if s.crowded() { // and was away for too long
			testdb.Settle(t, s, &last)
		}
		for i := 0; !s.crowded(); i++ {
			db.insert(fmt.Sprint(i))
			last = testdb.Next(t, s, 1)[0]
			time.Sleep(restAbove)
		}
		return db.Value(restingSQL) == "true"
	})
	got := make(chan string, 1)
	go func() {
		batch, err := s.Next(t.Context(), 1)
		if err != nil {
			got <- err.Error()
			return
		}
		got <- testdb.Payloads(batch.Deliveries)
	}()
	db.Await("SELECT NOT (" + restingSQL + ")")
	db.insert("beside")
	testdb.Settle(t, s, &last)
	if m := receive(t, got); m != "beside" {
		t.Errorf("got %q", m)
	}
}

func TestWhatComesWhileNextIsNotCalledIsReadByTheNextCall(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	s := testdb.Acquire(t, db.source("d", SnapshotConfig{PollIdle: inVain}))
	db.insert("first")
	testdb.Next(t, s, 1)
	db.Await("SELECT NOT (" + restingSQL + ")")
	db.insert("meanwhile")
	if got := testdb.Payloads(testdb.Next(t, s, 1)); got != "meanwhile" {
		t.Errorf("got %q", got)
	}
}

func TestWhereTransactionsCanBePreparedNoSessionRests(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, servers.PostgresConfig{TwoPhase: true})
	got := arrivals(t, db.source("d", SnapshotConfig{}))
	conn := db.Connect()
	for range 20 {
		for _, sql := range []string{"BEGIN", "INSERT INTO outbox.messages (topic, payload) VALUES ('t', 'x')",
			"PREPARE TRANSACTION 'rest " + db.Config().Database + "'", "COMMIT PREPARED 'rest " + db.Config().Database + "'"} {
			if _, err := conn.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		receive(t, got)
		time.Sleep(10 * time.Millisecond) // the session would rest by now
	}
}

// A notification is needed only where the trigger is missing: polls go on, if seldom.
func TestAMessageWithoutANotificationIsFoundByAPoll(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	got := arrivals(t, db.source("d", SnapshotConfig{}))
	db.Await(restingSQL)
	db.Exec(`ALTER TABLE outbox.messages DISABLE TRIGGER wake`)
	db.insert("silent")
	receive(t, got)
}

// Notifications cost writers much, so none are asked for that change nothing.
func TestWritersNotifyOnlyWhereASessionGainsByIt(t *testing.T) {
	t.Parallel()
	t.Run("not while its relay doesn't read", func(t *testing.T) {
		t.Parallel()
		db := newDatabase(t)
		s := testdb.Acquire(t, db.source("d", SnapshotConfig{}))
		read := make(chan error)
		go func() {
			_, err := s.Next(t.Context(), 10)
			read <- err
		}()
		db.Await(restingSQL)
		db.insert("one")
		if err := <-read; err != nil {
			t.Fatal(err)
		}
		db.Await("SELECT NOT (" + restingSQL + ")")
		db.insert("two")
		if got := testdb.Payloads(testdb.Next(t, s, 10)); got != "two" {
			t.Errorf("got %q", got)
		}
	})
	t.Run("not for messages of others", func(t *testing.T) {
		t.Parallel()
		db := newDatabase(t)
		// The other group's messages are nothing to this session.
		got := arrivals(t, db.source("d", SnapshotConfig{Groups: 2, PollIdle: inVain}))
		db.Await(restingSQL)
		await.Until(t, "the session to give up", func() bool {
			db.Exec(`INSERT INTO outbox.messages (topic, key) SELECT 't', k FROM generate_series(1, 100) n, LATERAL (SELECT n::text) k (k)
				WHERE hashtextextended(k, 0) & 63 >= 32 LIMIT 1`)
			return db.Value(restingSQL) == "false"
		})
		if len(got) > 0 {
			t.Error("the test's messages are of the session's group")
		}
	})
}

func TestASessionRestsWhereMessagesAreRareAlone(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	conn, err := connect(t.Context(), db.Config(), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	r, err := newRest(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	found := func(every time.Duration) {
		for range 100 {
			if err := r.polled(t.Context(), every, true, true); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, step := range []struct {
		every, since time.Duration // between the messages, and before a poll
		rests        bool
	}{
		{0, time.Second, true},
		{3 * time.Millisecond, 3 * time.Millisecond, true}, // it would not begin with so many, but it goes on
		{time.Millisecond, time.Millisecond, false},
		{3 * time.Millisecond, 3 * time.Millisecond, false},
		{3 * time.Millisecond, 5 * time.Millisecond, true},
	} {
		if step.every > 0 {
			found(step.every)
		}
		if err := r.begin(t.Context(), step.since); err != nil {
			t.Fatal(err)
		}
		if rests := db.Value(restingSQL) == "true"; rests != step.rests {
			t.Fatalf("after messages every %v and a pause of %v it rests: %v", step.every, step.since, rests)
		}
	}
}
