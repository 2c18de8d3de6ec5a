package lanestest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/consume"
	"github.com/pgoutbox/outbox/internal/await"
)

// Run runs the suite.
func Run(t *testing.T, h Harness) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, Harness)
	}{
		{"what was sent is what is handled", sameMessage},
		{"every message has its effect once and in order, keys in parallel", onceInOrder},
		{"a message that fails is tried again before those behind it", failsAndRecovers},
		{"what can't be applied is parked, and its key goes on", parked},
		{"what can't be applied blocks its key and no other", blocked},
		{"stopping waits for the handlers that run", stops},
		{"another consumer gets nothing of a key before a handler of the one that stops has ended", stopsInOrder},
		{"an effect whose acknowledgement was lost is not repeated", acknowledgementLost},
		{"consumers come and go, and every effect happens once", comeAndGo},
		{"bad input and bad handlers end in dead letters, and the consumer goes on", badInput},
		{"hanging handlers end the consumer", hangs},
		{"the observer is told of every message, every attempt, every outcome and the lag", observed},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t, h)
		})
	}
	if h.Patience > 0 {
		t.Run("a handler may take longer than the broker waits for a dead one", func(t *testing.T) {
			t.Parallel()
			takesLong(t, h)
		})
	}
	if h.Reject {
		t.Run("what is rejected doesn't come again", func(t *testing.T) {
			t.Parallel()
			rejected(t, h)
		})
	}
}

// quick is a configuration with short pauses, for tests.
func quick() consume.Config {
	return consume.Config{Parallel: 8, Backoff: 5 * time.Millisecond,
		MaxBackoff: 50 * time.Millisecond, Attempts: 3, Grace: 200 * time.Millisecond, DrainTimeout: 10 * time.Second}
}

func sameMessage(t *testing.T, h Harness) {
	source := h.Source(t)
	sent := []*outbox.Message{
		{ID: outbox.NewID(), Topic: source.Topic, Key: "größe",
			EventType: "placed", AggregateType: "order", AggregateID: "4711", ContentType: "application/json",
			Payload: []byte(`{"a":1}`), Headers: []outbox.Header{{Name: "sequence", Value: "1"},
				{Name: "tenant", Value: "acme"}}, CreatedAt: time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.UTC)},
		{ID: outbox.NewID(), Topic: source.Topic, AggregateID: "only", Payload: []byte("x")},
		{ID: outbox.NewID(), Topic: source.Topic, Payload: []byte("no key")},
	}
	var mu sync.Mutex
	got := map[outbox.ID]outbox.Message{}
	source.start(t, quick(), func(_ context.Context, msg *outbox.Message) error {
		mu.Lock()
		defer mu.Unlock()
		got[msg.ID] = *msg
		return nil
	})
	source.publish(t, sent)
	await.Until(t, "all have come", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(got) == len(sent)
	})
	mu.Lock()
	defer mu.Unlock()
	for _, want := range sent {
		m := got[want.ID]
		slices.SortFunc(m.Headers, func(a, b outbox.Header) int { return cmpText(a.Name, b.Name) })
		if m.Topic != want.Topic || m.OrderingKey() != want.OrderingKey() ||
			m.EventType != want.EventType || m.AggregateType != want.AggregateType ||
			m.AggregateID != want.AggregateID || m.ContentType != want.ContentType || string(m.Payload) != string(want.Payload) ||
			!slices.Equal(m.Headers, want.Headers) || !m.CreatedAt.Equal(want.CreatedAt) {
			t.Errorf("sent     %+v\nreceived %+v", *want, m)
		}
	}
}

