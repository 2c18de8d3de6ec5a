package inbox

import (
	"context"
	"database/sql"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/sqlstate"
)

// way is one of the four ways to apply a message: with pgx or database/sql, in a transaction of the
// inbox's or of the caller's, which is committed if there was no error.
type way struct {
	name   string
	handle func(ctx context.Context, w *world, b *Inbox, msg *outbox.Message, query string) (Result, error)
}

// ways run query as the handler, with the message's id and key if it has parameters.
func ways() []way {
	args := func(query string, msg *outbox.Message) []any {
		if !strings.Contains(query, "$1") {
			return nil
		}
		return []any{msg.ID.String(), msg.Key}
	}
	onPgx := func(query string) Handler {
		return func(ctx context.Context, tx pgx.Tx, msg *outbox.Message) error {
			_, err := tx.Exec(ctx, query, args(query, msg)...)
			return err
		}
	}
	onSQL := func(query string) SQLHandler {
		return func(ctx context.Context, tx *sql.Tx, msg *outbox.Message) error {
			_, err := tx.ExecContext(ctx, query, args(query, msg)...)
			return err
		}
	}
	return []way{
		{"pool", func(ctx context.Context, w *world, b *Inbox, msg *outbox.Message, query string) (Result, error) {
			return b.Handle(ctx, w.pool, msg, onPgx(query))
		}},
		{"pgx.Tx", func(ctx context.Context, w *world, b *Inbox, msg *outbox.Message, query string) (result Result, err error) {
			tx, err := w.pool.Begin(ctx)
			if err != nil {
				return result, err
			}
			result, err = b.HandleTx(ctx, tx, msg, onPgx(query))
			return result, errors.Join(err, tx.Commit(ctx))
		}},
		{"sql.DB", func(ctx context.Context, w *world, b *Inbox, msg *outbox.Message, query string) (Result, error) {
			return b.HandleSQL(ctx, w.db, msg, onSQL(query))
		}},
		{"sql.Tx", func(ctx context.Context, w *world, b *Inbox, msg *outbox.Message, query string) (result Result, err error) {
			tx, err := w.db.BeginTx(ctx, nil)
			if err != nil {
				return result, err
			}
			result, err = b.HandleSQLTx(ctx, tx, msg, onSQL(query))
			return result, errors.Join(err, tx.Commit())
		}},
	}
}

const effectQuery = `INSERT INTO effects (message_id, key) VALUES ($1::text::uuid, $2)`

func TestAMessageHasItsEffectOnceHoweverOftenItComes(t *testing.T) {
	t.Parallel()
	onMajors(t, func(t *testing.T, w *world) {
		for _, way := range ways() {
			b, msg := newInbox(t, Config{}), message("k")
			for i, want := range []Outcome{Applied, Duplicate, Duplicate} {
				result, err := way.handle(t.Context(), w, b, msg, effectQuery)
				if err != nil || result.Outcome != want || result.Missing != nil {
					t.Errorf("%s, delivery %d: %+v, %v", way.name, i+1, result, err)
				}
			}
			w.requireEffects(msg, 1)
			other, err := New("shipping", Config{})
			if err != nil {
				t.Fatal(err)
			}
			if result, err := way.handle(t.Context(), w, other, msg, effectQuery); err != nil || result.Outcome != Applied {
				t.Errorf("%s, another consumer: %+v, %v", way.name, result, err)
			}
			w.requireEffects(msg, 2)
		}
	})
}

func TestAfterAnErrorOfTheHandlerThereIsNeitherRecordNorEffect(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for _, way := range ways() {
		b, msg := newInbox(t, Config{}), message("k")
		before := w.recorded()
		_, err := way.handle(t.Context(), w, b, msg, `WITH e AS (INSERT INTO effects (message_id, note) VALUES ($1::text::uuid, $2) RETURNING no) SELECT 1 / (no - no) FROM e`)
		if sqlstate.Of(err) != "22012" || !strings.Contains(err.Error(), msg.ID.String()) {
			t.Errorf("%s: %v", way.name, err)
		}
		w.requireEffects(msg, 0)
		if n := w.recorded(); n != before {
			t.Errorf("%s: %d records are left of a message that failed", way.name, n-before)
		}
		if result, err := way.handle(t.Context(), w, b, msg, effectQuery); err != nil || result.Outcome != Applied {
			t.Errorf("%s, again: %+v, %v", way.name, result, err)
		}
		w.requireEffects(msg, 1)
	}
}

