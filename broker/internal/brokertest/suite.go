package brokertest

import (
	"context"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

// Broker is the interface of all adapters.
type Broker interface {
	relay.Broker
	relay.Pinger
}

// Run is relaytest.RunBroker for brokers that send nothing after Close, which it checks too.
func Run(t *testing.T, open func(t *testing.T) relaytest.BrokerHarness) {
	relaytest.RunBroker(t, open)
	t.Run("a closed broker sends nothing", func(t *testing.T) {
		t.Parallel()
		h := open(t)
		b, first := h.Open(t).(Broker), Messages(h.Topics[0], 3, 2)
		Deliver(Patient(t), t, b, first)
		CheckClosed(t, b, Messages(h.Topics[0], 3, 2))
		got, err := h.Read(Patient(t))
		if err != nil {
			t.Fatal(err)
		}
		if repeats := CheckOrder(t, first, got); len(got)-repeats != len(first) {
			t.Errorf("%d messages arrived, want %d", len(got)-repeats, len(first))
		}
	})
}

// Opener is the field Open of a harness; open makes a broker.
func Opener[B relay.Broker](open func() (B, error)) func(*testing.T) relay.Broker {
	return func(t *testing.T) relay.Broker {
		t.Helper()
		b, err := open()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
}

// Breakable is a server that a test can break.
type Breakable interface {
	Server
	Freeze() error
	Thaw() error
}

// Faults are those of a server.
func Faults(s Breakable) *relaytest.BrokerFaults {
	return &relaytest.BrokerFaults{
		Kill: s.Kill9, Restart: func() error { return s.Restart(context.Background()) },
		Freeze: s.Freeze, Thaw: s.Thaw,
	}
}

// CheckFirst publishes batch, whose first message must get an outcome of that kind, with a text that contains all
// parts.
func CheckFirst(t testing.TB, b Publisher, batch []*outbox.Message, kind string, parts ...string) {
	t.Helper()
	errs := b.Publish(Patient(t), batch)
	CheckOutcomes(t, batch, errs)
	if len(errs) == 0 || Kind(errs[0]) != kind {
		t.Fatalf("outcomes %v, want the first to be %s", errs, kind)
	}
	Contains(t, errs[0], parts...)
}
