package nats_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/nats"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
)

// forgetful is a stream whose duplicate window is as short as a server allows.
func forgetful(t *testing.T) *stream {
	return newStream(t, servers.TestNATS(t).URL(), func(cfg *jetstream.StreamConfig) { cfg.Duplicates = 100 * time.Millisecond })
}

// forget returns when the stream doesn't recognise any more what it has: a message that was stored after all
// others is stored again.
func (s *stream) forget() {
	s.t.Helper()
	first, err := s.js.Publish(patient(s.t), s.name+".probe", nil, jetstream.WithMsgID("probe"))
	if err != nil {
		s.t.Fatal(err)
	}
	await.Until(s.t, "the duplicate window has passed", func() bool {
		again, err := s.js.Publish(patient(s.t), s.name+".probe", nil, jetstream.WithMsgID("probe"))
		return err == nil && again.Sequence > first.Sequence
	})
}

// ours are the stored messages that aren't probes.
func (s *stream) ours() (stored []*jetstream.RawStreamMsg) {
	for _, m := range s.stored() {
		if !strings.HasSuffix(m.Subject, ".probe") {
			stored = append(stored, m)
		}
	}
	return stored
}

func TestWhatTheStreamHasIsNotStoredAgainHoweverLateItIsSentAgain(t *testing.T) {
	t.Parallel()
	s := forgetful(t)
	batch := messages(600, 7)
	accepted(t, s.broker("", nats.Config{Stream: s.name}).Publish(patient(t), batch[:400]))
	s.forget()
	successor := s.broker("", nats.Config{Stream: s.name, Recall: 10_000})
	accepted(t, successor.Publish(patient(t), batch))
	checkOrder(t, batch, s.ours())
}

func TestOnlyAsManyMessagesAreRecalledAsConfigured(t *testing.T) {
	t.Parallel()
	s := forgetful(t)
	batch := messages(300, 7)
	accepted(t, s.broker("", nats.Config{Stream: s.name}).Publish(patient(t), batch))
	s.forget()
	stored := s.stored()
	probes := len(stored) - len(batch) // they are the last
	successor := s.broker("", nats.Config{Stream: s.name, Recall: 100 + probes})
	accepted(t, successor.Publish(patient(t), batch))
	if again := len(s.ours()) - len(batch); again != 200 {
		t.Errorf("%d messages were stored again, want the 200 before the 100 that are recalled", again)
	}
}

func TestAStreamWhoseLastMessagesWereDeletedIsRecalled(t *testing.T) {
	t.Parallel()
	s := forgetful(t)
	batch := messages(20, 3)
	accepted(t, s.broker("", nats.Config{Stream: s.name}).Publish(patient(t), batch))
	st, err := s.js.Stream(patient(t), s.name)
	if err != nil {
		t.Fatal(err)
	}
	for seq := uint64(11); seq <= 20; seq++ {
		if err := st.DeleteMsg(patient(t), seq); err != nil {
			t.Fatal(err)
		}
	}
	next := messages(5, 3)
	accepted(t, s.broker("", nats.Config{Stream: s.name, Recall: 10}).Publish(patient(t), next))
	if n := len(s.storedIDs()); n != 15 {
		t.Errorf("%d messages are stored, want 15", n)
	}
}

func TestAWorkQueueCannotBeRecalled(t *testing.T) {
	t.Parallel()
	s := newStream(t, servers.TestNATS(t).URL(), func(cfg *jetstream.StreamConfig) { cfg.Retention = jetstream.WorkQueuePolicy })
	b := s.broker("", nats.Config{Stream: s.name, Recall: 10})
	for _, err := range append(b.Publish(patient(t), messages(1, 1)), b.Ping(patient(t))) {
		if !outbox.IsUnavailable(err) || !strings.Contains(err.Error(), "work queue") {
			t.Errorf("got %v, want that a work queue can't be recalled", err)
		}
	}
}
