// Package brokertest has what the tests of all brokers need: messages, checks of outcomes, and a publisher that repeats
// until everything is accepted, as the engine does.
package brokertest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/await"
	"go.uber.org/goleak"
)

// Leaks is for TestMain: it returns the exit code of the tests, or 1 if they leave goroutines behind.
func Leaks(code int, known ...goleak.Option) int {
	if code != 0 {
		return code
	}
	if err := goleak.Find(known...); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// Patient returns a context that ends when a test has waited too long.
func Patient(t testing.TB) context.Context { return await.Context(t) }

// Opened returns b, and closes it at the end of the test.
func Opened[B io.Closer](t testing.TB, b B, err error) B {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// Message returns a message with the payload n.
func Message(topic, key string, n int) *outbox.Message {
	return &outbox.Message{ID: outbox.NewID(), Topic: topic, Key: key, Payload: fmt.Appendf(nil, "%d", n)}
}

// Messages returns n messages, dealt to the keys "k-0", "k-1" and so on in turn; the payload is the number within the
// key.
func Messages(topic string, n, keys int) []*outbox.Message {
	batch := make([]*outbox.Message, n)
	for i := range batch {
		batch[i] = Message(topic, fmt.Sprintf("k-%d", i%keys), i/keys)
	}
	return batch
}

// SortHeaders sorts headers by name, for brokers whose headers are a map.
func SortHeaders(m *outbox.Message) {
	m.Headers = slices.Clone(m.Headers)
	slices.SortFunc(m.Headers, func(a, b outbox.Header) int { return cmp.Compare(a.Name, b.Name) })
}

// Attribute reads an attribute of the adapters' own wire format into m; unknown attributes become headers.
func Attribute(m *outbox.Message, name, value string) (err error) {
	switch name {
	case "outbox-id":
		m.ID, err = outbox.ParseID(value)
	case "outbox-topic":
		m.Topic = value
	case "outbox-event-type":
		m.EventType = value
	case "outbox-aggregate-type":
		m.AggregateType = value
	case "outbox-aggregate-id":
		m.AggregateID = value
	case "outbox-created-at":
		m.CreatedAt, err = time.Parse(time.RFC3339Nano, value)
	case "content-type":
		m.ContentType = value
	default:
		m.Headers = append(m.Headers, outbox.Header{Name: name, Value: value})
	}
	if err != nil {
		return fmt.Errorf("attribute %s: %w", name, err)
	}
	return nil
}

// Accepted fails the test unless all were accepted.
func Accepted(t testing.TB, errs []error) {
	t.Helper()
	for i, err := range errs {
		if err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
	}
}

// Contains requires an error whose text contains all parts.
func Contains(t testing.TB, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", parts)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error lacks %q: %v", part, err)
		}
	}
}

// Kind names the kind of an outcome for the engine.
func Kind(err error) string {
	switch {
	case err == nil:
		return "accepted"
	case errors.Is(err, outbox.ErrSkipped):
		return "skipped"
	case outbox.IsPermanent(err):
		return "refused"
	case outbox.IsUnavailable(err):
		return "unavailable"
	case outbox.IsTopicUnavailable(err):
		return "topic unavailable"
	}
	return "retried"
}

// CheckOutcomes verifies what every call promises: after the first failure of a key, all its other outcomes are
// ErrSkipped. A request that had several messages of a key and no answer leaves all of them unknown.
func CheckOutcomes(t testing.TB, batch []*outbox.Message, errs []error) {
	t.Helper()
	if errs == nil {
		return
	}
	if len(errs) != len(batch) {
		t.Fatalf("%d outcomes for %d messages", len(errs), len(batch))
	}
	failed := map[string]error{}
	for i, m := range batch {
		key, err := m.OrderingKey(), errs[i]
		if key == "" {
			continue
		}
		earlier := failed[key]
		unknown := outbox.IsUnavailable(earlier) && outbox.IsUnavailable(err)
		if (earlier != nil) != errors.Is(err, outbox.ErrSkipped) && !unknown {
			t.Fatalf("message %d of key %q: the outcome of an earlier one: %v; outcome: %v", i, key, earlier, err)
		}
		failed[key] = cmp.Or(earlier, err)
	}
}

// CheckRefused requires that message at of batch was refused for good, that those behind it with its key were skipped,
// and that all others were accepted.
func CheckRefused(t testing.TB, batch []*outbox.Message, errs []error, at int) {
	t.Helper()
	CheckOutcomes(t, batch, errs)
	if errs == nil || !outbox.IsPermanent(errs[at]) {
		t.Fatalf("message %d was not refused: %v", at, errs)
	}
	for i, err := range errs {
		if behind := i >= at && batch[i].OrderingKey() == batch[at].OrderingKey(); err != nil && !behind {
			t.Errorf("message %d: %v", i, err)
		}
	}
}

