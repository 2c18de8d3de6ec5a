package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgoutbox/outbox"
)

// panicking is a broker in memory that panics at some messages, after it has accepted some of those before them.
type panicking struct {
	rng      *rand.Rand
	bad      map[int64]any // with which value it panics
	refused  map[int64]bool
	accepted map[int64]bool
	inverted []int64
	calls    int
}

func newPanicking(rng *rand.Rand) *panicking {
	return &panicking{rng: rng, bad: map[int64]any{}, refused: map[int64]bool{}, accepted: map[int64]bool{}}
}

func (p *panicking) Publish(_ context.Context, batch []*outbox.Message) []error {
	p.calls++
	errs := make([]error, len(batch))
	failed := map[string]bool{}
	for i, m := range batch {
		switch value := p.bad[m.Position]; {
		case value != nil:
			panic(value)
		case failed[m.Key]:
			errs[i] = outbox.ErrSkipped
		case p.refused[m.Position]:
			errs[i] = outbox.Permanent(errors.New("refused"))
			failed[m.Key] = true
		case slices.ContainsFunc(batch[i:], func(m *outbox.Message) bool { return p.bad[m.Position] != nil }) && p.rng.IntN(20) == 0:
			panic("sooner")
		default:
			p.accept(m.Position)
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return errs
}

// accept checks that everything before a message of its key has come, or never comes.
func (p *panicking) accept(position int64) {
	for earlier := position - 7; earlier > 0; earlier -= 7 { // the keys of newTable
		if !p.accepted[earlier] && p.bad[earlier] == nil && !p.refused[earlier] {
			p.inverted = append(p.inverted, position)
		}
	}
	p.accepted[position] = true
}

func (p *panicking) Close() error { return nil }

func TestAPanicIsAFailureOfOneMessageAndKeepsTheOrder(t *testing.T) {
	const messages = 200
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			broker := newPanicking(rng)
			values := []any{"odd", outbox.ErrSkipped, outbox.Unavailable(errors.New("odd")), outbox.Permanent(errors.New("odd"))}
			for range rng.IntN(20) {
				broker.bad[1+rng.Int64N(messages)] = values[rng.IntN(len(values))]
				broker.refused[1+rng.Int64N(messages)] = true
			}
			attempts := 1 + rng.IntN(3)
			source := newTable(messages)
			stop := start(t, source, broker, Config{Stripes: 1, Batch: 1 + rng.IntN(messages), MaxAttempts: attempts})
			time.Sleep(time.Minute)
			if err := stop(); err != nil || source.done() != messages || len(broker.inverted) > 0 {
				t.Errorf("seed %d: Run has returned %v; %d settled; out of order: %v", seed, err, source.done(), broker.inverted)
			}
			dead := map[int64]bool{}
			for _, d := range source.dead {
				at := d.Delivery.Position
				dead[at] = true
				var panicked *PanicError
				switch isPanic := errors.As(d.Err, &panicked); {
				case broker.bad[at] == nil && (isPanic || !broker.refused[at]):
					t.Errorf("seed %d: message %d is blamed: %v", seed, at, d.Err)
				case broker.bad[at] == nil:
				case !isPanic || d.Reason != ReasonExhausted || d.Delivery.Attempts != attempts ||
					panicked.Value != broker.bad[at] || !strings.Contains(string(panicked.Stack), "(*panicking).Publish"):
					t.Errorf("seed %d: message %d is %s after %d attempts of %d: %v",
						seed, at, d.Reason, d.Delivery.Attempts, attempts, d.Err)
				}
			}
			for at := int64(1); at <= messages; at++ {
				if dead[at] == broker.accepted[at] {
					t.Errorf("seed %d: message %d: accepted and dead are %v", seed, at, dead[at])
				}
			}
		})
	}
}

func TestCallsAreLargeAgainAfterAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, broker := newTable(1000), newPanicking(rand.New(rand.NewPCG(1, 1)))
		broker.bad[100] = "odd"
		stop := start(t, source, broker, Config{Stripes: 1, MaxAttempts: 1})
		time.Sleep(time.Minute)
		if err := stop(); err != nil || source.done() != 1000 || len(source.dead) != 1 {
			t.Errorf("Run has returned %v; %d settled, %d dead letters", err, source.done(), len(source.dead))
		}
		if broker.calls > 60 {
			t.Errorf("%d calls", broker.calls)
		}
	})
}

func TestABrokerThatAlwaysPanicsDoesNotGetEverythingAgainWithEachMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const messages = 500
		sent := 0
		source := newTable(messages)
		broker := &wire{answer: func(*outbox.Message) error { sent++; return nil }}
		stop := start(t, source, afterwards{broker}, Config{Stripes: 1, MaxAttempts: 1})
		time.Sleep(time.Minute)
		if err := stop(); err != nil || len(source.dead) != messages {
			t.Errorf("Run has returned %v; %d dead letters", err, len(source.dead))
		}
		if sent > 3*messages {
			t.Errorf("%d messages were sent %d times", messages, sent)
		}
	})
}

