package around_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/around"
	"github.com/pgoutbox/outbox/relay/relaytest"
	"github.com/pgoutbox/outbox/route"
)

// shared keeps the suite, which closes the brokers that it opens, from closing the server.
type shared struct{ *relaytest.Memory }

func (s shared) Close() error { return nil }

// everything is all of this package around a broker. What the rules do is undone by later ones, so that
// the suite finds the messages as they were.
func everything(t *testing.T, inner relay.Broker) relay.Broker {
	t.Helper()
	rules := parse(t, route.Table{
		Rules:   []route.Rule{{Match: route.Match{Topic: "never"}, Drop: true}},
		Headers: []route.HeaderRule{{Name: "x-added", Value: "{topic}"}, {Name: "x-added", Drop: true}},
	})
	var flying atomic.Int64
	t.Cleanup(func() {
		if n := flying.Load(); n != 0 {
			t.Errorf("%d messages are in flight after all calls have returned", n)
		}
	})
	inner = around.InFlight(inner, func(n int) { flying.Add(int64(n)) })
	return around.Breaker(around.Steps(inner, rules.Headers(), around.Routing(rules)), 1000)
}

func parse(t *testing.T, table route.Table) *route.Rules {
	t.Helper()
	rules, err := table.Parse()
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

func harness(t *testing.T) relaytest.BrokerHarness {
	m := relaytest.NewMemory()
	m.Identify("memory")
	m.Limit(1 << 20)
	m.Unknown("nowhere", true)
	step := func(do func()) func() error {
		return func() error { do(); return nil }
	}
	return relaytest.BrokerHarness{
		Open:         func(t *testing.T) relay.Broker { return everything(t, shared{m}) },
		Topics:       [2]string{"one", "two"},
		Read:         func(context.Context) ([]outbox.Message, error) { return m.Messages(), nil },
		TooLarge:     1<<20 + 1,
		UnknownTopic: "nowhere",
		Faults:       &relaytest.BrokerFaults{Kill: step(m.Kill), Restart: step(m.Restart), Freeze: step(m.Freeze), Thaw: step(m.Thaw)},
	}
}

func TestABrokerKeepsItsPromisesWithAllOfThisAroundIt(t *testing.T) {
	t.Parallel()
	relaytest.RunBroker(t, harness)
}

func TestAndUnderFaults(t *testing.T) {
	t.Parallel()
	relaytest.RunBrokerFaults(t, harness)
}

// recorder is a broker that answers as it is told and notes what it got.
type recorder struct {
	answer func(m *outbox.Message) error
	calls  [][]outbox.Message
	closed bool
}

func (r *recorder) Publish(_ context.Context, batch []*outbox.Message) []error {
	var call []outbox.Message
	var errs []error
	for i, m := range batch {
		c := *m
		c.Headers = slices.Clone(m.Headers) // nothing may be kept
		call = append(call, c)
		if r.answer == nil {
			continue
		}
		if err := r.answer(m); err != nil {
			if errs == nil {
				errs = make([]error, len(batch))
			}
			errs[i] = err
		}
	}
	r.calls = append(r.calls, call)
	return errs
}

func (r *recorder) Close() error { r.closed = true; return nil }

func (r *recorder) ids() (ids []string) {
	for _, call := range r.calls {
		for _, m := range call {
			ids = append(ids, m.EventType)
		}
	}
	return ids
}

// batch has a message for each "name" or "name@key".
func batch(names ...string) (list []*outbox.Message) {
	for i, name := range names {
		name, key, _ := strings.Cut(name, "@")
		list = append(list, &outbox.Message{ID: outbox.ID{15: byte(i)}, Topic: "t", EventType: name, Key: key,
			Headers: []outbox.Header{{Name: "h", Value: name}}})
	}
	return list
}

func TestStepsChangeCopies(t *testing.T) {
	t.Parallel()
	r := &recorder{}
	rules := parse(t,
		route.Table{Default: "to-{event_type}", Headers: []route.HeaderRule{{Name: "h", Rename: "g"}, {Name: "n", Value: "{event_type}"}}})
	b := around.Steps(r, rules.Headers(), around.Routing(rules))
	in := batch("a", "b", "c")
	for range 2 { // the second call has the memory of the first
		if errs := b.Publish(t.Context(), in); errs != nil {
			t.Fatal(errs)
		}
	}
	for _, call := range r.calls {
		for i, m := range call {
			name := in[i].EventType
			if m.Topic != "to-"+name || !slices.Equal(m.Headers, []outbox.Header{{Name: "g", Value: name}, {Name: "n", Value: name}}) {
				t.Errorf("message %d came out as %+v", i, m)
			}
			if in[i].Topic != "t" || !slices.Equal(in[i].Headers, []outbox.Header{{Name: "h", Value: name}}) {
				t.Errorf("the caller's message has changed: %+v", in[i])
			}
		}
	}
	if _, ok := relay.As[relay.Pinger](b); ok {
		t.Error("it says that it can be pinged, though what is within can't")
	}
	if err := b.Close(); err != nil || !r.closed {
		t.Error("closing it leaves the broker within open")
	}
}

func TestWhatStandsAroundABrokerHidesNothingOfIt(t *testing.T) {
	t.Parallel()
	inner := relaytest.NewMemory()
	inner.Identify("a")
	for name, b := range map[string]relay.Broker{"steps": around.Steps(inner, 0), "breaker": around.Breaker(inner, 1),
		"in flight": around.InFlight(inner, func(int) {}),
		"all":       around.InFlight(around.Breaker(around.Steps(inner, 0), 1), func(int) {})} {
		if found, ok := relay.As[relay.Identifier](b); !ok || found != relay.Identifier(inner) {
			t.Errorf("%s: it can't be asked which broker it is", name)
		}
	}
}

func TestAMessageThatAStepRefusesStopsItsKeyAlone(t *testing.T) {
	t.Parallel()
	r := &recorder{}
	refusal := outbox.Permanent(errors.New("no schema"))
	b := around.Steps(r, 0, func(_ context.Context, m *outbox.Message) error {
		switch m.EventType {
		case "bad":
			return refusal
		case "dropped":
			return route.ErrDropped
		}
		return nil
	})
	errs := b.Publish(t.Context(), batch("1@k", "bad@k", "2@k", "dropped@k", "3@l", "4", "bad", "5"))
	want := []error{nil, refusal, outbox.ErrSkipped, outbox.ErrSkipped, nil, nil, refusal, nil}
	if !slices.Equal(errs, want) {
		t.Errorf("answers are %v, want %v", errs, want)
	}
	if got := r.ids(); !slices.Equal(got, []string{"1", "3", "4", "5"}) {
		t.Errorf("%v was sent", got)
	}
	if errs := b.Publish(t.Context(), batch("dropped")); errs != nil || len(r.calls) != 1 {
		t.Errorf("a dropped message is answered with %v, %d calls", errs, len(r.calls))
	}
}

func TestAStepThatNobodyAnswersEndsTheCall(t *testing.T) {
	t.Parallel()
	r := &recorder{}
	asked := 0
	b := around.Steps(r, 0, func(_ context.Context, m *outbox.Message) error {
		if m.EventType == "first" {
			return nil
		}
		asked++
		return outbox.Unavailable(errors.New("no registry"))
	})
	errs := b.Publish(t.Context(), batch("first", "a", "b", "c"))
	if len(errs) != 4 || errs[0] != nil || asked != 1 || !slices.Equal(r.ids(), []string{"first"}) {
		t.Fatalf("answers %v, %d asked, %v sent", errs, asked, r.ids())
	}
	for _, err := range errs[1:] {
		if !outbox.IsUnavailable(err) {
			t.Errorf("the answer is %v", err)
		}
	}
}

func TestAMessageAtWhichAStepPanicsIsTheOnlyDeadLetter(t *testing.T) {
	t.Parallel()
	r := &recorder{}
	source := &once{settled: make(chan int)}
	for i, m := range batch("1@k", "2@l", "bad@k", "3@k", "4@l") {
		source.rows = append(source.rows, relay.Delivery{Message: *m})
		source.rows[i].Position = int64(i)
	}
	b := around.Steps(r, 0, func(_ context.Context, m *outbox.Message) error {
		if m.EventType == "bad" {
			panic("no rule")
		}
		return nil
	})
	engine, err := relay.New(source, b, relay.Config{MaxAttempts: 1})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- engine.Run(ctx) }()
	for <-source.settled != 4 {
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if got := r.ids(); !slices.Equal(got, []string{"1", "2", "4", "3"}) && !slices.Equal(got, []string{"1", "2", "3", "4"}) {
		t.Errorf("%v was sent", got)
	}
	var panicked *relay.PanicError
	if len(source.dead) != 1 || source.dead[0].Delivery.EventType != "bad" || !errors.As(source.dead[0].Err, &panicked) {
		t.Errorf("dead letters: %+v", source.dead)
	}
}

// once is a source that has its rows once, and its own session.
type once struct {
	relay.Session
	rows    []relay.Delivery
	dead    []relay.Dead
	settled chan int // the position up to which it is
}

func (o *once) Acquire(context.Context) (relay.Session, error) { return o, nil }
func (o *once) Report(relay.State, error)                      {}
func (o *once) Traits() relay.Traits                           { return relay.Traits{} }

func (o *once) Next(ctx context.Context, _ int) (b relay.Batch, err error) {
	if b.Deliveries, o.rows = o.rows, nil; b.Deliveries == nil {
		<-ctx.Done()
		err = ctx.Err()
	}
	return b, err
}

func (o *once) Settle(_ context.Context, s relay.Settlement) error {
	o.dead = append(o.dead, s.Dead...)
	o.settled <- int(s.Through.Position)
	return nil
}

func (o *once) Lanes(context.Context, string, int) ([]string, string, error)  { return nil, "", nil }
func (o *once) Due(context.Context, relay.DueQuery) ([]relay.HeldLane, error) { return nil, nil }
func (o *once) Controls(context.Context) (c relay.Controls, err error)        { return c, nil }
func (o *once) Recognize(context.Context, []string) error                     { return nil }
func (o *once) Expires() time.Time                                            { return time.Now().Add(time.Hour) }
func (o *once) Close(context.Context) error                                   { return nil }

func TestAnswersOfTheBrokerFindTheirMessages(t *testing.T) {
	t.Parallel()
	r := &recorder{answer: func(m *outbox.Message) error {
		if m.EventType == "c" {
			return errors.New("c")
		}
		return nil
	}}
	b := around.Steps(r, 0, func(_ context.Context, m *outbox.Message) error {
		if m.EventType == "a" {
			return route.ErrDropped
		}
		return nil
	})
	errs := b.Publish(t.Context(), batch("a", "b", "a", "c", "d"))
	if len(errs) != 5 || errs[3] == nil || errs[0] != nil || errs[1] != nil || errs[2] != nil || errs[4] != nil {
		t.Errorf("answers are %v", errs)
	}
}

func TestARowOfDifferentFailuresIsAnOutage(t *testing.T) {
	t.Parallel()
	failing := true
	r := &recorder{answer: func(m *outbox.Message) error {
		if failing && m.EventType != "good" {
			return errors.New("500 Internal Server Error")
		}
		return nil
	}}
	b := around.Breaker(r, 3)
	publish := func(id int, names ...string) error {
		t.Helper()
		list := batch(names...)
		for i, m := range list {
			m.ID[0] = byte(id + i)
		}
		errs := b.Publish(t.Context(), list)
		if errs == nil {
			return nil
		}
		return errs[len(errs)-1]
	}
	for range 10 {
		if err := publish(1, "a"); err == nil || outbox.IsUnavailable(err) {
			t.Fatalf("one message that keeps failing: %v", err)
		}
	}
	if err := publish(2, "a"); outbox.IsUnavailable(err) {
		t.Fatalf("two messages: %v", err)
	}
	err := publish(3, "a")
	if !outbox.IsUnavailable(err) || !strings.Contains(err.Error(), "500 Internal") {
		t.Fatalf("three messages: %v", err)
	}
	if err := publish(1, "a"); !outbox.IsUnavailable(err) {
		t.Errorf("the outage has ended by itself: %v", err)
	}
	if err := publish(9, "good", "a"); outbox.IsUnavailable(err) {
		t.Errorf("something was accepted, and the rest is unavailable: %v", err)
	}
	if err := publish(4, "a"); outbox.IsUnavailable(err) {
		t.Errorf("what failed before the acceptance still counts: %v", err)
	}
	failing = false
	if err := publish(1, "a"); err != nil {
		t.Error(err)
	}
}

func TestAnswersAboutMessagesAreNoOutage(t *testing.T) {
	t.Parallel()
	for _, answer := range []error{outbox.Permanent(errors.New("too large")), outbox.OfMessage(errors.New("400 Bad Request"))} {
		b := around.Breaker(&recorder{answer: func(*outbox.Message) error { return answer }}, 2)
		for i := range 10 {
			list := batch("a", "b")
			list[0].ID[0], list[1].ID[0] = byte(i), byte(i)
			for _, err := range b.Publish(t.Context(), list) {
				if err != answer {
					t.Fatalf("the answer is %v, want %v", err, answer)
				}
			}
		}
	}
}

func BenchmarkRouting(b *testing.B) {
	rules, err := route.Table{Rules: []route.Rule{{Match: route.Match{EventType: "Order*"}, To: "shop.{aggregate_type}"}},
		Headers: []route.HeaderRule{{Name: "h", Rename: "g"}}}.Parse()
	if err != nil {
		b.Fatal(err)
	}
	broker := around.Steps(discard{}, rules.Headers(), around.Routing(rules))
	var names []string
	for i := range 1000 {
		names = append(names, fmt.Sprint("Order", i))
	}
	list := batch(names...)
	b.ReportAllocs()
	for b.Loop() {
		broker.Publish(b.Context(), list)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(list)), "ns/message")
}

type discard struct{}

func (discard) Publish(context.Context, []*outbox.Message) []error { return nil }
func (discard) Close() error                                       { return nil }