func cmpText(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func onceInOrder(t *testing.T, h Harness) {
	source, e := h.Source(t), newEffects(t)
	const count, keys = 400, 20
	var at, most atomic.Int64
	inKey := map[string]*atomic.Int64{}
	for i := range keys {
		inKey[fmt.Sprintf("k-%d", i)] = &atomic.Int64{}
	}
	cfg := quick()
	beside := make(chan string, 2)
	cfg.Beside = []func(context.Context) error{func(ctx context.Context) error {
		beside <- "began"
		<-ctx.Done()
		beside <- "ended"
		return nil
	}}
	c := source.start(t, cfg, func(ctx context.Context, msg *outbox.Message) error {
		if n := at.Add(1); n > most.Load() {
			most.Store(n)
		}
		defer at.Add(-1)
		if inKey[msg.Key].Add(1) > 1 {
			t.Errorf("two handlers of key %s at once", msg.Key)
		}
		defer inKey[msg.Key].Add(-1)
		return e.apply(ctx, msg)
	})
	source.publish(t, numbered(source.Topic, count, keys))
	e.complete(count, true)
	c.mustStop()
	if len(beside) != 2 {
		t.Errorf("what runs beside the consumer began or ended %d times, want both", len(beside))
	}
	if n := most.Load(); n < 2 || n > 8 {
		t.Errorf("up to %d handlers at once, want 2 to 8", n)
	}
}

func failsAndRecovers(t *testing.T, h Harness) {
	source, e := h.Source(t), newEffects(t)
	var mu sync.Mutex
	tries := map[string]int{}
	source.start(t, quick(), func(ctx context.Context, msg *outbox.Message) error {
		mu.Lock()
		key := msg.Key + "/" + string(msg.Payload)
		tries[key]++
		n := tries[key]
		mu.Unlock()
		switch {
		case msg.Key == "k-0" && n < 3: // of three attempts
			return errors.New("not yet")
		case msg.Key == "k-1" && n < 3:
			panic("not yet")
		case msg.Key == "k-2" && n < 6: // counts no attempts
			return outbox.Unavailable(errors.New("the database is away"))
		}
		return e.apply(ctx, msg)
	})
	source.publish(t, numbered(source.Topic, 40, 4))
	e.complete(40, true)
}

func parked(t *testing.T, h Harness) {
	source, e := h.Source(t), newEffects(t)
	cfg := quick()
	cfg.Timeout, cfg.Grace, cfg.Parallel = await.Expiry(300*time.Millisecond), 5*time.Second, 12
	cfg.Policy = consume.Park
	var mu sync.Mutex
	dead := map[string]consume.Poison{}
	calls := 0
	cfg.Park = func(_ context.Context, p consume.Poison) error {
		mu.Lock()
		defer mu.Unlock()
		if calls++; calls == 1 {
			return errors.New("the place for it is away")
		}
		dead[p.Message.Key] = p
		return nil
	}
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	source.start(t, cfg, func(ctx context.Context, msg *outbox.Message) error {
		if string(msg.Payload) == "1" {
			switch msg.Key {
			case "k-0":
				return errors.New("never")
			case "k-1":
				panic("never")
			case "k-2":
				return outbox.Permanent(errors.New("bad"))
			case "k-3":
				<-ctx.Done() // heeds its context, but never finishes
				return ctx.Err()
			case "k-4":
				<-release // ignores its context
				return nil
			}
		}
		err := e.apply(ctx, msg)
		if err != nil && !outbox.IsPermanent(err) {
			return outbox.Unavailable(err) // on a busy machine it can exceed its time, and is called again
		}
		return err
	})
	source.Foreign(t, "foreign", "")
	source.publish(t, numbered(source.Topic, 24, 6))
	await.Until(t, "five messages and one without id are parked", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(dead) == 6
	})
	await.Until(t, "all others have had their effect", func() bool { return e.int(`SELECT count(*) FROM effects`) == 19 })
	mu.Lock()
	defer mu.Unlock()
	for key, attempts := range map[string]int{"k-0": 3, "k-1": 3, "k-2": 1, "k-3": 3, "k-4": 1} {
		if p := dead[key]; p.Attempts != attempts || p.Err == nil || p.Source == "" || string(p.Message.Payload) != "1" {
			t.Errorf("%s: %+v", key, p)
		}
	}
	if p := dead["foreign"]; p.Err == nil || !p.Message.ID.IsZero() || p.Source == "" {
		t.Errorf("without id: %+v", p)
	}
}

