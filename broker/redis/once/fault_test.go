package once_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/redis/once"
	"github.com/pgoutbox/outbox/inbox"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
)

func goexit() { runtime.Goexit() }

// lease is short enough to wait for and long enough to be kept on a busy machine.
const lease = 5 * time.Second

// dies is a process that is killed between the effect and the mark.
func dies(addr, id string) {
	client := goredis.NewClient(&goredis.Options{Addr: addr, Protocol: 2, DisableIdentity: true})
	parsed, err := outbox.ParseID(id)
	if err == nil {
		var cache *once.Cache
		if cache, err = once.New("mailer", client, once.Config{Lease: lease}); err == nil {
			_, err = cache.Handle(context.Background(), &outbox.Message{ID: parsed, Topic: "mails"},
				func(ctx context.Context, _ *outbox.Message) error {
					if err := client.Incr(ctx, "effects:"+id).Err(); err != nil {
						return err
					}
					return syscall.Kill(os.Getpid(), syscall.SIGKILL)
				})
		}
	}
	fmt.Fprintln(os.Stderr, "still there:", err)
	os.Exit(1)
}

func TestAProcessThatDiesBetweenEffectAndMarkDelaysTheMessageAndDoesntSkipIt(t *testing.T) {
	t.Parallel()
	addr := servers.TestRedis(t).Addr()
	w := setup(t, addr, once.Config{})
	msg := message()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "OUTBOX_ONCE_DIES="+addr, "OUTBOX_ONCE_MESSAGE="+msg.ID.String())
	if out, err := cmd.CombinedOutput(); cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("%v: %s", err, out)
	}
	if n, err := w.client.Get(t.Context(), "effects:"+msg.ID.String()).Int(); err != nil || n != 1 {
		t.Fatalf("%d effects, %v", n, err)
	}
	// The weaker guarantee: after the lease, and not forever, the message has its effect again.
	if outcome := w.eventually(msg); outcome != inbox.Applied || w.runs.Load() != 1 {
		t.Errorf("%q after %d runs, want it applied once more", outcome, w.runs.Load())
	}
	w.want(msg, inbox.Duplicate, 1)
}

func TestAfterTheWindowAMessageHasItsEffectAgain(t *testing.T) {
	t.Parallel()
	w := setup(t, servers.TestRedis(t).Addr(), once.Config{Window: 300 * time.Millisecond})
	msg := message()
	w.want(msg, inbox.Applied, 1)
	await.Until(t, "another effect", func() bool {
		if _, err := w.handle(msg); err != nil {
			t.Fatal(err)
		}
		return w.runs.Load() == 2
	})
}

func TestAClaimIsRenewedWhileItsHandlerRuns(t *testing.T) {
	t.Parallel()
	w := setup(t, servers.TestRedis(t).Addr(), once.Config{Lease: lease, Prefix: outbox.NewID().String() + ":"})
	key := func() string {
		keys, err := w.client.Keys(t.Context(), w.prefix()+"*").Result()
		if err != nil || len(keys) != 1 {
			t.Fatalf("%v, %v", keys, err)
		}
		return keys[0]
	}
	msg := message()
	_, err := w.cache.Handle(t.Context(), msg, func(ctx context.Context, _ *outbox.Message) error {
		if err := w.client.PExpire(ctx, key(), 3*lease/4).Err(); err != nil {
			return err
		}
		await.Until(t, "its renewal", func() bool {
			return w.client.PTTL(ctx, key()).Val() > 3*lease/4 // it can have become more by being renewed only
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// untilCutOff is a handler that takes as long as it may.
func untilCutOff(t *testing.T, ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-await.Context(t).Done():
		return nil
	}
}

func TestAHandlerWhoseClaimIsAnothersIsCutOff(t *testing.T) {
	t.Parallel()
	w := setup(t, servers.TestRedis(t).Addr(), once.Config{Lease: lease, Prefix: outbox.NewID().String() + ":"})
	msg := message()
	_, err := w.cache.Handle(t.Context(), msg, func(ctx context.Context, _ *outbox.Message) error {
		keys, err := w.client.Keys(ctx, w.prefix()+"*").Result()
		if err != nil || len(keys) != 1 {
			return fmt.Errorf("%v, %w", keys, err)
		}
		if err := w.client.Set(ctx, keys[0], "somebody else", 0).Err(); err != nil {
			return err
		}
		return untilCutOff(t, ctx)
	})
	if !errors.Is(err, once.ErrLost) || !outbox.IsUnavailable(err) {
		t.Fatalf("%v", err)
	}
	if _, err := w.handle(msg); !errors.Is(err, once.ErrBusy) {
		t.Errorf("the other's claim was released: %v", err)
	}
}

func TestAnOutageIsAnErrorAndNoMessageIsSkipped(t *testing.T) {
	t.Parallel()
	server := servers.OwnRedis(t)
	w := setup(t, server.Addr(), once.Config{})
	known := message()
	w.want(known, inbox.Applied, 1)
	if err := server.Kill9(); err != nil {
		t.Fatal(err)
	}
	for _, msg := range []*outbox.Message{known, message()} {
		if outcome, err := w.handle(msg); !outbox.IsUnavailable(err) || outcome != "" {
			t.Errorf("without a server: %q, %v", outcome, err)
		}
	}
	if w.runs.Load() != 1 {
		t.Error("a handler ran without a claim")
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if outcome := w.eventually(known); outcome != inbox.Duplicate {
		t.Errorf("the server keeps its notes on disk, and the message is %q", outcome)
	}
	// A server that hangs while a handler runs: the claim can't be kept, so the handler is cut off.
	impatient := w.client.Options()
	impatient.ReadTimeout = await.Expiry(time.Second)
	client := goredis.NewClient(impatient)
	defer client.Close()
	hasty, err := once.New("mailer", client, once.Config{Lease: await.Expiry(2 * time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	msg := message()
	for began := false; !began; { // a claim that takes a second on a busy machine
		_, err = hasty.Handle(t.Context(), msg, func(ctx context.Context, _ *outbox.Message) error {
			began = true
			if err := server.Freeze(); err != nil {
				return err
			}
			return untilCutOff(t, ctx)
		})
	}
	if !errors.Is(err, once.ErrLost) || !outbox.IsUnavailable(err) {
		t.Errorf("with a server that hangs: %v", err)
	}
	if err := server.Thaw(); err != nil {
		t.Fatal(err)
	}
	before := w.runs.Load()
	if outcome := w.eventually(msg); outcome != inbox.Applied || w.runs.Load() != before+1 {
		t.Errorf("%q after %d more runs", outcome, w.runs.Load()-before)
	}
}

func TestAServerThatForgetsEverythingWhileAHandlerRunsIsToldAgain(t *testing.T) {
	t.Parallel()
	server := servers.OwnRedis(t, servers.RedisConfig{Settings: map[string]string{"appendonly": "no", "save": ""}})
	w := setup(t, server.Addr(), once.Config{})
	msg := message()
	_, err := w.cache.Handle(t.Context(), msg, func(ctx context.Context, _ *outbox.Message) error {
		if err := server.Kill9(); err != nil {
			return err
		}
		return server.Restart(ctx)
	})
	if err != nil {
		t.Fatal(err)
	}
	w.want(msg, inbox.Duplicate, 0)
}
