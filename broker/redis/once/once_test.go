package once_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/redis"
	"github.com/pgoutbox/outbox/broker/redis/once"
	"github.com/pgoutbox/outbox/inbox"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
)

func TestMain(m *testing.M) {
	redis.SilenceClient() // for it is loud about servers that are gone
	if addr := os.Getenv("OUTBOX_ONCE_DIES"); addr != "" {
		dies(addr, os.Getenv("OUTBOX_ONCE_MESSAGE"))
	}
	servers.Main(m)
}

func connect(t testing.TB, addr string) *goredis.Client {
	t.Helper()
	client := goredis.NewClient(&goredis.Options{Addr: addr,
		Protocol: 2, DisableIdentity: true, DialTimeout: await.Patience, ReadTimeout: await.Patience, MaxRetries: -1})
	t.Cleanup(func() { client.Close() })
	return client
}

// world is a cache on a real server, and effects that are counted in memory.
type world struct {
	t      *testing.T
	client *goredis.Client
	cache  *once.Cache
	cfg    once.Config
	runs   atomic.Int64
}

func (w *world) prefix() string { return w.cfg.Prefix }

func setup(t *testing.T, addr string, cfg once.Config) *world {
	t.Helper()
	w := &world{t: t, client: connect(t, addr), cfg: cfg}
	var err error
	if w.cache, err = once.New("mailer", w.client, cfg); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) handle(msg *outbox.Message) (inbox.Outcome, error) {
	result, err := w.cache.Handle(w.t.Context(), msg, func(context.Context, *outbox.Message) error {
		w.runs.Add(1)
		return nil
	})
	return result.Outcome, err
}

func (w *world) want(msg *outbox.Message, want inbox.Outcome, runs int64) {
	w.t.Helper()
	if got, err := w.handle(msg); err != nil || got != want || w.runs.Load() != runs {
		w.t.Fatalf("%q, %v after %d runs; want %q after %d", got, err, w.runs.Load(), want, runs)
	}
}

// eventually waits for a message to be handled that others may have claimed.
func (w *world) eventually(msg *outbox.Message) inbox.Outcome {
	w.t.Helper()
	var outcome inbox.Outcome
	await.Until(w.t, "the end of another's claim", func() (ended bool) {
		var err error
		if outcome, err = w.handle(msg); err != nil && (!errors.Is(err, once.ErrBusy) || !outbox.IsUnavailable(err)) {
			w.t.Fatal(err)
		}
		return err == nil
	})
	return outcome
}

func message() *outbox.Message { return &outbox.Message{ID: outbox.NewID(), Topic: "mails", Key: "k"} }

