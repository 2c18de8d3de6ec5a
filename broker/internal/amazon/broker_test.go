package amazon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/smithy-go"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/internal/settings"
)

// script is a service that does what a test tells it to.
type script struct {
	find func(name string) (*Target, error)
	send func(entries []Entry) error

	mu    sync.Mutex
	sent  [][]Entry
	finds int
}

func (s *script) Find(_ context.Context, name string, _ bool) (*Target, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finds++
	if s.find != nil {
		return s.find(name)
	}
	return &Target{Name: name, FIFO: true, Limit: 1 << 20, Request: 1 << 20}, nil
}

func (s *script) List(context.Context) error { return nil }

func (s *script) Accounts(context.Context) ([]Account, error) { return nil, nil }

func (s *script) Send(_ context.Context, _ *Target, entries []Entry, answer *Outcomes) error {
	s.mu.Lock()
	s.sent = append(s.sent, entries)
	s.mu.Unlock()
	for i := range entries {
		answer.Accepted(EntryID(i))
	}
	if s.send != nil {
		return s.send(entries)
	}
	return nil
}

func publisher(t *testing.T, s *script) *Broker {
	t.Helper()
	var faults settings.Faults
	names := NewNames(&faults, "", "{topic}", nil, func(string) string { return "" })
	if err := faults.Err(); err != nil {
		t.Fatal(err)
	}
	return NewBroker(s,
		Settings{Names: names, Common: Common{Payload: PayloadAuto, Requests: 4, Timeout: time.Minute}, LargestLimit: 1 << 20})
}

func numbered(count, keys int) []*outbox.Message {
	batch := make([]*outbox.Message, count)
	for i := range batch {
		batch[i] = &outbox.Message{ID: outbox.NewID(), Topic: "t", Key: fmt.Sprint("k-", i%keys), Payload: fmt.Append(nil, i/keys)}
	}
	return batch
}

func TestAKeyIsNeverTwiceOnItsWay(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	under := map[string]bool{}
	s := &script{}
	s.send = func(entries []Entry) error {
		mu.Lock()
		for _, e := range entries {
			if under[*e.Group] {
				t.Errorf("key %s is on its way twice", *e.Group)
			}
			under[*e.Group] = true
		}
		mu.Unlock()
		defer func() {
			mu.Lock()
			defer mu.Unlock()
			for _, e := range entries {
				delete(under, *e.Group)
			}
		}()
		return nil
	}
	if errs := publisher(t, s).Publish(t.Context(), numbered(400, 25)); errs != nil {
		t.Errorf("outcomes %v", errs)
	}
	total := 0
	for _, entries := range s.sent {
		total += len(entries)
		if len(entries) > RequestEntries {
			t.Errorf("a request of %d messages", len(entries))
		}
	}
	if total != 400 {
		t.Errorf("%d messages were sent", total)
	}
}

func TestAnUnknownOutcomeStopsTheCall(t *testing.T) {
	t.Parallel()
	s := &script{send: func([]Entry) error { return errors.New("connection reset") }}
	batch := numbered(2000, 1000)
	errs := publisher(t, s).Publish(t.Context(), batch)
	if len(errs) != len(batch) {
		t.Fatalf("%d outcomes", len(errs))
	}
	for i, err := range errs {
		if i < 1000 && !outbox.IsUnavailable(err) || i >= 1000 && !errors.Is(err, outbox.ErrSkipped) {
			t.Fatalf("message %d: %v", i, err)
		}
	}
	if len(s.sent) > 8 {
		t.Errorf("%d requests were sent", len(s.sent))
	}
}

// A message whose content makes the service misread a request fails alone; an endpoint that misreads all is an outage.
func TestAMessageThatIsMisreadStallsNoOthers(t *testing.T) {
	t.Parallel()
	misreads := func(*Entry) bool { return true }
	s := &script{send: func(entries []Entry) error {
		for i := range entries {
			if misreads(&entries[i]) {
				return answered(400, &smithy.GenericAPIError{Code: "SerializationException", Message: "text"})
			}
		}
		return nil
	}}
	p, batch := publisher(t, s), numbered(40, 20)
	for i, err := range p.Publish(t.Context(), batch) {
		if i < 20 && (!outbox.IsUnavailable(err) || !strings.Contains(err.Error(), "is the endpoint the service's?")) {
			t.Errorf("message %d of an endpoint that misreads all: %v", i, err)
		}
	}
	batch[7].Payload = []byte("odd")
	misreads = func(e *Entry) bool { return strings.Contains(e.Body, "odd") }
	for i, err := range p.Publish(t.Context(), batch) {
		switch kind := brokertest.Kind(err); {
		case i == 7 && kind != "retried", i == 27 && kind != "skipped", i%20 != 7 && err != nil:
			t.Errorf("message %d: %v", i, err)
		}
	}
}