func blocked(t *testing.T, h Harness) {
	source, e := h.Source(t), newEffects(t)
	var cured atomic.Bool
	handler := func(ctx context.Context, msg *outbox.Message) error {
		if msg.Key == "k-1" && string(msg.Payload) == "2" && !cured.Load() {
			return errors.New("never")
		}
		return e.apply(ctx, msg)
	}
	c := source.start(t, quick(), handler)
	source.publish(t, numbered(source.Topic, 40, 4))
	await.Until(t, "all that isn't behind it has had its effect", func() bool { return e.int(`SELECT count(*) FROM effects`) == 32 })
	c.mustStop()
	e.exact(32, true)
	cured.Store(true)
	source.start(t, quick(), handler)
	e.complete(40, true)
}

func stops(t *testing.T, h Harness) {
	source, e := h.Source(t), newEffects(t)
	began, release := make(chan struct{}, 100), make(chan struct{})
	var handled sync.Map
	cfg := quick()
	cfg.Parallel = 2
	c := source.start(t, cfg, func(ctx context.Context, msg *outbox.Message) error {
		began <- struct{}{}
		<-release
		handled.Store(msg.ID, true)
		return e.apply(ctx, msg)
	})
	source.publish(t, numbered(source.Topic, 20, 10))
	<-began
	<-began
	c.cancel()
	close(release)
	c.mustStop()
	beginnings := 2
	for ; len(began) > 0; beginnings++ {
		<-began
	}
	if n := e.int(`SELECT count(*) FROM effects`); n != beginnings {
		t.Fatalf("%d effects of %d handlers that ran when the consumer was stopped", n, beginnings)
	}
	// Handled messages were acknowledged: the next consumer doesn't see them.
	source.start(t, quick(), func(ctx context.Context, msg *outbox.Message) error {
		if _, known := handled.Load(msg.ID); known && !h.Prefix {
			t.Errorf("%s/%s came again", msg.Key, msg.Payload)
		}
		return e.apply(ctx, msg)
	})
	e.complete(20, true)
}

func stopsInOrder(t *testing.T, h Harness) {
	if !h.Ordered {
		t.Skip("consumers that share a source of this broker keep no order between them")
	}
	source, e := h.Source(t), newEffects(t)
	began, release := make(chan struct{}, 10), make(chan struct{})
	var released atomic.Bool
	cfg := quick()
	cfg.Parallel, cfg.MaxInFlight = 1, 1
	first := source.start(t, cfg, func(ctx context.Context, msg *outbox.Message) error {
		began <- struct{}{}
		<-release
		return e.apply(ctx, msg)
	})
	source.publish(t, numbered(source.Topic, 2, 1))
	<-began
	source.start(t, cfg, func(ctx context.Context, msg *outbox.Message) error {
		if !released.Load() {
			t.Errorf("%s/%s was handled meanwhile", msg.Key, msg.Payload)
		}
		return e.apply(ctx, msg)
	})
	first.cancel()
	time.Sleep(time.Second) // time in which the other could get it, and must not
	released.Store(true)
	close(release)
	first.mustStop()
	e.complete(2, true)
}

func acknowledgementLost(t *testing.T, h Harness) {
	source, e := h.Source(t), newEffects(t)
	var lost sync.Map
	source.start(t, quick(), func(ctx context.Context, msg *outbox.Message) error {
		if err := e.apply(ctx, msg); err != nil {
			return err
		}
		if _, before := lost.LoadOrStore(msg.ID, true); !before {
			return errors.New("crashed between the commit and the acknowledgement")
		}
		return nil
	})
	source.publish(t, numbered(source.Topic, 60, 6))
	e.complete(60, true)
}

// rounds makes consumers come or go a few times, which fits into CI; or, with OUTBOX_CONSUME_FOR, every five seconds
// for that long.
func rounds(t *testing.T, change func(round int)) {
	text := os.Getenv("OUTBOX_CONSUME_FOR")
	if text == "" {
		for i := range 4 {
			change(i)
		}
		return
	}
	long, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("OUTBOX_CONSUME_FOR is %q, want a duration such as 5m", text)
	}
	tick := time.NewTicker(5 * time.Second)
	defer tick.Stop()
	for i, end := 0, time.Now().Add(long); time.Now().Before(end); i++ {
		change(i)
		<-tick.C
	}
}

