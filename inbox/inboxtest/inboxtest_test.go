package inboxtest_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/inbox"
	"github.com/pgoutbox/outbox/inbox/inboxtest"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
)

func TestMain(m *testing.M) { servers.Main(m) }

func database(t *testing.T) *pgxpool.Pool {
	t.Helper()
	url := testdb.Installed(t).URL
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if _, err := conn.Exec(t.Context(), `CREATE TABLE payments (message text)`); err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func pay(ctx context.Context, tx pgx.Tx, msg *outbox.Message) error {
	_, err := tx.Exec(ctx, `INSERT INTO payments VALUES ($1)`, msg.ID.String())
	return err
}

func consumer(pool *pgxpool.Pool, handle func(context.Context, *outbox.Message) error) inboxtest.Consumer {
	return inboxtest.Consumer{Handle: handle, Effects: func(t testing.TB, msg *outbox.Message) (n int) {
		t.Helper()
		if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM payments WHERE message = $1`, msg.ID.String()).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}}
}

func messages() []outbox.Message {
	return []outbox.Message{{Topic: "orders", Key: "1"}, {Topic: "orders", Key: "1"}, {Topic: "orders"}}
}

func TestAConsumerWithAnInboxPasses(t *testing.T) {
	t.Parallel()
	pool := database(t)
	for _, cfg := range []inbox.Config{{}, {ComeBack: true}} {
		box, err := inbox.New(fmt.Sprint("payments", cfg.ComeBack), cfg)
		if err != nil {
			t.Fatal(err)
		}
		c := consumer(pool, func(ctx context.Context, msg *outbox.Message) error {
			_, err := box.Handle(ctx, pool, msg, pay)
			return err
		})
		inboxtest.Run(t, c, messages()...)
		inboxtest.RequireRollback(t, c, func(ctx context.Context, msg *outbox.Message) error {
			_, err := box.Handle(ctx, pool, msg, func(ctx context.Context, tx pgx.Tx, msg *outbox.Message) error {
				if err := pay(ctx, tx, msg); err != nil {
					return err
				}
				return inboxtest.ErrNoEffect
			})
			return err
		}, &outbox.Message{ID: outbox.NewID(), Topic: "orders"})
	}
}

// recorder is a testing.TB that remembers how it ended.
type recorder struct {
	testing.TB
	failure string
}

type ended struct{}

func (r *recorder) Helper() {}
func (r *recorder) Fatalf(format string, args ...any) {
	r.failure = fmt.Sprintf(format, args...)
	panic(ended{})
}

func failure(t *testing.T, f func(testing.TB)) string {
	t.Helper()
	r := &recorder{TB: t}
	func() {
		defer func() {
			if p := recover(); p != nil && p != (ended{}) {
				panic(p)
			}
		}()
		f(r)
	}()
	return r.failure
}

func TestConsumersThatDoubleOrLoseAreFoundOut(t *testing.T) {
	t.Parallel()
	pool := database(t)
	bare := consumer(pool, func(ctx context.Context, msg *outbox.Message) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return pay(ctx, tx, msg) })
	})
	loses := consumer(pool, func(ctx context.Context, _ *outbox.Message) error { return ctx.Err() })
	hides := consumer(pool, func(context.Context, *outbox.Message) error { return nil })
	outside := func(ctx context.Context, msg *outbox.Message) error {
		if err := bare.Handle(ctx, msg); err != nil {
			return err
		}
		return inboxtest.ErrNoEffect
	}
	msg := func() *outbox.Message { return &outbox.Message{ID: outbox.NewID(), Topic: "orders", Key: "k"} }
	for name, c := range map[string]struct {
		f    func(testing.TB)
		want string
	}{
		"twice":         {func(t testing.TB) { inboxtest.Twice(t, bare, msg()) }, "3 times"},
		"concurrently":  {func(t testing.TB) { inboxtest.Concurrently(t, bare, msg()) }, "5 times"},
		"crash":         {func(t testing.TB) { inboxtest.CrashBeforeAck(t, bare, msg()) }, "2 times"},
		"out of order":  {func(t testing.TB) { inboxtest.OutOfOrder(t, bare, msg(), msg()) }, "2 times"},
		"lost":          {func(t testing.TB) { inboxtest.Twice(t, loses, msg()) }, "0 times"},
		"hidden errors": {func(t testing.TB) { inboxtest.CrashBeforeAck(t, hides, msg()) }, "has to return the error"},
		"outside":       {func(t testing.TB) { inboxtest.RequireRollback(t, bare, outside, msg()) }, "in the handler's transaction?"},
		"no failure":    {func(t testing.TB) { inboxtest.RequireRollback(t, bare, bare.Handle, msg()) }, "want the handler's error"},
	} {
		if got := failure(t, c.f); !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