func TestALimitThatMayHaveChangedIsReadAgainBeforeAMessageIsRefused(t *testing.T) {
	t.Parallel()
	limit := 1000
	s := &script{}
	s.find = func(name string) (*Target, error) {
		return &Target{Name: name, FIFO: true, Limit: limit, Request: limit}, nil
	}
	p := publisher(t, s)
	batch := numbered(1, 1)
	batch[0].Payload = []byte(strings.Repeat("x", 2000))
	if errs := p.Publish(t.Context(), batch); !outbox.IsPermanent(errs[0]) {
		t.Fatalf("the limit was just read: %v", errs)
	}
	limit = 5000
	p.targets["t"].found = time.Now().Add(-time.Hour)
	if errs := p.Publish(t.Context(), batch); outbox.IsPermanent(errs[0]) || outbox.IsUnavailable(errs[0]) {
		t.Fatalf("the limit is old: %v", errs)
	}
	if errs := p.Publish(t.Context(), batch); errs != nil || s.finds != 2 {
		t.Errorf("the limit was raised: %v, read %d times", errs, s.finds)
	}
}

func TestWhatHasNoRoomAmongTenAttributesStandsTogether(t *testing.T) {
	t.Parallel()
	m := numbered(1, 1)[0]
	for i := range 7 {
		m.Headers = append(m.Headers, outbox.Header{Name: fmt.Sprint("h", i), Value: "v"})
	}
	target := &Target{Name: "q", FIFO: true}
	e, err := PayloadAuto.encode(m, target, nil)
	if err != nil || len(e.Attributes) != 10 || e.Attributes[9].Name != "h6" { // id, topic, key, seven headers
		t.Fatalf("%v, %v", e.Attributes, err)
	}
	m.EventType = "e"
	e, err = PayloadAuto.encode(m, target, nil)
	if err != nil || len(e.Attributes) != 10 || e.Attributes[9] != (Attribute{"outbox-headers", `{"h5":"v","h6":"v"}`}) {
		t.Fatalf("%v, %v", e.Attributes, err)
	}
	size := len(e.Body)
	for _, a := range e.Attributes {
		size += len(a.Name) + len("String") + len(a.Value)
	}
	if e.Size != size {
		t.Errorf("size %d, want %d", e.Size, size)
	}
	m.Headers = []outbox.Header{{Name: "Outbox-Id", Value: "x"}}
	if _, err := PayloadAuto.encode(m, target, nil); !outbox.IsPermanent(err) {
		t.Errorf("a reserved name: %v", err)
	}
}

func TestATraceStandsWhereLibrariesLookForIt(t *testing.T) {
	t.Parallel()
	m := numbered(1, 1)[0]
	m.Topic, m.Key, m.EventType, m.AggregateType, m.AggregateID, m.ContentType = "t", "k", "e", "a", "7", "application/json"
	m.CreatedAt = time.Unix(1, 0)
	// The trace comes behind other names.
	m.Headers = []outbox.Header{{Name: "tenant", Value: "7"},
		{Name: "baggage", Value: "a=1"}, {Name: "tracestate", Value: "b=2"}, {Name: "traceparent", Value: "00-1"}}
	e, err := PayloadAuto.encode(m, &Target{Name: "q", Topic: "another"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, a := range e.Attributes {
		names = append(names, a.Name)
	}
	want := []string{"baggage", "tracestate", "traceparent",
		"outbox-id", "content-type", "outbox-event-type", "outbox-key", "outbox-aggregate-type",
		"outbox-aggregate-id", "outbox-headers"}
	if !slices.Equal(names, want) || !strings.Contains(e.Attributes[9].Value, `"tenant":"7"`) {
		t.Errorf("the attributes are %q, want %q; the last is %s", names, want, e.Attributes[9].Value)
	}
}

func TestTextIsWhatTheServicesTake(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"": true, "a\t\r\n": true, "Größe 🔑": true, "\x7f\u0085": true,
		"\x00": false, "\x1f": false, "\xff": false, "\ufffd": true, "\ufffe": false, "a\uffff": false, "\xed\xa0\x80": false,
	} {
		if isText([]byte(text)) != want {
			t.Errorf("%q is text: %t", text, !want)
		}
	}
}
