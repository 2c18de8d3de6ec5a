package relaytest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/relay"
)

// shared keeps the suite, which closes the brokers that it opens, from closing the server.
type shared struct{ *Memory }

func (s shared) Close() error { return nil }

func memoryHarness(*testing.T) BrokerHarness {
	m := NewMemory()
	m.Identify("memory")
	m.Limit(1 << 20)
	m.Unknown("nowhere", true)
	step := func(do func()) func() error {
		return func() error { do(); return nil }
	}
	return BrokerHarness{
		Open:         func(*testing.T) relay.Broker { return shared{Memory: m} },
		Topics:       [2]string{"one", "two"},
		Read:         func(context.Context) ([]outbox.Message, error) { return m.Messages(), nil },
		TooLarge:     1<<20 + 1,
		UnknownTopic: "nowhere",
		Faults: &BrokerFaults{
			Kill: step(m.Kill), Restart: step(m.Restart), Freeze: step(m.Freeze), Thaw: step(m.Thaw),
		},
	}
}

func TestMemory(t *testing.T) {
	t.Parallel()
	RunBroker(t, memoryHarness)
}

func TestMemoryUnderFaults(t *testing.T) {
	t.Parallel()
	RunBrokerFaults(t, memoryHarness)
}

func pointers(batch []outbox.Message) []*outbox.Message {
	out := make([]*outbox.Message, len(batch))
	for i := range batch {
		out[i] = &batch[i]
	}
	return out
}

func TestAKeyFailsAsOftenAsTheScriptSays(t *testing.T) {
	t.Parallel()
	m := NewMemory()
	cause := errors.New("out of paper")
	m.Fail("k-0", 2, cause)
	batch := pointers(numbered("one", "k", 4, 2))
	for range 2 {
		errs := m.Publish(t.Context(), batch)
		if !errors.Is(errs[0], cause) || !errors.Is(errs[2], outbox.ErrSkipped) || errs[1] != nil || errs[3] != nil {
			t.Errorf("result %v", errs)
		}
	}
	if errs := m.Publish(t.Context(), batch); errs != nil {
		t.Errorf("third time: %v", errs)
	}
	m.Fail("k-1", -1, outbox.Permanent(cause))
	if errs := m.Publish(t.Context(), batch); !outbox.IsPermanent(errs[1]) {
		t.Errorf("result %v", errs)
	}
	m.Fail("k-1", 0, nil)
	if errs := m.Publish(t.Context(), batch); errs != nil {
		t.Errorf("after the script was taken back: %v", errs)
	}
}

func TestALostAnswerLeavesTheMessagesAccepted(t *testing.T) {
	t.Parallel()
	m := NewMemory()
	m.LoseAnswers(1)
	batch := numbered("one", "k", 4, 2)
	for _, err := range m.Publish(t.Context(), pointers(batch)) {
		if !outbox.IsUnavailable(err) {
			t.Errorf("result %v", err)
		}
	}
	if errs := m.Publish(t.Context(), pointers(batch)); errs != nil {
		t.Errorf("second time: %v", errs)
	}
	var ids []outbox.ID
	for _, got := range m.Messages() {
		ids = append(ids, got.ID)
	}
	var want []outbox.ID
	for _, sent := range append(batch, batch...) {
		want = append(want, sent.ID)
	}
	if !slices.Equal(ids, want) {
		t.Errorf("accepted %v, want every message twice", ids)
	}
}

func TestAFrozenCallWaitsForTheThaw(t *testing.T) {
	t.Parallel()
	m := NewMemory()
	m.Freeze()
	done := make(chan []error)
	go func() { done <- m.Publish(t.Context(), pointers(numbered("one", "k", 1, 1))) }()
	err := m.Wait(t.Context(), func() bool { _, waiting := m.Calls(); return waiting == 1 })
	if err != nil {
		t.Fatal(err)
	}
	if got := m.Messages(); len(got) != 0 {
		t.Errorf("accepted %v", got)
	}
	m.Thaw()
	if errs := <-done; errs != nil {
		t.Errorf("result %v", errs)
	}
	if all, waiting := m.Calls(); all != 1 || waiting != 0 {
		t.Errorf("%d calls, %d waiting", all, waiting)
	}
}

func TestADelayIsCutShortByTheContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory()
		m.Delay(time.Hour)
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		batch := pointers(numbered("one", "k", 1, 1))
		if errs := m.Publish(ctx, batch); !outbox.IsUnavailable(errs[0]) || time.Since(start) != time.Minute {
			t.Errorf("result %v after %v", errs, time.Since(start))
		}
		if errs := m.Publish(t.Context(), batch); errs != nil || time.Since(start) != time.Hour+time.Minute {
			t.Errorf("result %v after %v", errs, time.Since(start))
		}
	})
}

func TestAClosedMemoryAnswersUnavailable(t *testing.T) {
	t.Parallel()
	m := NewMemory()
	if err := errors.Join(m.Close(), m.Close()); err != nil {
		t.Fatal(err)
	}
	if errs := m.Publish(t.Context(), pointers(numbered("one", "k", 1, 1))); !outbox.IsUnavailable(errs[0]) {
		t.Errorf("result %v", errs)
	}
	if err := m.Ping(t.Context()); !outbox.IsUnavailable(err) {
		t.Errorf("ping: %v", err)
	}
}
