package relaytest

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/relay"
)

// publisher is Publish of a mutant.
type publisher func(m *Memory, ctx context.Context, batch []*outbox.Message) []error

// mutants are brokers with one fault each, and the cases that must find them.
var mutants = map[string]struct {
	found   string
	publish publisher
}{
	"goes on behind a failed message": {"a message that is too large is refused for good and others pass",
		func(m *Memory, ctx context.Context, batch []*outbox.Message) []error {
			var errs []error
			for _, message := range batch {
				errs = append(errs, append(m.Publish(ctx, []*outbox.Message{message}), nil)[0])
			}
			if !slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
				return nil
			}
			return errs
		}},
	"is another broker after use": {"the broker says which one it is",
		func(m *Memory, ctx context.Context, batch []*outbox.Message) []error {
			m.Identify("after use")
			return m.Publish(ctx, batch)
		}},
	"sends a batch backwards": {"a key keeps its order in a batch and across batches",
		func(m *Memory, ctx context.Context, batch []*outbox.Message) []error {
			backwards := slices.Clone(batch)
			slices.Reverse(backwards)
			errs := m.Publish(ctx, backwards)
			slices.Reverse(errs)
			return errs
		}},
	"loses the last of many": {"a batch of 10,000 messages arrives", func(m *Memory, ctx context.Context, batch []*outbox.Message) []error {
		if len(batch) > 1000 {
			batch = batch[:len(batch)-1]
		}
		return m.Publish(ctx, batch)
	}},
	"keeps the payload of the caller": {"binary, empty and NULL payloads arrive",
		func(m *Memory, ctx context.Context, batch []*outbox.Message) []error {
			errs := m.Publish(ctx, batch)
			if errs == nil && len(batch) > 0 {
				m.mu.Lock()
				defer m.mu.Unlock()
				m.accepted[len(m.accepted)-1].Payload = batch[len(batch)-1].Payload
			}
			return errs
		}},
	"keeps a name of the caller": {"every field arrives", func(m *Memory, ctx context.Context, batch []*outbox.Message) []error {
		errs := m.Publish(ctx, batch)
		if errs == nil && len(batch) > 0 {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.accepted[len(m.accepted)-1].Topic = batch[len(batch)-1].Topic
		}
		return errs
	}},
	"makes NULL an empty payload": {"binary, empty and NULL payloads arrive",
		func(m *Memory, ctx context.Context, batch []*outbox.Message) []error {
			for _, message := range batch {
				if message.Payload == nil {
					message.Payload = []byte{}
				}
			}
			return m.Publish(ctx, batch)
		}},
	"drops headers": {"every field arrives", func(m *Memory, ctx context.Context, batch []*outbox.Message) []error {
		for _, message := range batch {
			message.Headers = nil
		}
		return m.Publish(ctx, batch)
	}},
	"gives every copy an id of its own": {"a repeat carries the same id",
		func(m *Memory, ctx context.Context, batch []*outbox.Message) []error {
			for _, message := range batch {
				message.ID = outbox.NewID()
			}
			return m.Publish(ctx, batch)
		}},
	"refuses for good what it can't reach": {"an outage is reported, and after it nothing is lost or inverted",
		func(m *Memory, ctx context.Context, batch []*outbox.Message) []error {
			errs := m.Publish(ctx, batch)
			for i, err := range errs {
				if outbox.IsUnavailable(err) {
					errs[i] = outbox.Permanent(err)
				}
			}
			return errs
		}},
	"calls an oversized message unavailable": {"many refused messages don't stop the others",
		func(m *Memory, ctx context.Context, batch []*outbox.Message) []error {
			errs := m.Publish(ctx, batch)
			for i, err := range errs {
				if outbox.IsPermanent(err) {
					errs[i] = outbox.Unavailable(err)
				}
			}
			return errs
		}},
	"fails the whole batch with one message": {"an unknown topic is named and other keys pass",
		func(m *Memory, ctx context.Context, batch []*outbox.Message) []error {
			errs := m.Publish(ctx, batch)
			if at := slices.IndexFunc(errs, func(err error) bool { return err != nil }); at >= 0 {
				return slices.Repeat([]error{errs[at]}, len(batch))
			}
			return errs
		}},
	"answers with nothing but nil": {"messages without a key arrive",
		func(m *Memory, ctx context.Context, batch []*outbox.Message) []error {
			if errs := m.Publish(ctx, batch); errs != nil {
				return errs
			}
			return make([]error, len(batch))
		}},
	"takes an outage for success": {"an outage before the first message is reported and ends",
		func(m *Memory, ctx context.Context, batch []*outbox.Message) []error {
			errs := m.Publish(ctx, batch)
			if len(errs) > 0 && outbox.IsUnavailable(errs[0]) && ctx.Err() == nil {
				return nil
			}
			return errs
		}},
}

type mutant struct {
	shared
	publish publisher
}

func (m mutant) Publish(ctx context.Context, batch []*outbox.Message) []error {
	return m.publish(m.Memory, ctx, batch)
}

const mutantVariable = "OUTBOX_TEST_MUTANT"

// Each mutant runs in a process of its own, whose tests must fail.
func TestTheSuiteFindsEveryMutant(t *testing.T) {
	t.Parallel()
	for name, mutant := range mutants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := strings.ReplaceAll(regexp.QuoteMeta(mutant.found), " ", "_")
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestMutant$/^"+found+"$")
			cmd.Env = append(os.Environ(), mutantVariable+"="+name)
			out, err := cmd.CombinedOutput()
			var failed *exec.ExitError
			if !errors.As(err, &failed) || failed.ExitCode() != 1 || !strings.Contains(string(out), "--- FAIL: TestMutant/") {
				t.Errorf("%q didn't find it (%v):\n%s", mutant.found, err, out)
			}
		})
	}
}

// TestMutant does nothing unless TestTheSuiteFindsEveryMutant says which one to run.
func TestMutant(t *testing.T) {
	publish := mutants[os.Getenv(mutantVariable)].publish
	if publish == nil {
		return
	}
	open := func(t *testing.T) BrokerHarness {
		h := memoryHarness(t)
		inner := h.Open
		h.Open = func(t *testing.T) relay.Broker { return mutant{inner(t).(shared), publish} }
		return h
	}
	RunBroker(t, open)
	RunBrokerFaults(t, open)
}
