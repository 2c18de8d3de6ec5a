package lanestest

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/consume"
	"github.com/pgoutbox/outbox/inbox"
	"github.com/pgoutbox/outbox/internal/await"
)

// version reads the number in a message of version 1, the only known version.
func version(msg *outbox.Message) (int64, error) {
	if v, ok := msg.Header("v"); ok && v != "1" {
		return 0, fmt.Errorf("version %q is not known here", v)
	}
	n, err := strconv.ParseInt(string(msg.Payload), 10, 64)
	return n + 1, err
}

// badInput sends messages that no consumer can apply, and has handlers misbehave. Each of these messages ends as a dead
// letter of the inbox with the reason, and the messages behind it have their effects.
func badInput(t *testing.T, h Harness) {
	source, e := h.Source(t), newEffects(t)
	hanging := make(chan struct{})
	release := sync.OnceFunc(func() { close(hanging) })
	t.Cleanup(release)
	bad := map[string]struct {
		says string
		do   func(ctx context.Context, tx pgx.Tx) error
	}{
		"k-0": {"panicked: out of", func(context.Context, pgx.Tx) error { panic("out of luck") }},
		"k-1": {"deadline exceeded", func(ctx context.Context, _ pgx.Tx) error { <-ctx.Done(); return ctx.Err() }},
		"k-2": {"the handler hangs", func(context.Context, pgx.Tx) error { <-hanging; return nil }},
		"k-3": {inbox.ErrAborted.Error(), func(ctx context.Context, tx pgx.Tx) error { _, _ = tx.Exec(ctx, `SELECT 1/0`); return nil }},
		"k-4": {inbox.ErrEnded.Error(), func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, `COMMIT`); return err }},
		"k-5": {`version "9" is not known`, nil}, // before the handler
	}
	box, err := inbox.New("consumer", inbox.Config{Version: version})
	if err != nil {
		t.Fatal(err)
	}
	cfg := quick()
	// Only the handler that hangs may overrun both, also on a busy machine.
	cfg.Timeout, cfg.Grace, cfg.Parallel = await.Expiry(500*time.Millisecond), 5*time.Second, 12
	cfg.Policy = consume.Park
	cfg.Park = func(ctx context.Context, p consume.Poison) error {
		return box.Park(ctx, e.pool, inbox.Parked{Message: p.Message, Err: p.Err, Attempts: p.Attempts, Source: p.Source})
	}
	source.start(t, cfg, func(ctx context.Context, msg *outbox.Message) error {
		_, err := box.Handle(ctx, e.pool, msg, func(ctx context.Context, tx pgx.Tx, msg *outbox.Message) error {
			if what := bad[msg.Key]; string(msg.Payload) == "0" && what.do != nil {
				return what.do(ctx, tx)
			}
			return insert(ctx, tx, msg)
		})
		// On a busy machine any handler can exceed its time, and is called again.
		if err != nil && !outbox.IsPermanent(err) && (string(msg.Payload) != "0" || !strings.Contains(err.Error(), bad[msg.Key].says)) {
			return outbox.Unavailable(err)
		}
		return err
	})
	source.Foreign(t, "foreign", "")
	source.Foreign(t, "foreign", strings.Repeat("x", 10_000))
	msgs := numbered(source.Topic, 18, 6)
	for _, m := range msgs {
		if m.Key == "k-5" && string(m.Payload) == "0" {
			m.Headers = append(m.Headers, outbox.Header{Name: "v", Value: "9"})
		}
	}
	source.publish(t, msgs)
	await.Until(t, "all bad ones are dead letters", func() bool { return e.int(`SELECT count(*) FROM outbox.dead_letters`) == len(bad)+2 })
	await.Until(t, "the others have had their effect", func() bool { return e.int(`SELECT count(*) FROM effects WHERE key <> 'k-2'`) == 10 })
	if n := e.int(`SELECT count(*) FROM effects WHERE key = 'k-2'`); n != 0 {
		t.Errorf("%d effects of a key beside its handler that hangs", n)
	}
	release()
	await.Until(t, "those behind the handler that hung have had their effect",
		func() bool { return e.int(`SELECT count(*) FROM effects`) == 12 })
	if n := e.int(`SELECT count(*) FROM effects WHERE n = 0`); n != 0 {
		t.Errorf("%d effects of what could not be applied", n)
	}
	for key, what := range bad {
		if n := e.int(`SELECT count(*) FROM outbox.dead_letters WHERE lane = $1 AND strpos(error, $2) > 0 AND destination = 'inbox:consumer'`, key, what.says); n != 1 {
			var text string
			_ = e.pool.QueryRow(t.Context(), `SELECT string_agg(error, '; ') FROM outbox.dead_letters WHERE lane = $1`, key).Scan(&text)
			t.Errorf("%s: want a dead letter that says %q, it says %q", key, what.says, text)
		}
	}
	if n := e.int(`SELECT count(*) FROM outbox.dead_letters WHERE lane = 'foreign'`); n != 2 {
		t.Errorf("%d dead letters of what has no id of ours, want 2", n)
	}
}
