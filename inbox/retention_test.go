package inbox

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/sqlstate"
)

func (w *world) retention() *Retention {
	w.t.Helper()
	r, err := NewRetention(w.pool, RetentionConfig{})
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// later lets the window pass for what is closed.
func (w *world) later() {
	w.t.Helper()
	w.exec(`UPDATE outbox.inbox_rotation SET closed_at = closed_at - keep - interval '1 s'`)
}

// turn passes the turn on, whatever the time.
func (w *world) turn() {
	w.t.Helper()
	w.later()
	if report := w.retention().look(w.t.Context()); report.Err != nil || !report.Turned || report.Emptied == "" {
		w.t.Fatalf("%+v", report)
	}
	if report := w.retention().look(w.t.Context()); report.Err != nil || report.Turned || report.Held != "" {
		w.t.Fatalf("the look after: %+v", report) // it closes the table before
	}
}

func TestARecordIsFoundForTheWindowAndForgottenAfterTwo(t *testing.T) {
	t.Parallel()
	onMajors(t, func(t *testing.T, w *world) {
		b := newInbox(t, Config{})
		for round := range 4 { // through all three tables and round again
			msg := message(fmt.Sprint(round))
			handle := func(want Outcome) {
				t.Helper()
				if result, err := b.Handle(t.Context(), w.pool, msg, effect); err != nil || result.Outcome != want {
					t.Errorf("round %d: %+v, %v, want %s", round, result, err, want)
				}
			}
			handle(Applied)
			handle(Duplicate)
			w.turn()
			handle(Duplicate)
			// Without the window having passed there is no turn.
			if report := w.retention().look(t.Context()); report.Turned || report.Emptied != "" || report.Err != nil {
				t.Errorf("before its time: %+v", report)
			}
			handle(Duplicate)
			w.turn()
			if n := w.recorded(); n != 0 {
				t.Errorf("round %d: %d records are left after two windows", round, n)
			}
			handle(Applied)
			w.exec(`TRUNCATE effects, outbox.inbox_0, outbox.inbox_1, outbox.inbox_2`)
		}
	})
}

func TestATurnWaitsForTransactionsThatHaveRecorded(t *testing.T) {
	t.Parallel()
	w := setup(t)
	b, msg := newInbox(t, Config{}), message("k")
	tx, err := w.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := b.HandleTx(t.Context(), tx, msg, effect); err != nil {
		t.Fatal(err)
	}
	w.later()
	if report := w.retention().look(t.Context()); !report.Turned {
		t.Fatalf("%+v", report)
	}
	// The table has a writer, so the window of its records hasn't begun, however long that takes.
	for range 2 {
		w.later()
		w.exec(`UPDATE outbox.inbox_rotation SET emptied = true`)
		if report := w.retention().look(t.Context()); report.Turned ||
			report.Emptied != "" || !strings.Contains(report.Held, "still open") {
			t.Fatalf("with an open transaction: %+v", report)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if report := w.retention().look(t.Context()); report.Turned || report.Held != "" || report.Err != nil {
		t.Fatalf("after it: %+v", report)
	}
	if result, err := b.Handle(t.Context(), w.pool, msg, effect); err != nil || result.Outcome != Duplicate {
		t.Errorf("%+v, %v", result, err)
	}
}

func TestNothingIsEmptiedThatATransactionLooksInto(t *testing.T) {
	t.Parallel()
	w := setup(t)
	b, msg := newInbox(t, Config{}), message("k")
	tx, err := w.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	// It has looked into the table before the current one, which is neither after a turn.
	if _, err := b.HandleTx(t.Context(), tx, msg, effect); err != nil {
		t.Fatal(err)
	}
	w.exec(`UPDATE outbox.inbox_rotation SET current = 1, emptied = false`)
	w.later() // and no table is written to that is full of old records
	if report := w.retention().look(t.Context()); report.Turned || report.Emptied != "" || report.Held == "" {
		t.Errorf("%+v", report)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if report := w.retention().look(t.Context()); report.Emptied != "outbox.inbox_2" {
		t.Errorf("%+v", report)
	}
}

// The first transaction records in one table, the second, after a turn, in another. The second must wait for
// the first, which it can't see, whether it knows of the turn already or not.
func TestDuplicatesOnBothSidesOfATurnExcludeEachOther(t *testing.T) {
	t.Parallel()
	onMajors(t, func(t *testing.T, w *world) {
		for round := range 4 {
			commit, knows := round%2 == 0, round < 2
			b, msg := newInbox(t, Config{}), message("k")
			before := w.int(`SELECT current FROM outbox.inbox_rotation`)
			tx, err := w.pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(context.Background()) }()
			if _, err := b.HandleTx(t.Context(), tx, msg, effect); err != nil {
				t.Fatal(err)
			}
			w.exec(`UPDATE outbox.inbox_rotation SET current = (current + 1) % 3, closed_at = NULL`)
			if knows {
				b.turn.Store(int32(before+1) % 3)
			}
			second := make(chan Result, 1)
			go func() {
				result, err := b.Handle(t.Context(), w.pool, msg, effect)
				if err != nil {
					t.Error(err)
				}
				second <- result
			}()
			await.Until(t, "the second to wait", func() bool { return w.waiting() == 1 })
			if commit {
				err = tx.Commit(t.Context())
			} else {
				err = tx.Rollback(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			want := Applied
			if commit {
				want = Duplicate
			}
			if result := <-second; result.Outcome != want {
				t.Errorf("first committed: %v: the second was %s", commit, result.Outcome)
			}
			w.requireEffects(msg, 1)
			if report := w.retention().look(t.Context()); report.Err != nil || report.Held != "" {
				t.Errorf("%+v", report) // the table before is closed again
			}
		}
	})
}

func TestDuplicatesAroundATurnHaveOneEffect(t *testing.T) {
	t.Parallel()
	w := setup(t)
	b := newInbox(t, Config{})
	var msgs []*outbox.Message
	for range 150 {
		msgs = append(msgs, message("k"))
	}
	var turning, all sync.WaitGroup
	begin, over := make(chan struct{}), make(chan struct{})
	turning.Go(func() {
		defer close(over)
		// One turn only: after a second one the window would be over, and records be forgotten.
		await.Until(t, "some records", func() bool { return w.recorded() > len(msgs)/4 })
		w.later()
		close(begin)
		if report := w.retention().look(t.Context()); report.Err != nil || !report.Turned {
			t.Errorf("%+v", report)
		}
	})
	var applied atomic.Int64
	for n := range 8 {
		all.Go(func() {
			for i := range msgs {
				switch i { // before, during and after the turn; each time there are some that nobody has had
				case len(msgs) / 2:
					<-begin
				case len(msgs) * 3 / 4:
					<-over
				}
				msg := msgs[(i+n*3)%len(msgs)]
				result, err := b.Handle(t.Context(), w.pool, msg, effect)
				if err != nil {
					t.Error(err)
				}
				if result.Outcome == Applied {
					applied.Add(1)
				}
			}
		})
	}
	all.Wait()
	turning.Wait()
	if n := applied.Load(); n != int64(len(msgs)) {
		t.Errorf("%d of %d applied", n, len(msgs))
	}
	if n := w.int(`SELECT count(*) FROM outbox.inbox_1`); n == 0 {
		t.Error("nothing was recorded after the turn")
	}
	if n := w.int(`SELECT count(*) FROM effects`); n != len(msgs) {
		t.Errorf("%d effects of %d messages", n, len(msgs))
	}
}

// Whoever has seen a table as the current one when it was closed already records in the next one: the quick
// way, because its locks come before its snapshot, and outbox.receive, because it looks twice.
func TestARecordAtTheMomentOfATurnIsInTheCurrentTable(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]Config{"quick": {}, "receive": {Gaps: GapReport}} {
		onMajors(t, func(t *testing.T, w *world) {
			conn, b, msg := w.conn(), newInbox(t, cfg), message("k")
			for range 8 { // then the session uses the plans that it has, and locks by them
				if _, err := b.Handle(t.Context(), conn, message("k"), effect); err != nil {
					t.Fatal(name, err)
				}
			}
			// An INSERT into the first table waits for this lock.
			tx, err := w.pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(context.Background()) }()
			if _, err := tx.Exec(t.Context(), `LOCK TABLE outbox.inbox_0 IN SHARE MODE`); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() {
				_, err := b.Handle(t.Context(), conn, msg, effect)
				done <- err
			}()
			await.Until(t, "the record to wait", func() bool { return w.waiting() == 1 })
			if _, err := tx.Exec(t.Context(), `UPDATE outbox.inbox_rotation SET current = 1, closed_at = clock_timestamp(), emptied = true`); err != nil {
				t.Fatal(err)
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if n := w.int(`SELECT count(*) FROM outbox.inbox_1`); n != 1 {
				t.Errorf("%d records in the current table: the one of the moment of the turn goes with the table that was closed before it",
					n)
			}
			if n := w.int(`SELECT count(DISTINCT applied) FROM outbox.inbox WHERE message_id = $1::text::uuid`, msg.ID.String()); n != 1 {
				t.Errorf("the record counts as %d applications", n)
			}
			if result, err := b.Handle(t.Context(), w.pool, msg, effect); err != nil || result.Outcome != Duplicate {
				t.Errorf("%+v, %v", result, err)
			}
		})
	}
}

func TestATurnOutsideOfARepeatableReadIsNoWayAround(t *testing.T) {
	t.Parallel()
	w := setup(t)
	b, msg := newInbox(t, Config{}), message("k")
	tx, err := w.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `SELECT count(*) FROM effects`); err != nil { // its snapshot
		t.Fatal(err)
	}
	w.turn()
	if _, err := b.Handle(t.Context(), w.pool, msg, effect); err != nil {
		t.Fatal(err)
	}
	if _, err := b.HandleTx(t.Context(), tx, msg, effect); sqlstate.Of(err) != "40001" {
		t.Errorf("a message that another has applied since the snapshot: %v", err)
	}
	w.requireEffects(msg, 1)
}

func TestRetentionRunsUntilItsContextEnds(t *testing.T) {
	t.Parallel()
	w := setup(t)
	if err := health.SetInboxWindow(t.Context(), w.pool, time.Second, admin.Action{Actor: "test"}); err != nil {
		t.Fatal(err)
	}
	if err := health.SetInboxWindow(t.Context(), w.pool, time.Millisecond, admin.Action{Actor: "test"}); err == nil {
		t.Error("a window of a millisecond was taken")
	}
	var turns atomic.Int32
	r, err := NewRetention(w.pool, RetentionConfig{Interval: 20 * time.Millisecond, Observe: func(report RetentionReport) {
		if report.Err != nil {
			t.Error(report.Err)
		}
		if report.Turned {
			turns.Add(1)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }()
	await.Until(t, "two turns", func() bool { return turns.Load() >= 2 })
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for _, cfg := range []RetentionConfig{{Interval: -1}} {
		if _, err := NewRetention(w.pool, cfg); err == nil {
			t.Errorf("%+v was taken", cfg)
		}
	}
}

// A pool that could not be opened is a nil pointer in an interface that isn't nil.
func TestADatabaseThatIsMissingIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	var unopened *pgxpool.Pool
	b, err := New("c", Config{})
	if err != nil {
		t.Fatal(err)
	}
	fn := func(context.Context, pgx.Tx, *outbox.Message) error { return nil }
	for _, db := range []interface {
		DB
		RetentionDB
	}{nil, unopened} {
		if _, err := NewRetention(db, RetentionConfig{}); err == nil || !strings.Contains(err.Error(), "there is no database") {
			t.Errorf("NewRetention: %v", err)
		}
		if _, err := NewWorker(b, nil, db, fn, WorkerConfig{}); err == nil || !strings.Contains(err.Error(), "needs an inbox, a database") {
			t.Errorf("NewWorker: %v", err)
		}
		if _, err := b.Handle(t.Context(), db, &outbox.Message{ID: outbox.NewID(), Topic: "t"}, fn); err == nil ||
			!strings.Contains(err.Error(), "db is nil") {
			t.Errorf("Handle: %v", err)
		}
	}
}

func TestOfReplicasThatLookAtOnceOnePassesTheTurnOn(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.retention().look(t.Context())
	for round := range 4 {
		w.later()
		before := w.int(`SELECT current FROM outbox.inbox_rotation`)
		var replicas sync.WaitGroup
		var turned, emptied atomic.Int32
		look := func() {
			report := w.retention().Look(t.Context())
			if report.Err != nil {
				t.Error(report.Err)
			}
			if report.Turned {
				turned.Add(1)
			}
			if report.Emptied != "" {
				emptied.Add(1)
			}
		}
		for range 8 {
			replicas.Go(look)
		}
		replicas.Wait()
		look() // what all of them left because they would have waited for each other for too long
		if turned.Load() != 1 || emptied.Load() != 1 || w.int(`SELECT current FROM outbox.inbox_rotation`) != (before+1)%3 {
			t.Errorf("round %d: %d turns, %d tables emptied; want one of each", round, turned.Load(), emptied.Load())
		}
	}
}
