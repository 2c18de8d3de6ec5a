package relay

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgoutbox/outbox"
)

// slow answers each call after a while.
type slow struct {
	wire
	after time.Duration
}

func (b *slow) Publish(ctx context.Context, batch []*outbox.Message) []error {
	time.Sleep(b.after) // in a bubble
	return b.wire.Publish(ctx, batch)
}

// told is what an Observer has been told of states.
type told struct {
	silent
	mu     sync.Mutex
	states []State
}

func (o *told) Changed(state State, _ error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.states = append(o.states, state)
}

// silent is an Observer that does nothing.
type silent struct{}

func (silent) Published([]*outbox.Message, []error, []time.Duration, time.Duration) {}
func (silent) Settled(*Settlement)                                                  {}
func (silent) Changed(State, error)                                                 {}

func TestABrokerThatHangsIsNamedBeforeItsCallTimesOut(t *testing.T) {
	for after, want := range map[time.Duration][]State{
		hangsAfter - time.Second: {StateWaiting, StateFlowing},
		10 * hangsAfter:          {StateWaiting, StateFlowing, StateStalled, StateFlowing},
	} {
		synctest.Test(t, func(t *testing.T) {
			source, broker, seen := newTable(1), &slow{after: after}, &told{}
			stop := start(t, source, broker, Config{Observer: seen})
			time.Sleep(2 * after)
			seen.mu.Lock()
			if !slices.Equal(seen.states, want) {
				t.Errorf("of a call of %v it tells %v", after, seen.states)
			}
			seen.mu.Unlock()
			if err := stop(); err != nil || source.done() != 1 {
				t.Errorf("Run has returned %v; %d settled", err, source.done())
			}
		})
	}
}

// selective hangs at a key and refuses a topic.
type selective struct {
	wire
	hangs string
	after time.Duration
}

func (b *selective) Publish(ctx context.Context, batch []*outbox.Message) []error {
	if slices.ContainsFunc(batch, func(m *outbox.Message) bool { return m.Key == b.hangs }) {
		time.Sleep(b.after) // in a bubble
	}
	return b.wire.Publish(ctx, batch)
}

// While a call hangs, those of other keys are answered, and a topic of theirs may be unavailable.
func TestACallThatHangsIsToldBesideOthersThatReturn(t *testing.T) {
	for topic, want := range map[string][]State{
		"t": {StateWaiting, StateFlowing, StateStalled, StateFlowing},
		"u": {StateWaiting, StateFlowing, StateFailing, StateStalled, StateFailing},
	} {
		synctest.Test(t, func(t *testing.T) {
			source, seen := newTable(70), &told{}
			broker := &selective{hangs: "k1", after: time.Minute}
			broker.answer = func(m *outbox.Message) error {
				if m.Topic == "u" {
					return outbox.TopicUnavailable(errors.New("no such topic"))
				}
				return nil
			}
			rows := source.rows
			rows[2].Topic = topic
			source.rows = rows[:7]
			stop := start(t, source, broker, Config{Observer: seen, Stripes: 2, HoldAfter: time.Hour})
			for _, row := range rows[7:] {
				time.Sleep(time.Second / 2)
				if row.Key == broker.hangs {
					continue
				}
				source.mu.Lock()
				row.Position = int64(len(source.rows) + 1)
				source.rows = append(source.rows, row)
				source.mu.Unlock()
			}
			if got := broker.count(); topic == "t" && got < 20 {
				t.Errorf("the other stripe has delivered %d while one hangs", got)
			}
			for _, want := range [][]State{want[:len(want)-1], want} {
				seen.mu.Lock()
				if !slices.Equal(seen.states, want) {
					t.Errorf("with topic %s it tells %v, want %v", topic, seen.states, want)
				}
				seen.mu.Unlock()
				time.Sleep(broker.after)
			}
			if err := stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// The lease isn't renewed while a session that is over waits for a call, so another relay takes over.
func TestASessionThatBreaksWhileACallHangsIsToldAndLeavesItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		source, broker, seen := newTable(20), &slow{after: 10 * time.Minute}, &told{}
		stop := start(t, source, broker, Config{Observer: seen, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		time.Sleep(time.Second)
		source.mu.Lock()
		first := source.sessions[0]
		first.reads = errors.New("connection reset")
		source.mu.Unlock()
		time.Sleep(2 * hangsAfter)
		synctest.Wait()
		seen.mu.Lock()
		if want := []State{StateWaiting, StateFlowing, StateStalled}; !slices.Equal(seen.states, want) {
			t.Errorf("it tells %v, want %v", seen.states, want)
		}
		seen.mu.Unlock()
		source.mu.Lock()
		if !first.abandoned || len(source.sessions) != 1 {
			t.Errorf("the lease is left: %v; there are %d sessions", first.abandoned, len(source.sessions))
		}
		source.mu.Unlock()
		time.Sleep(30 * time.Minute)
		if err := stop(); err != nil || source.done() != 20 || len(source.sessions) != 2 {
			t.Errorf("Run has returned %v; %d settled in %d sessions", err, source.done(), len(source.sessions))
		}
		want := `error="read messages: connection reset" calls="Broker.Publish (2)"`
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log doesn't tell why the session has ended, and what hangs:\n%s", &log)
		}
	})
}