// comeAndGo changes the members while messages flow. In each round one leaves or joins.
func comeAndGo(t *testing.T, h Harness) {
	source, e := h.Source(t), newEffects(t)
	ctx, cancel := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	sent := 0
	const keys = 24
	writing.Go(func() {
		n := 0
		for ctx.Err() == nil {
			batch := numbered(source.Topic, keys, keys)
			for _, m := range batch {
				m.Payload = fmt.Appendf(nil, "%d", n)
			}
			source.publish(t, batch)
			sent += keys
			n++
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
	})
	var duplicates atomic.Int64
	seen := sync.Map{}
	handler := func(ctx context.Context, msg *outbox.Message) error {
		if _, again := seen.LoadOrStore(msg.ID, true); again {
			duplicates.Add(1)
		}
		return e.apply(ctx, msg)
	}
	cfg := quick()
	cfg.Parallel = 4
	members := []*running{source.start(t, cfg, handler), source.start(t, cfg, handler)}
	grown := func() {
		before := e.int(`SELECT count(*) FROM effects`)
		await.Until(t, "messages flow", func() bool { return e.int(`SELECT count(*) FROM effects`) > before+2*keys })
	}
	grown()
	changes := 0
	rounds(t, func(round int) {
		if round%2 == 0 {
			members = append(members, source.start(t, cfg, handler))
		} else {
			members[0].mustStop()
			members = members[1:]
		}
		grown()
		changes++
	})
	cancel()
	writing.Wait()
	if t.Failed() {
		return
	}
	e.complete(sent, h.Ordered)
	t.Logf("%d messages, consumers came or went %d times, %d deliveries were repeats", sent, changes, duplicates.Load())
	for _, m := range members {
		m.mustStop()
	}
}

func hangs(t *testing.T, h Harness) {
	source := h.Source(t)
	cfg := quick()
	cfg.Timeout, cfg.Parallel, cfg.DrainTimeout = await.Expiry(50*time.Millisecond), 2, await.Expiry(100*time.Millisecond)
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	c := source.start(t, cfg, func(context.Context, *outbox.Message) error {
		<-release
		return nil
	})
	source.publish(t, numbered(source.Topic, 4, 4))
	select {
	case <-c.done:
	case <-await.Context(t).Done():
		t.Fatal("the consumer goes on")
	}
	if !errors.Is(c.err, consume.ErrHung) {
		t.Errorf("ended with: %v", c.err)
	}
}

func takesLong(t *testing.T, h Harness) {
	source, e := h.Source(t), newEffects(t)
	var calls atomic.Int64
	cfg := quick()
	handler := func(ctx context.Context, msg *outbox.Message) error {
		calls.Add(1)
		if string(msg.Payload) == "0" { // those behind it wait as long
			select {
			case <-time.After(2 * h.Patience):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return e.apply(ctx, msg)
	}
	members := []*running{source.start(t, cfg, handler), source.start(t, cfg, handler)}
	source.publish(t, numbered(source.Topic, 6, 2))
	e.complete(6, h.Ordered)
	for _, m := range members {
		m.mustStop()
	}
	if n := calls.Load(); n != 6 {
		t.Errorf("the handler was called %d times for 6 messages", n)
	}
}

func rejected(t *testing.T, h Harness) {
	source, e := h.Source(t), newEffects(t)
	cfg := quick()
	cfg.Policy = consume.Reject
	var seen atomic.Int64
	handler := func(ctx context.Context, msg *outbox.Message) error {
		if msg.Key == "k-1" && string(msg.Payload) == "0" {
			seen.Add(1)
			return outbox.Permanent(errors.New("never"))
		}
		return e.apply(ctx, msg)
	}
	c := source.start(t, cfg, handler)
	source.publish(t, numbered(source.Topic, 20, 4))
	await.Until(t, "all others have had their effect", func() bool { return e.int(`SELECT count(*) FROM effects`) == 19 })
	c.mustStop()
	if n := seen.Load(); n != 1 {
		t.Errorf("it came %d times", n)
	}
}