// CheckClosed closes b, twice, and requires that it sends nothing of batch then, and says so.
func CheckClosed(t testing.TB, b interface {
	PingPublisher
	io.Closer
}, batch []*outbox.Message) {
	t.Helper()
	if err := errors.Join(b.Close(), b.Close()); err != nil {
		t.Fatal(err)
	}
	CheckOutage(t, b, batch, "closed")
}

// Publisher is the part of a broker that Deliver needs.
type Publisher interface {
	Publish(ctx context.Context, batch []*outbox.Message) []error
}

// Deliver publishes batch repeatedly, as the engine does, until all of it is accepted.
func Deliver(ctx context.Context, t testing.TB, b Publisher, batch []*outbox.Message) {
	t.Helper()
	for len(batch) > 0 {
		errs := b.Publish(ctx, batch)
		CheckOutcomes(t, batch, errs)
		var rest []*outbox.Message
		var last error
		for i, err := range errs {
			if err == nil {
				continue
			}
			if outbox.IsPermanent(err) {
				t.Fatalf("message %d: %v", i, err)
			}
			if !errors.Is(err, outbox.ErrSkipped) {
				last = err
			}
			rest = append(rest, batch[i])
		}
		if batch = rest; len(batch) == 0 {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%d messages left: %v", len(batch), last)
		case <-time.After(5 * time.Millisecond): // a pause between attempts
		}
	}
}

// DeliverDuring delivers batch in calls of size messages. Meanwhile trouble is called after each of them, with their
// number so far.
func DeliverDuring(ctx context.Context, t testing.TB, b Publisher, batch []*outbox.Message, size int, trouble func(calls int)) {
	t.Helper()
	delivered := make(chan struct{}, 100)
	var publisher sync.WaitGroup
	publisher.Go(func() {
		defer close(delivered)
		for part := range slices.Chunk(batch, size) {
			Deliver(ctx, t, b, part)
			delivered <- struct{}{}
		}
	})
	calls := 0
	for range delivered {
		calls++
		trouble(calls)
	}
	publisher.Wait()
}

// Server is the part of a server that KillEvery needs.
type Server interface {
	Kill9() error
	Restart(ctx context.Context) error
}

// KillEvery is for DeliverDuring: it kills the server after every n calls.
func KillEvery(n int, t testing.TB, server Server) func(calls int) {
	return func(calls int) {
		if calls%n != 0 {
			return
		}
		if err := server.Kill9(); err != nil {
			t.Error(err)
		}
		if err := server.Restart(Patient(t)); err != nil {
			t.Error(err)
		}
	}
}

// CheckOrder verifies that stored, in the order of a reader, has all of batch with their payloads, and that the
// messages of a key came first in the order of batch. It returns how many came again.
func CheckOrder(t testing.TB, batch []*outbox.Message, stored []outbox.Message) (repeats int) {
	t.Helper()
	sent := make(map[outbox.ID]*outbox.Message, len(batch))
	for _, m := range batch {
		sent[m.ID] = m
	}
	var seen Seen
	for i := range stored {
		seen.Note(&stored[i])
		if m := sent[stored[i].ID]; m != nil && !bytes.Equal(stored[i].Payload, m.Payload) {
			t.Errorf("message %v has the payload %q, want %q", m.ID, stored[i].Payload, m.Payload)
		}
	}
	seen.Check(t, batch)
	return len(stored) - len(seen.ids)
}

// Seen records the order in which a receiver first saw the messages of each key. The zero value is ready for use.
type Seen struct {
	mu    sync.Mutex
	ids   map[outbox.ID]bool
	order map[string][]outbox.ID
}

// Note notes m.
func (s *Seen) Note(m *outbox.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ids == nil {
		s.ids, s.order = map[outbox.ID]bool{}, map[string][]outbox.ID{}
	}
	if !s.ids[m.ID] {
		s.ids[m.ID] = true
		s.order[m.Key] = append(s.order[m.Key], m.ID)
	}
}

// Check verifies that all of batch was seen, in order per key.
func (s *Seen) Check(t testing.TB, batch []*outbox.Message) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	want := map[string][]outbox.ID{}
	for _, m := range batch {
		want[m.Key] = append(want[m.Key], m.ID)
	}
	for key, ids := range want {
		if !slices.Equal(s.order[key], ids) {
			t.Errorf("key %q: %d of %d were seen, or out of order", key, len(s.order[key]), len(ids))
		}
	}
}