func TestAHandlersErrorIsHandedOnWithItsKind(t *testing.T) {
	t.Parallel()
	w := setup(t)
	cause := errors.New("no such order")
	_, err := newInbox(t, Config{}).Handle(t.Context(), w.pool, message("k"), func(context.Context, pgx.Tx, *outbox.Message) error {
		return outbox.Permanent(cause)
	})
	if !errors.Is(err, cause) || !outbox.IsPermanent(err) {
		t.Error(err)
	}
}

func TestTheCallersSavepointTakesTheRecordWithIt(t *testing.T) {
	t.Parallel()
	w := setup(t)
	b, msg := newInbox(t, Config{}), message("k")
	tx, err := w.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	savepoint, err := tx.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if result, err := b.HandleTx(t.Context(), savepoint, msg, effect); err != nil || result.Outcome != Applied {
		t.Fatalf("in the savepoint: %+v, %v", result, err)
	}
	if result, err := b.HandleTx(t.Context(), savepoint, msg, effect); err != nil || result.Outcome != Duplicate {
		t.Fatalf("again: %+v, %v", result, err)
	}
	if err := savepoint.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if result, err := b.HandleTx(t.Context(), tx, msg, effect); err != nil || result.Outcome != Applied {
		t.Fatalf("after the savepoint: %+v, %v", result, err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.requireEffects(msg, 1)
}

func TestACallersTransactionGoesOnAfterAHandlerFailed(t *testing.T) {
	t.Parallel()
	w := setup(t)
	b, bad, good := newInbox(t, Config{}), message("k"), message("k")
	tx, err := w.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `INSERT INTO effects (note) VALUES ('the caller''s own')`); err != nil {
		t.Fatal(err)
	}
	_, err = b.HandleTx(t.Context(), tx, bad, func(ctx context.Context, tx pgx.Tx, msg *outbox.Message) error {
		if err := effect(ctx, tx, msg); err != nil {
			t.Error(err)
		}
		_, _ = tx.Exec(ctx, `SELECT 1 / 0`)
		return nil
	})
	if !errors.Is(err, ErrAborted) {
		t.Errorf("a hidden error: %v", err)
	}
	if result, err := b.HandleTx(t.Context(), tx, good, effect); err != nil || result.Outcome != Applied {
		t.Errorf("after it: %+v, %v", result, err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.requireEffects(bad, 0)
	w.requireEffects(good, 1)
	if n := w.int(`SELECT count(*) FROM effects`); n != 2 {
		t.Errorf("%d effects, want the caller's own and one", n)
	}
}

func TestAHandlerMayHandleAnotherMessageInItsTransaction(t *testing.T) {
	t.Parallel()
	w := setup(t)
	b, outer, inner := newInbox(t, Config{}), message("k"), message("k")
	result, err := b.Handle(t.Context(), w.pool, outer, func(ctx context.Context, tx pgx.Tx, msg *outbox.Message) error {
		boom := errors.New("boom")
		if _, err := b.HandleTx(ctx, tx, inner, func(context.Context, pgx.Tx, *outbox.Message) error {
			return boom
		}); !errors.Is(err, boom) {
			t.Errorf("the inner one: %v", err)
		}
		return effect(ctx, tx, msg)
	})
	if err != nil || result.Outcome != Applied {
		t.Fatalf("%+v, %v", result, err)
	}
	w.requireEffects(outer, 1)
	if n := w.recorded(); n != 1 {
		t.Errorf("%d records, want that of the outer message", n)
	}
}

func TestConcurrentDuplicatesWaitForEachOther(t *testing.T) {
	t.Parallel()
	onMajors(t, func(t *testing.T, w *world) {
		for _, first := range []error{nil, errors.New("the first one fails")} {
			b, msg := newInbox(t, Config{}), message("k")
			inside, leave := make(chan struct{}), make(chan struct{})
			var all sync.WaitGroup
			all.Go(func() {
				_, err := b.Handle(t.Context(), w.pool, msg, func(ctx context.Context, tx pgx.Tx, msg *outbox.Message) error {
					close(inside)
					<-leave
					return errors.Join(effect(ctx, tx, msg), first)
				})
				if !errors.Is(err, first) {
					t.Errorf("the first: %v", err)
				}
			})
			<-inside
			var applied atomic.Int32
			const others = 4
			for range others {
				all.Go(func() {
					result, err := b.Handle(t.Context(), w.pool, msg, effect)
					if err != nil {
						t.Error(err)
					}
					if result.Outcome == Applied {
						applied.Add(1)
					}
				})
			}
			await.Until(t, "the others to wait", func() bool { return w.waiting() == others })
			close(leave)
			all.Wait()
			w.requireEffects(msg, 1)
			if want := first != nil; (applied.Load() == 1) != want {
				t.Errorf("first: %v: %d of the others were applied", first, applied.Load())
			}
		}
	})
}

func TestAConcurrentDuplicateIsToldToComeBackIfItWantsTo(t *testing.T) {
	t.Parallel()
	w := setup(t)
	waits, comesBack, msg := newInbox(t, Config{}), newInbox(t, Config{ComeBack: true}), message("k")
	_, err := waits.Handle(t.Context(), w.pool, msg, func(ctx context.Context, tx pgx.Tx, msg *outbox.Message) error {
		for _, way := range ways() {
			if _, err := way.handle(ctx, w, comesBack, msg, effectQuery); !errors.Is(err, ErrBusy) || !outbox.IsUnavailable(err) {
				t.Errorf("%s: %v", way.name, err)
			}
		}
		return effect(ctx, tx, msg)
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, way := range ways() {
		if result, err := way.handle(t.Context(), w, comesBack, msg, effectQuery); err != nil || result.Outcome != Duplicate {
			t.Errorf("%s, later: %+v, %v", way.name, result, err)
		}
	}
	w.requireEffects(msg, 1)
}

func TestAWaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	w := setup(t)
	b, msg := newInbox(t, Config{}), message("k")
	_, err := b.Handle(t.Context(), w.pool, msg, func(ctx context.Context, tx pgx.Tx, msg *outbox.Message) error {
		waiting, cancel := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() {
			_, err := b.Handle(waiting, w.pool, msg, effect)
			ended <- err
		}()
		await.Until(t, "the other to wait", func() bool { return w.waiting() == 1 })
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the other: %v", err)
		}
		return effect(ctx, tx, msg)
	})
	if err != nil {
		t.Fatal(err)
	}
	w.requireEffects(msg, 1)
}

func TestAHandlerThatHidesAFailedStatementIsFoundOut(t *testing.T) {
	t.Parallel()
	w := setup(t)
	b, msg := newInbox(t, Config{}), message("k")
	hiding := map[string]func() error{
		"pool": func() error {
			_, err := b.Handle(t.Context(), w.pool, msg, func(ctx context.Context, tx pgx.Tx, msg *outbox.Message) error {
				err := effect(ctx, tx, msg)
				_, _ = tx.Exec(ctx, `SELECT 1 / 0`)
				return err
			})
			return err
		},
		"sql.DB": func() error {
			_, err := b.HandleSQL(t.Context(), w.db, msg, func(ctx context.Context, tx *sql.Tx, msg *outbox.Message) error {
				err := effectSQL(ctx, tx, msg)
				_, _ = tx.ExecContext(ctx, `SELECT 1 / 0`)
				return err
			})
			return err
		},
		"sql.Tx": func() error {
			tx, err := w.db.BeginTx(t.Context(), nil)
			if err != nil {
				return err
			}
			_, err = b.HandleSQLTx(t.Context(), tx, msg, func(ctx context.Context, tx *sql.Tx, msg *outbox.Message) error {
				err := effectSQL(ctx, tx, msg)
				_, _ = tx.ExecContext(ctx, `SELECT 1 / 0`)
				return err
			})
			if commitErr := tx.Commit(); commitErr != nil {
				t.Errorf("the caller's commit: %v", commitErr)
			}
			return err
		},
	}
	for name, hide := range hiding {
		if err := hide(); !errors.Is(err, ErrAborted) || !outbox.IsPermanent(err) {
			t.Errorf("%s: %v", name, err)
		}
		w.requireEffects(msg, 0)
		if n := w.recorded(); n != 0 {
			t.Errorf("%s: %d records", name, n)
		}
	}
}

func TestAHandlerThatEndsTheTransactionIsFoundOut(t *testing.T) {
	t.Parallel()
	onMajors(t, func(t *testing.T, w *world) {
		for _, way := range ways() {
			for _, query := range []string{"COMMIT", "ROLLBACK", "COMMIT AND CHAIN", "ROLLBACK AND CHAIN",
				"ROLLBACK; BEGIN; SELECT pg_current_xact_id()",
				"ROLLBACK AND CHAIN; INSERT INTO effects (note) VALUES ('without a record')"} {
				b, msg := newInbox(t, Config{}), message("k")
				if result, err := way.handle(t.Context(), w, b, msg, query); !errors.Is(err, ErrEnded) || !outbox.IsPermanent(err) {
					t.Errorf("%s, %s: %+v, %v", way.name, query, result, err)
				}
			}
		}
		if n := w.int(`SELECT count(*) FROM effects`); n != 0 {
			t.Errorf("%d effects have no record", n)
		}
		b := newInbox(t, Config{})
		_, err := b.Handle(t.Context(), w.pool, message("k"), func(ctx context.Context, tx pgx.Tx, _ *outbox.Message) error {
			if tx.Commit(ctx) == nil || tx.Rollback(ctx) == nil {
				t.Error("the handler could end the transaction")
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		rollback := func(_ context.Context, tx *sql.Tx, _ *outbox.Message) error { return tx.Rollback() }
		if _, err = b.HandleSQL(t.Context(), w.db, message("k"), rollback); !errors.Is(err, ErrEnded) {
			t.Errorf("sql.DB: %v", err)
		}
		tx, err := w.db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = b.HandleSQLTx(t.Context(), tx, message("k"), rollback); !errors.Is(err, ErrEnded) {
			t.Errorf("sql.Tx: %v", err)
		}
	})
}

// The record's transaction is still the same after savepoints and other messages in it.
func TestAHandlerMayUseSavepointsAndTheInboxItself(t *testing.T) {
	t.Parallel()
	w := setup(t)
	b, outer, inner := newInbox(t, Config{}), message("k"), message("k")
	if _, err := b.Handle(t.Context(), w.pool, outer, func(ctx context.Context, tx pgx.Tx, msg *outbox.Message) error {
		savepoint, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		_, _ = savepoint.Exec(ctx, `SELECT 1 / 0`)
		_, err = b.HandleTx(ctx, tx, inner, effect)
		if err == nil {
			t.Error("handled in an aborted savepoint")
		}
		if err := savepoint.Rollback(ctx); err != nil {
			return err
		}
		if _, err := b.HandleTx(ctx, tx, inner, effect); err != nil {
			return err
		}
		return effect(ctx, tx, msg)
	}); err != nil {
		t.Fatal(err)
	}
	w.requireEffects(outer, 1)
	w.requireEffects(inner, 1)
	if n := w.recorded(); n != 2 {
		t.Errorf("%d records", n)
	}
}

// It always fails, and nothing is committed. So it isn't a question of waiting.
func TestAHandlerThatLeavesRowsOpenIsTold(t *testing.T) {
	t.Parallel()
	w := setup(t)
	b, msg := newInbox(t, Config{}), message("k")
	query := func(ctx context.Context, tx pgx.Tx, msg *outbox.Message) error {
		if err := effect(ctx, tx, msg); err != nil {
			return err
		}
		_, err := tx.Query(ctx, `SELECT generate_series(1, 100000)`)
		return err
	}
	for name, handle := range map[string]func() error{
		"pool": func() error { _, err := b.Handle(t.Context(), w.pool, msg, query); return err },
		"pgx.Tx": func() error {
			return pgx.BeginFunc(t.Context(), w.pool, func(tx pgx.Tx) error {
				_, err := b.HandleTx(t.Context(), tx, msg, query)
				return err
			})
		},
		"sql.DB": func() error {
			_, err := b.HandleSQL(t.Context(), w.db, msg, func(ctx context.Context, tx *sql.Tx, msg *outbox.Message) error {
				if err := effectSQL(ctx, tx, msg); err != nil {
					return err
				}
				_, err := tx.QueryContext(ctx, `SELECT generate_series(1, 100000)`)
				return err
			})
			return err
		},
	} {
		if err := handle(); !errors.Is(err, errRowsOpen) || outbox.IsUnavailable(err) || outbox.IsPermanent(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := w.int(`SELECT count(*) FROM effects`); n != 0 || w.recorded() != 0 {
		t.Errorf("%d effects, %d records", n, w.recorded())
	}
}

func TestAPanicIsAnErrorAndUndoesTheEffect(t *testing.T) {
	t.Parallel()
	w := setup(t)
	b, msg := newInbox(t, Config{}), message("k")
	cause := errors.New("nil map")
	_, err := b.Handle(t.Context(), w.pool, msg, func(ctx context.Context, tx pgx.Tx, msg *outbox.Message) error {
		if err := effect(ctx, tx, msg); err != nil {
			t.Error(err)
		}
		panic(cause)
	})
	var panicked *PanicError
	if !errors.As(err, &panicked) || !errors.Is(err, cause) || !strings.Contains(string(panicked.Stack), "TestAPanicIs") {
		t.Errorf("pool: %v", err)
	}
	_, err = b.HandleSQL(t.Context(), w.db, msg, func(context.Context, *sql.Tx, *outbox.Message) error { panic("boom") })
	if !errors.As(err, &panicked) || panicked.Value != "boom" {
		t.Errorf("sql.DB: %v", err)
	}
	if result, err := b.Handle(t.Context(), w.pool, msg, effect); err != nil || result.Outcome != Applied {
		t.Errorf("afterwards: %+v, %v", result, err)
	}
	w.requireEffects(msg, 1)
	if n := w.pool.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections were not given back", n)
	}
}

func TestAHandlerThatEndsItsGoroutineLeavesNothing(t *testing.T) {
	t.Parallel()
	w := setup(t)
	seen := &events{}
	b, msg := newInbox(t, Config{Observer: seen}), message("k")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = b.Handle(t.Context(), w.pool, msg, func(ctx context.Context, tx pgx.Tx, msg *outbox.Message) error {
			_ = effect(ctx, tx, msg)
			runtime.Goexit()
			return nil
		})
	}()
	<-ended
	w.requireEffects(msg, 0)
	if n := w.pool.Stat().AcquiredConns(); n != 0 || w.recorded() != 0 {
		t.Errorf("%d connections, %d records", n, w.recorded())
	}
	if all := seen.list(); len(all) != 1 || all[0].Err == nil {
		t.Errorf("observed: %+v", all)
	}
}

func TestAHandlerThatHangsIsEndedByItsDeadline(t *testing.T) {
	t.Parallel()
	w := setup(t)
	b, msg := newInbox(t, Config{Timeout: await.Expiry(50 * time.Millisecond)}), message("k")
	for name, hang := range map[string]Handler{
		"in the database": func(ctx context.Context, tx pgx.Tx, _ *outbox.Message) error {
			_, err := tx.Exec(ctx, `SELECT pg_sleep(600)`)
			return err
		},
		"elsewhere":            func(ctx context.Context, _ pgx.Tx, _ *outbox.Message) error { <-ctx.Done(); return ctx.Err() },
		"and hides it":         func(ctx context.Context, _ pgx.Tx, _ *outbox.Message) error { <-ctx.Done(); return nil },
		"and says other thing": func(ctx context.Context, _ pgx.Tx, _ *outbox.Message) error { <-ctx.Done(); return errors.New("late") },
	} {
		if _, err := b.Handle(t.Context(), w.pool, msg, hang); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := w.recorded(); n != 0 {
		t.Errorf("%d records", n)
	}
	if result, err := newInbox(t, Config{}).Handle(t.Context(), w.pool, msg, effect); err != nil || result.Outcome != Applied {
		t.Errorf("afterwards: %+v, %v", result, err)
	}
}

func TestAMessageThatCannotBeToldFromOthersIsRefused(t *testing.T) {
	t.Parallel()
	w := setup(t)
	key := func(text string) Config { return Config{DedupKey: func(*outbox.Message) string { return text }} }
	for name, c := range map[string]struct {
		cfg  Config
		msg  *outbox.Message
		want string
	}{
		"no id":            {Config{}, &outbox.Message{Topic: "t"}, "neither an id nor a deduplication key"},
		"no id and no key": {key(""), &outbox.Message{Topic: "t"}, "neither an id nor a deduplication key"},
		"a key of 10 kB":   {key(strings.Repeat("x", 10_000)), message("k"), "has 10000 bytes, the limit is 1024"},
		"a key with NUL":   {key("a\x00b"), message("k"), "NUL"},
		"no message":       {Config{}, nil, "there is no message"},
		"a bad version": {Config{Version: func(*outbox.Message) (int64, error) { return 0, errors.New("unknown version v9") }},
			message("k"),
			"unknown version v9"},
		"a version of nothing": {Config{Version: func(*outbox.Message) (int64, error) { return 1, nil }}, message(""), "no key"},
		"a bad sequence": {Config{Gaps: GapReport}, &outbox.Message{ID: outbox.NewID(), Topic: "t", Key: "k",
			Headers: []outbox.Header{{Name: outbox.SequenceHeader, Value: "first"}}}, "must be a number from 1"},
	} {
		seen := &events{}
		c.cfg.Observer = seen
		_, err := newInbox(t, c.cfg).Handle(t.Context(), w.pool, c.msg, func(context.Context, pgx.Tx, *outbox.Message) error {
			t.Errorf("%s: the handler ran", name)
			return nil
		})
		if err == nil || !strings.Contains(err.Error(), c.want) || c.msg != nil && !outbox.IsPermanent(err) {
			t.Errorf("%s: %v", name, err)
		}
		if all := seen.list(); len(all) != 1 || all[0].Err == nil {
			t.Errorf("%s: observed %+v", name, all)
		}
	}
}

func TestADeduplicationKeyMakesDifferentMessagesTheSame(t *testing.T) {
	t.Parallel()
	w := setup(t)
	b := newInbox(t, Config{DedupKey: func(m *outbox.Message) string { return m.Key }})
	for _, way := range ways() {
		first, second, other := message(way.name+" paid"), message(way.name+" paid"), message(way.name+" sent")
		for _, c := range []struct {
			msg  *outbox.Message
			want Outcome
		}{{first, Applied}, {second, Duplicate}, {other, Applied}} {
			if result, err := way.handle(t.Context(), w, b, c.msg, effectQuery); err != nil || result.Outcome != c.want {
				t.Errorf("%s: %+v, %v", way.name, result, err)
			}
		}
		if n := w.int(`SELECT count(*) FROM outbox.inbox WHERE message_id = $1::text::uuid AND dedup_key = $2`,
			first.ID.String(), first.Key); n != 1 {
			t.Errorf("%s: the record doesn't have the message's id and key", way.name)
		}
	}
}

func TestGoAndSQLMakeTheSameIDOfADeduplicationKey(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for _, key := range []string{"a", "order 4711 paid", "été €", strings.Repeat("x", MaxDedupBytes),
		"0190a4f8-3c5e-7cc3-98c4-dc0c0c07398f", "0190A4F8-3C5E-7CC3-98C4-DC0C0C07398F", "0190a4f83c5e7cc398c4dc0c0c07398f"} {
		var id string
		if err := w.pool.QueryRow(t.Context(), `SELECT outbox.inbox_id($1)::text`, key).Scan(&id); err != nil ||
			id != DedupID(key).String() {
			t.Errorf("%.40s: SQL %s, Go %s: %v", key, id, DedupID(key), err)
		}
	}
}

func TestWithoutTheSchemaTheErrorSaysWhatToDo(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(`DROP TABLE outbox.inbox_rotation`)
	for _, way := range ways() {
		_, err := way.handle(t.Context(), w, newInbox(t, Config{}), message("k"), effectQuery)
		if err == nil || !strings.Contains(err.Error(), "outbox migrate up") || !outbox.IsUnavailable(err) {
			t.Errorf("%s: %v", way.name, err)
		}
	}
}

func TestSessionsOfEveryIsolationApplyAMessageOnce(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"read committed", "repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = ''` +
				level + `''', current_database()); END $$`)
			w.pool.Reset()
			b, msg := newInbox(t, Config{}), message("k")
			var applied, all atomic.Int32
			var group sync.WaitGroup
			for range 8 {
				group.Go(func() {
					for {
						result, err := b.Handle(t.Context(), w.pool, msg, effect)
						if sqlstate.Of(err) == "40001" {
							continue // as any serialization failure
						}
						if err != nil {
							t.Error(err)
						}
						if all.Add(1); result.Outcome == Applied {
							applied.Add(1)
						}
						return
					}
				})
			}
			group.Wait()
			if applied.Load() != 1 || all.Load() != 8 {
				t.Errorf("%d of %d were applied", applied.Load(), all.Load())
			}
			w.requireEffects(msg, 1)
		})
	}
}

func TestEveryQueryModeOfPgxWorks(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		cfg, err := pgx.ParseConfig(w.url)
		if err != nil {
			t.Fatal(err)
		}
		cfg.DefaultQueryExecMode = mode
		conn, err := pgx.ConnectConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		b := newInbox(t, Config{Gaps: GapReport, FromAnywhere: true, Version: func(*outbox.Message) (int64, error) { return 3, nil }})
		for _, b := range []*Inbox{newInbox(t, Config{}), b} {
			msg := message(mode.String())
			for _, want := range []Outcome{Applied, Duplicate} {
				if result, err := b.Handle(t.Context(), conn, msg, effect); err != nil || result.Outcome != want {
					t.Errorf("%s: %+v, %v", mode, result, err)
				}
			}
		}
		if err := conn.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestWhatCannotHandleAnythingIsToldAtOnce(t *testing.T) {
	t.Parallel()
	w := setup(t)
	b, msg := newInbox(t, Config{}), message("k")
	tx, err := w.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	for name, c := range map[string]struct {
		call func() error
		want string
	}{
		"Handle in a transaction":  {func() error { _, err := b.Handle(t.Context(), tx, msg, effect); return err }, "HandleTx"},
		"Store in a transaction":   {func() error { _, err := b.Store(t.Context(), tx, msg); return err }, "HandleTx"},
		"Handle without database":  {func() error { _, err := b.Handle(t.Context(), nil, msg, effect); return err }, "db is nil"},
		"Store without database":   {func() error { _, err := b.Store(t.Context(), nil, msg); return err }, "db is nil"},
		"Handle without a handler": {func() error { _, err := b.Handle(t.Context(), w.pool, msg, nil); return err }, "fn is nil"},
		"HandleSQL without one":    {func() error { _, err := b.HandleSQL(t.Context(), w.db, msg, nil); return err }, "fn is nil"},
	} {
		if err := c.call(); err == nil || !strings.Contains(err.Error(), c.want) || !outbox.IsPermanent(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := b.Park(t.Context(), nil, Parked{Message: msg, Err: errors.New("x")}); err == nil {
		t.Error("parked in no database")
	}
	if n := w.recorded(); n != 0 {
		t.Errorf("%d records", n)
	}
}

func TestNewReportsEveryFaultAtOnce(t *testing.T) {
	t.Parallel()
	_, err := New("", Config{Gaps: "skip", Timeout: -1, Column: &VersionColumn{}})
	for _, want := range []string{"no name", `Gaps: "skip"`, "Timeout: -1ns", "Version is not", "two columns"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in %v", want, err)
		}
	}
	if _, err := New(strings.Repeat("x", 201), Config{}); err == nil || !strings.Contains(err.Error(), "201 bytes") {
		t.Error(err)
	}
}