func TestAnEffectHappensOnceForAMessageThatComesAgain(t *testing.T) {
	t.Parallel()
	addr := servers.TestRedis(t).Addr()
	w := setup(t, addr, once.Config{})
	msg := message()
	w.want(msg, inbox.Applied, 1)
	w.want(msg, inbox.Duplicate, 1)
	w.want(message(), inbox.Applied, 2)
	other, err := once.New("auditor", w.client, once.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := other.Handle(t.Context(), msg, func(context.Context, *outbox.Message) error { return nil }); err != nil ||
		r.Outcome != inbox.Applied {
		t.Errorf("another consumer: %v, %v", r, err)
	}
	keyed := setup(t, addr,
		once.Config{Prefix: outbox.NewID().String(), DedupKey: func(m *outbox.Message) string { return string(m.Payload) }})
	one, two := message(), message()
	one.Payload, two.Payload = []byte("invoice 7"), []byte("invoice 7")
	keyed.want(one, inbox.Applied, 1)
	keyed.want(two, inbox.Duplicate, 1)
}

func TestOfManyWhoHandleAMessageAtOnceOneDoesAndTheOthersComeBack(t *testing.T) {
	t.Parallel()
	w := setup(t, servers.TestRedis(t).Addr(), once.Config{})
	const messages, workers = 40, 8
	msgs := make([]*outbox.Message, messages)
	for i := range msgs {
		msgs[i] = message()
	}
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for _, msg := range msgs {
				w.eventually(msg)
			}
		})
	}
	all.Wait()
	if n := w.runs.Load(); n != messages {
		t.Errorf("%d effects of %d messages", n, messages)
	}
	// While one runs, another is told to come back, and doesn't wait.
	msg, began, release := message(), make(chan struct{}), make(chan struct{})
	all.Go(func() {
		_, err := w.cache.Handle(t.Context(), msg, func(context.Context, *outbox.Message) error {
			close(began)
			<-release
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	<-began
	if _, err := w.handle(msg); !errors.Is(err, once.ErrBusy) || !outbox.IsUnavailable(err) {
		t.Errorf("beside another: %v", err)
	}
	close(release)
	all.Wait()
	w.want(msg, inbox.Duplicate, messages)
}

func TestWhatFailsIsReleasedAndTriedAgain(t *testing.T) {
	t.Parallel()
	w := setup(t, servers.TestRedis(t).Addr(), once.Config{Lease: time.Hour})
	boom := errors.New("boom")
	for name, fn := range map[string]once.Handler{
		"fails":  func(context.Context, *outbox.Message) error { return boom },
		"panics": func(context.Context, *outbox.Message) error { panic(boom) },
	} {
		before, msg := w.runs.Load(), message()
		if _, err := w.cache.Handle(t.Context(), msg, fn); !errors.Is(err, boom) || !strings.Contains(err.Error(), msg.ID.String()) {
			t.Errorf("%s: %v", name, err)
		}
		w.want(msg, inbox.Applied, before+1)
	}
	var gone sync.WaitGroup
	before, msg := w.runs.Load(), message()
	gone.Go(func() {
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = w.cache.Handle(t.Context(), msg, func(context.Context, *outbox.Message) error {
				goexit()
				return nil
			})
		}()
		<-done
	})
	gone.Wait()
	w.want(msg, inbox.Applied, before+1)
}

func TestAMessageThatCantBeToldFromOthersIsRefusedForGood(t *testing.T) {
	t.Parallel()
	w := setup(t, servers.TestRedis(t).Addr(), once.Config{})
	if _, err := w.handle(&outbox.Message{Topic: "mails"}); !errors.Is(err, inbox.ErrNoID) || !outbox.IsPermanent(err) {
		t.Errorf("without id: %v", err)
	}
	if _, err := w.handle(nil); !outbox.IsPermanent(err) {
		t.Errorf("no message: %v", err)
	}
	long := setup(t, servers.TestRedis(t).Addr(),
		once.Config{DedupKey: func(*outbox.Message) string { return strings.Repeat("x", 10_000) }})
	if _, err := long.handle(message()); !outbox.IsPermanent(err) {
		t.Errorf("a key of 10 kB: %v", err)
	}
	if w.runs.Load()+long.runs.Load() != 0 {
		t.Error("a handler ran")
	}
	if _, err := once.New("", nil, once.Config{Lease: 1, Window: -1, Timeout: -1}); err == nil {
		t.Error("a bad configuration is taken")
	} else {
		for _, fault := range []string{"name", "client", "Lease", "Window", "Timeout"} {
			if !strings.Contains(err.Error(), fault) {
				t.Errorf("nothing about %s: %v", fault, err)
			}
		}
	}
}

// told remembers events and links.
type told struct {
	mu     sync.Mutex
	events []inbox.Event
	links  []inbox.Link
	ends   []string
}

func (o *told) Handled(e inbox.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events = append(o.events, e)
}

func (o *told) Start(ctx context.Context, _ string, _ *outbox.Message, writer inbox.Link) (context.Context, func(inbox.Result, error)) {
	o.links = append(o.links, writer)
	return ctx, func(r inbox.Result, err error) { o.ends = append(o.ends, fmt.Sprint(r.Outcome, err)) }
}

func TestObserverAndTracerAreTold(t *testing.T) {
	t.Parallel()
	seen := &told{}
	w := setup(t, servers.TestRedis(t).Addr(), once.Config{Observer: seen, Tracer: seen})
	msg := message()
	msg.Headers = []outbox.Header{{Name: "traceparent", Value: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}
	w.want(msg, inbox.Applied, 1)
	w.want(msg, inbox.Duplicate, 1)
	if len(seen.events) != 2 || seen.events[0].Result.Outcome != inbox.Applied ||
		seen.events[1].Result.Outcome != inbox.Duplicate || seen.events[0].Consumer != "mailer" {
		t.Errorf("events: %+v", seen.events)
	}
	if len(seen.links) != 2 || seen.links[0].TraceParent != msg.Headers[0].Value ||
		fmt.Sprint(seen.ends) != "[applied<nil> duplicate<nil>]" {
		t.Errorf("spans: %+v, %v", seen.links, seen.ends)
	}
}