// afterwards panics when everything is accepted.
type afterwards struct{ *wire }

func (a afterwards) Publish(ctx context.Context, batch []*outbox.Message) []error {
	defer panic("the answer is odd")
	return a.wire.Publish(ctx, batch)
}

func TestAMessageAtWhichSelectPanicsIsInvalid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		source, broker := newTable(20), &wire{}
		stop := start(t, source, broker, Config{Logger: slog.New(slog.NewTextHandler(&log, nil)), Select: func(m *outbox.Message) bool {
			if m.Position%5 == 3 {
				panic(fmt.Sprint("no rule for ", m.Position))
			}
			return m.Position%2 == 0
		}})
		time.Sleep(time.Minute)
		if err := stop(); err != nil || source.done() != 20 {
			t.Errorf("Run has returned %v; %d settled", err, source.done())
		}
		if slices.Sort(broker.got); !slices.Equal(broker.got, []int64{2, 4, 6, 10, 12, 14, 16, 20}) {
			t.Errorf("%v were delivered", broker.got)
		}
		for i, d := range source.dead {
			at := int64(5*i + 3)
			text := fmt.Sprintf("Select panicked: no rule for %d", at)
			if d.Delivery.Position != at || d.Reason != ReasonInvalid || d.Err.Error() != text {
				t.Errorf("message %d is %s: %v", d.Delivery.Position, d.Reason, d.Err)
			}
		}
		if len(source.dead) != 4 || !strings.Contains(log.String(), "panic_test.go") {
			t.Errorf("%d dead letters; no stack in the log:\n%s", len(source.dead), &log)
		}
	})
}

func TestAPingThatPanicsIsOneThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker, seen := &oddPing{}, &states{}
		stop := start(t, newTable(0), broker, Config{Observer: seen})
		time.Sleep(time.Minute)
		if err := stop(); err != nil {
			t.Error(err)
		}
		if want := []State{StateWaiting, StateFlowing, StateStalled, StateFlowing, StateStopped}; !slices.Equal(seen.list, want) {
			t.Errorf("states %q, want %q", seen.list, want)
		}
	})
}

// oddPing panics when it is asked for the first time.
type oddPing struct {
	wire
	pings int
}

func (p *oddPing) Ping(context.Context) error {
	if p.pings++; p.pings == 1 {
		panic("no address")
	}
	return nil
}

func TestAnObserverThatPanicsIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		source := newTable(100)
		stop := start(t, source, &wire{}, Config{Batch: 10, Observer: odd{}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		time.Sleep(time.Minute)
		if err := stop(); err != nil || source.done() != 100 {
			t.Errorf("Run has returned %v; %d settled", err, source.done())
		}
		if n := strings.Count(log.String(), "the observer has panicked"); n != 1 || !strings.Contains(log.String(), "panic_test.go") {
			t.Errorf("its panics are logged %d times:\n%s", n, &log)
		}
	})
}

// odd is an observer that panics whatever it is told.
type odd struct{}

func (odd) Published([]*outbox.Message, []error, []time.Duration, time.Duration) { panic("published") }
func (odd) Settled(*Settlement)                                                  { panic("settled") }
func (odd) Changed(State, error)                                                 { panic("changed") }

func TestACallThatEndsItsGoroutineBreaksTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, broker := newTable(10), &wire{}
		calls := 0
		broker.hang = func() {
			if calls++; calls == 1 {
				runtime.Goexit()
			}
		}
		stop := start(t, source, broker, Config{Stripes: 1})
		time.Sleep(time.Minute)
		if err := stop(); err != nil || source.done() != 10 || len(source.sessions) != 2 {
			t.Errorf("Run has returned %v; %d settled in %d sessions", err, source.done(), len(source.sessions))
		}
	})
}

func TestARemedyThatPanicsStandsInTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		source := newTable(10)
		source.rows[3].Invalid = errors.New("nonsense")
		stop := start(t, source, &wire{}, Config{Logger: slog.New(slog.NewTextHandler(&log, nil)),
			Remedy: func(*Delivery, bool) string { panic("no advice") }})
		time.Sleep(time.Minute)
		if err := stop(); err != nil || source.done() != 10 || len(source.dead) != 1 {
			t.Errorf("Run has returned %v; %d settled, %d dead letters", err, source.done(), len(source.dead))
		}
		if text := log.String(); !strings.Contains(text, "dead letter") || !strings.Contains(text, "next=\"Remedy panicked: no advice") {
			t.Errorf("it isn't in the log:\n%s", text)
		}
	})
}
