// Package relaytest has the suites that every broker adapter and every source must pass, and an in-memory broker with
// scripted faults. Adapters outside this module can use them too.
package relaytest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/relay"
)

// BrokerHarness connects the suite with one adapter and with topics of its own on a server: no other test uses them,
// and they are empty.
type BrokerHarness struct {
	// Open returns a Broker that publishes to the harness's topics. It must work while the server is down. The suite
	// closes the broker. Required.
	Open func(t *testing.T) relay.Broker

	// Topics are two existing topics that the suite publishes to. Required.
	Topics [2]string

	// Read returns every message that consumers of both topics can see at present, in order within each key, as far as
	// the wire format carries their fields. Required.
	Read func(ctx context.Context) ([]outbox.Message, error)

	// Forget removes from an expected message what the wire format can't carry. nil: it carries ID, Topic, the ordering
	// key, AggregateType, AggregateID, EventType, Payload (nil and empty are distinct), ContentType, Headers in their
	// order, and CreatedAt to the microsecond.
	Forget func(m *outbox.Message)

	// TooLarge is the length of a payload that the broker refuses, whatever else is in the message.
	// Zero: there is no limit.
	TooLarge int

	// TooLargeForServer is the length of a payload that the server refuses, with its headers, and of whose limit the
	// adapter knows nothing. 20 messages that are small are never too large. Zero: there is no such limit.
	TooLargeForServer int

	// UnknownTopic is a topic that doesn't exist and that the adapter doesn't create. "": the broker has no unknown
	// topics.
	UnknownTopic string

	// Deduplicates means that consumers see a message once if it was published twice.
	Deduplicates bool

	// Slow means that a call costs a round trip for each message of a key. Cases that need many messages, but no
	// certain number, then send a tenth of them.
	Slow bool

	// Anonymous means that the broker doesn't know which one it is, or is no relay.Identifier; Apart that each one that
	// Open returns is another broker.
	Anonymous, Apart bool

	// Faults break the server. Required by RunBrokerFaults, unused by RunBroker.
	Faults *BrokerFaults
}

// BrokerFaults break the server of a harness. Each returns when the state is reached. Accepted messages survive all of
// them.
type BrokerFaults struct {
	Kill    func() error // kill -9: connections break, no answer comes
	Restart func() error // after Kill: up again, with its data, at the same address
	Freeze  func() error // connections stay, no answer comes
	Thaw    func() error
}

// RunBroker checks the contract of relay.Broker on a healthy server. It calls open once for each case; the cases run in
// parallel.
func RunBroker(t *testing.T, open func(t *testing.T) BrokerHarness) {
	run := func(name string, check func(*testing.T, *brokerCase)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(t, newBrokerCase(t, open(t)))
		})
	}
	run("every field arrives", everyFieldArrives)
	run("binary, empty and NULL payloads arrive", payloadsArrive)
	run("messages without a key arrive", keylessArrive)
	run("an empty batch is accepted", emptyBatch)
	run("a key keeps its order in a batch and across batches", orderAcrossBatches)
	run("concurrent calls keep the order of their keys", concurrentCalls)
	run("a batch of 10,000 messages arrives", largeBatch)
	run("a batch of large messages arrives", largeMessages)
	run("a message that is too large is refused for good and others pass", tooLarge)
	run("a refused message stops its key in every topic", refusedAcrossTopics)
	run("many refused messages don't stop the others", manyRefused)
	run("a message that the server finds too large is refused, and the others pass", tooLargeForServer)
	run("an unknown topic is named and other keys pass", unknownTopic)
	run("a repeat carries the same id", repeatsCarryTheID)
	run("a context that has ended leaves nothing but unavailable errors", endedContext)
	run("a context that ends at any moment inverts and loses nothing", contextEndsAnywhere)
	run("close may be called twice and without use", closeTwice)
	run("ping answers", pingAnswers)
	run("the broker says which one it is", identityLasts)
}

// RunBrokerFaults checks the contract while the server fails. It calls open once for each case. The cases run one after
// another, so they may share a server, and each leaves it working.
func RunBrokerFaults(t *testing.T, open func(t *testing.T) BrokerHarness) {
	run := func(name string, check func(*testing.T, *brokerCase)) {
		t.Run(name, func(t *testing.T) {
			h := open(t)
			if h.Faults == nil {
				t.Fatal("the harness has no Faults")
			}
			check(t, newBrokerCase(t, h))
		})
	}
	run("an outage before the first message is reported and ends", outageAtStart)
	run("an outage is reported, and after it nothing is lost or inverted", outage)
	run("the server is killed under load: nothing is lost or inverted", killedUnderLoad)
	run("the broker says which one it is, also after it was killed", identityLasts)
	run("the server freezes: the call ends with its context, and nothing is lost or inverted", frozen)
}

// brokerCase is one case: a harness and the suite's ways of publishing to it.
type brokerCase struct {
	t *testing.T
	h BrokerHarness
}

func newBrokerCase(t *testing.T, h BrokerHarness) *brokerCase {
	t.Helper()
	if h.Open == nil || h.Read == nil || h.Topics[0] == "" || h.Topics[1] == "" || h.Topics[0] == h.Topics[1] {
		t.Fatal("the harness needs Open, Read and two Topics")
	}
	if h.Forget == nil {
		h.Forget = func(*outbox.Message) {}
	}
	return &brokerCase{t, h}
}

func (c *brokerCase) open() relay.Broker {
	c.t.Helper()
	b := c.h.Open(c.t)
	c.t.Cleanup(func() {
		if err := b.Close(); err != nil {
			c.t.Errorf("close: %v", err)
		}
	})
	return b
}

// many returns n, or a tenth of it for a slow broker.
func (c *brokerCase) many(n int) int {
	if c.h.Slow {
		return n / 10
	}
	return n
}

func (c *brokerCase) context() context.Context { return await.Context(c.t) }

// publish passes b a copy of batch, overwrites every byte of that copy after the return, as the engine may, and checks
// the form of the result. The result always has len(batch) errors.
func (c *brokerCase) publish(ctx context.Context, b relay.Broker, batch []outbox.Message) []error {
	c.t.Helper()
	a := newArena(batch)
	late := make(chan struct{}) // closed well after ctx has ended
	stop := context.AfterFunc(ctx, func() {
		time.AfterFunc(30*time.Second, func() { close(late) })
	})
	defer stop()
	done := make(chan []error, 1)
	go func() { done <- b.Publish(ctx, a.batch) }()
	var errs []error
	select {
	case errs = <-done:
	case <-late:
		c.t.Error("Publish hasn't returned though its context ended long ago")
		// b may still read the copy's memory, so it must not be overwritten.
		return slices.Repeat([]error{outbox.Unavailable(ctx.Err())}, len(batch))
	}
	a.scribble()
	switch {
	case errs == nil:
		return make([]error, len(batch))
	case len(errs) != len(batch):
		c.t.Errorf("Publish answered %d messages with %d errors", len(batch), len(errs))
		return slices.Repeat([]error{errors.New("no answer")}, len(batch))
	case !slices.ContainsFunc(errs, func(err error) bool { return err != nil }):
		c.t.Error("Publish returned a slice of nothing but nil: all accepted is nil")
	}
	c.checkKeys(batch, errs)
	return errs
}

// checkKeys requires that no message was accepted behind a failed one of its key. A message that no failed one stands
// before may be left to the next call, but not all of them.
func (c *brokerCase) checkKeys(batch []outbox.Message, errs []error) {
	c.t.Helper()
	failed := map[string]error{}
	decided := func(err error) bool { return !errors.Is(err, outbox.ErrSkipped) }
	if !slices.ContainsFunc(errs, decided) {
		c.t.Error("every message was skipped: the next call would be the same")
	}
	for i := range batch {
		key := batch[i].OrderingKey()
		if key == "" {
			continue
		}
		before, behind := failed[key]
		switch {
		case errs[i] == nil && behind:
			c.t.Errorf("message %d of key %q was accepted after an earlier one failed with: %v", i, key, before)
		case errs[i] != nil && !behind:
			failed[key] = errs[i]
		case errs[i] != nil && !errors.Is(errs[i], outbox.ErrSkipped) && !outbox.IsUnavailable(errs[i]):
			c.t.Errorf("message %d of key %q comes after a failed one and must be skipped, not: %v", i, key, errs[i])
		}
	}
}

// accepted publishes batch and requires that all of it is accepted.
func (c *brokerCase) accepted(b relay.Broker, batch []outbox.Message) {
	c.t.Helper()
	for i, err := range c.publish(c.context(), b, batch) {
		if err != nil {
			c.t.Fatalf("message %d: %v", i, err)
		}
	}
}

// deliver publishes batch repeatedly, as the engine does, until all of it is accepted or ctx ends. Any goroutine may
// call it.
func (c *brokerCase) deliver(ctx context.Context, b relay.Broker, batch []outbox.Message) {
	c.t.Helper()
	pending := slices.Clone(batch)
	var last error
	limit := await.Expiry(2 * time.Second)
	for len(pending) > 0 {
		if ctx.Err() != nil {
			c.t.Errorf("%d of %d messages still not accepted; last error: %v", len(pending), len(batch), last)
			return
		}
		call, cancel := context.WithTimeout(ctx, limit)
		errs := c.publish(call, b, pending)
		if call.Err() != nil {
			limit *= 2 // a slow server may need it
		}
		cancel()
		var left []outbox.Message
		for i, err := range errs {
			if err == nil {
				continue
			}
			if outbox.IsPermanent(err) {
				c.t.Errorf("message %s was refused for good: %v", pending[i].ID, err)
				return
			}
			if !errors.Is(err, outbox.ErrSkipped) {
				last = err
			}
			left = append(left, pending[i])
		}
		if pending = left; len(pending) > 0 {
			pause(ctx)
		}
	}
}

// pause keeps a loop from spinning.
func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(20 * time.Millisecond):
	}
}

func (c *brokerCase) read() []outbox.Message {
	c.t.Helper()
	got, err := c.h.Read(c.context())
	if err != nil {
		c.t.Fatalf("read: %v", err)
	}
	return got
}

// sees requires that consumers see exactly want, in order within each key.
func (c *brokerCase) sees(want []outbox.Message) {
	c.t.Helper()
	got := c.read()
	if len(got) != len(want) {
		c.t.Errorf("%d messages seen, want %d", len(got), len(want))
	}
	c.seesInOrder(got, want)
}

// seesInOrder requires that got has all of want and nothing else, that first appearances are in order within each key
// and topic, and that every appearance is intact.
func (c *brokerCase) seesInOrder(got, want []outbox.Message) {
	c.t.Helper()
	type lane struct{ topic, key string }
	expected := map[outbox.ID]*outbox.Message{}
	order := map[lane][]outbox.ID{}
	laneOf := func(m *outbox.Message) lane {
		if m.OrderingKey() == "" {
			return lane{m.Topic, m.ID.String()} // without an order: a lane of its own
		}
		return lane{m.Topic, m.OrderingKey()}
	}
	for i := range want {
		m := &want[i]
		expected[m.ID] = m
		order[laneOf(m)] = append(order[laneOf(m)], m.ID)
	}
	seen := map[outbox.ID]bool{}
	next := map[lane]int{}
	wrong := 0
	report := func(format string, args ...any) {
		c.t.Helper()
		if wrong++; wrong <= 5 {
			c.t.Errorf(format, args...)
		}
	}
	for i := range got {
		m := expected[got[i].ID]
		if m == nil {
			report("a message with id %s was seen that was never to be published", got[i].ID)
			continue
		}
		if diff := c.difference(m, &got[i]); diff != "" {
			report("message %s: %s", m.ID, diff)
		}
		if seen[m.ID] {
			continue
		}
		seen[m.ID] = true
		l := laneOf(m)
		due := next[l]
		if due >= len(order[l]) || order[l][due] != m.ID {
			at := slices.Index(order[l], m.ID)
			report("key %q of %s: number %d was seen when number %d was due", l.key, l.topic, at, due)
			due = at
		}
		next[l] = due + 1
	}
	for i := range want {
		if !seen[want[i].ID] {
			report("message %d, %s, was never seen", i, want[i].ID)
		}
	}
	if wrong > 5 {
		c.t.Errorf("and %d more of these", wrong-5)
	}
}

// difference describes how got differs from what consumers should see of sent; "" if it doesn't.
func (c *brokerCase) difference(sent, got *outbox.Message) string {
	want := *sent
	want.CreatedAt = want.CreatedAt.Truncate(time.Microsecond)
	c.h.Forget(&want)
	var diffs []string
	field := func(name string, same bool, got, want any) {
		if !same {
			diffs = append(diffs, fmt.Sprintf("%s is %.80q, want %.80q", name, fmt.Sprint(got), fmt.Sprint(want)))
		}
	}
	field("topic", got.Topic == want.Topic, got.Topic, want.Topic)
	field("ordering key", got.OrderingKey() == want.OrderingKey(), got.OrderingKey(), want.OrderingKey())
	field("aggregate type", got.AggregateType == want.AggregateType, got.AggregateType, want.AggregateType)
	field("aggregate id", got.AggregateID == want.AggregateID, got.AggregateID, want.AggregateID)
	field("event type", got.EventType == want.EventType, got.EventType, want.EventType)
	field("content type", got.ContentType == want.ContentType, got.ContentType, want.ContentType)
	field("created at", got.CreatedAt.Equal(want.CreatedAt), got.CreatedAt, want.CreatedAt)
	field("payload", bytes.Equal(got.Payload, want.Payload), got.Payload, want.Payload)
	field("payload is NULL", (got.Payload == nil) == (want.Payload == nil), got.Payload == nil, want.Payload == nil)
	field("headers", slices.Equal(got.Headers, want.Headers), got.Headers, want.Headers)
	return strings.Join(diffs, "; ")
}

// numbered returns count messages to topic, dealt to the given number of keys in turn.
func numbered(topic, prefix string, count, keys int) []outbox.Message {
	batch := make([]outbox.Message, count)
	for i := range batch {
		batch[i] = outbox.Message{
			ID:      outbox.NewID(),
			Topic:   topic,
			Key:     fmt.Sprintf("%s-%d", prefix, i%keys),
			Payload: fmt.Appendf(nil, `{"n":%d}`, i/keys),
		}
	}
	return batch
}

func everyFieldArrives(t *testing.T, c *brokerCase) {
	b := c.open()
	full := outbox.Message{
		ID:            outbox.NewID(),
		Topic:         c.h.Topics[0],
		Key:           "ключ 🔑",
		AggregateType: "order",
		AggregateID:   "4711",
		EventType:     "OrderCreated",
		Payload:       []byte(`{"amount":"12,50 €"}`),
		ContentType:   "application/json; charset=utf-8",
		Headers: []outbox.Header{
			{Name: "traceparent", Value: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
			{Name: "empty", Value: ""},
			{Name: "X-Case", Value: "Größe"},
		},
		CreatedAt: time.Date(2026, 2, 3, 4, 5, 6, 789012000, time.UTC),
		Position:  123,
	}
	byAggregate := full
	byAggregate.ID, byAggregate.Key, byAggregate.Headers = outbox.NewID(), "", nil
	elsewhere := full
	elsewhere.ID, elsewhere.Topic = outbox.NewID(), c.h.Topics[1]
	batch := []outbox.Message{full, byAggregate, elsewhere}
	c.accepted(b, batch)
	c.sees(batch)
}

func payloadsArrive(t *testing.T, c *brokerCase) {
	b := c.open()
	binary := make([]byte, 1024)
	for i := range binary {
		binary[i] = byte(i)
	}
	batch := numbered(c.h.Topics[0], "k", 4, 1)
	batch[0].Payload = binary
	batch[1].Payload = []byte{}
	batch[2].Payload = nil
	batch[3].Payload = []byte{0}
	c.accepted(b, batch)
	c.sees(batch)
}

func keylessArrive(t *testing.T, c *brokerCase) {
	b := c.open()
	batch := numbered(c.h.Topics[0], "k", 100, 3)
	for i := range batch {
		if i%2 == 0 {
			batch[i].Key = ""
		}
	}
	c.accepted(b, batch)
	c.sees(batch)
}

func emptyBatch(t *testing.T, c *brokerCase) {
	if errs := c.open().Publish(c.context(), nil); errs != nil {
		t.Errorf("result %v", errs)
	}
	c.sees(nil)
}

func orderAcrossBatches(t *testing.T, c *brokerCase) {
	b := c.open()
	all := append(numbered(c.h.Topics[0], "k", c.many(2000), 7), numbered(c.h.Topics[1], "k", c.many(500), 7)...)
	for part := range slices.Chunk(all, 250) {
		c.accepted(b, part)
	}
	// In this batch, keys alternate between topics.
	mixed := numbered(c.h.Topics[0], "mixed", 60, 5)
	for i := range mixed {
		mixed[i].Topic = c.h.Topics[i/5%2]
	}
	c.accepted(b, mixed)
	c.sees(append(all, mixed...))
}

func concurrentCalls(t *testing.T, c *brokerCase) {
	b := c.open()
	const callers = 8
	var all []outbox.Message
	var wg sync.WaitGroup
	for i := range callers {
		mine := numbered(c.h.Topics[i%2], fmt.Sprintf("caller-%d", i), c.many(1500), 11)
		all = append(all, mine...)
		wg.Go(func() {
			for part := range slices.Chunk(mine, 100) {
				c.deliver(c.t.Context(), b, part)
			}
		})
	}
	wg.Wait()
	c.seesInOrder(c.read(), all)
}

func largeBatch(t *testing.T, c *brokerCase) {
	b := c.open()
	batch := numbered(c.h.Topics[0], "k", c.many(10_000), 100)
	c.accepted(b, batch)
	c.sees(batch)
}

func largeMessages(t *testing.T, c *brokerCase) {
	b := c.open()
	size := 400_000
	if most := c.h.TooLarge; most > 0 && most < 2*size {
		size = most / 2
	}
	batch := numbered(c.h.Topics[0], "k", 60, 3)
	for i := range batch {
		batch[i].Payload = bytes.Repeat([]byte{byte(i)}, size)
	}
	c.accepted(b, batch)
	c.sees(batch)
}

func tooLarge(t *testing.T, c *brokerCase) {
	if c.h.TooLarge == 0 {
		t.Skip("this broker has no limit")
	}
	b := c.open()
	batch := numbered(c.h.Topics[0], "k", 30, 3)
	batch[4].Payload = make([]byte, c.h.TooLarge) // key k-1, its second
	batch[20].Key, batch[20].Payload = "", batch[4].Payload
	errs := c.publish(c.context(), b, batch)
	var want []outbox.Message
	for i := range batch {
		switch {
		case i == 4 || i == 20:
			if !outbox.IsPermanent(errs[i]) {
				t.Errorf("message %d is too large and was answered with: %v", i, errs[i])
			}
		case batch[i].Key == "k-1" && i > 4:
			if !errors.Is(errs[i], outbox.ErrSkipped) {
				t.Errorf("message %d is behind the refused one and was answered with: %v", i, errs[i])
			}
		default:
			if errs[i] != nil {
				t.Errorf("message %d: %v", i, errs[i])
			}
			want = append(want, batch[i])
		}
	}
	c.sees(want)

	// The rest of the key continues once the refused message is out of the way.
	var rest []outbox.Message
	for i := range batch {
		if batch[i].Key == "k-1" && i > 4 {
			rest = append(rest, batch[i])
		}
	}
	c.accepted(b, rest)
	c.sees(append(want, rest...))
}

func refusedAcrossTopics(t *testing.T, c *brokerCase) {
	if c.h.TooLarge == 0 {
		t.Skip("this broker has no limit")
	}
	b := c.open()
	batch := numbered(c.h.Topics[0], "k", 12, 2)
	for i := range batch {
		batch[i].Topic = c.h.Topics[i/2%2]
	}
	batch[2].Payload = make([]byte, c.h.TooLarge) // key k-0, its second, to the second topic
	errs := c.publish(c.context(), b, batch)
	if !outbox.IsPermanent(errs[2]) {
		t.Errorf("the message that is too large was answered with: %v", errs[2])
	}
	var want []outbox.Message
	for i := range batch {
		if i == 0 || i%2 == 1 {
			want = append(want, batch[i])
		}
	}
	c.sees(want)
}

func manyRefused(t *testing.T, c *brokerCase) {
	if c.h.TooLarge == 0 {
		t.Skip("this broker has no limit")
	}
	b := c.open()
	large := make([]byte, c.h.TooLarge)
	batch := numbered(c.h.Topics[0], "k", 200, 200)
	var want []outbox.Message
	for i := range batch {
		if i%10 == 0 {
			batch[i].Payload = large
		} else {
			want = append(want, batch[i])
		}
	}
	for i, err := range c.publish(c.context(), b, batch) {
		if refused := i%10 == 0; refused != outbox.IsPermanent(err) || !refused && err != nil {
			t.Errorf("message %d: %v", i, err)
		}
	}
	c.sees(want)
}

func tooLargeForServer(t *testing.T, c *brokerCase) {
	if c.h.TooLargeForServer == 0 {
		t.Skip("this server has no limit of its own")
	}
	b := c.open()
	var want []outbox.Message
	for call := range 3 { // what one call learns, the next one knows
		batch := numbered(c.h.Topics[0], fmt.Sprintf("call-%d", call), 20, 20)
		large := map[int]bool{7: true, 8: call == 1, 19: call == 2}
		for i := range batch {
			if large[i] {
				batch[i].Payload = make([]byte, c.h.TooLargeForServer)
			} else {
				want = append(want, batch[i])
			}
		}
		// What a call leaves undecided, or stalls at, comes again, as from the engine.
		rest := batch
		for ctx := c.context(); len(rest) > 0 && ctx.Err() == nil; {
			var left []outbox.Message
			for i, err := range c.publish(ctx, b, rest) {
				at := slices.IndexFunc(batch, func(m outbox.Message) bool { return m.ID == rest[i].ID })
				switch {
				case err == nil && !large[at] || outbox.IsPermanent(err) && large[at]:
				case errors.Is(err, outbox.ErrSkipped):
					left = append(left, rest[i])
				default:
					t.Fatalf("message %d (large: %v) was answered with: %v", at, large[at], err)
				}
			}
			rest = left
		}
	}
	c.seesInOrder(c.read(), want)
}

func unknownTopic(t *testing.T, c *brokerCase) {
	if c.h.UnknownTopic == "" {
		t.Skip("this broker has no unknown topics")
	}
	b := c.open()
	batch := numbered(c.h.Topics[0], "k", 20, 2)
	batch[3].Topic = c.h.UnknownTopic // key k-1, its second
	errs := c.publish(c.context(), b, batch)
	switch err := errs[3]; {
	case err == nil || outbox.IsPermanent(err) || outbox.IsUnavailable(err) || errors.Is(err, outbox.ErrSkipped):
		t.Errorf("the message to an unknown topic was answered with: %v; it can succeed later, and says nothing about others", err)
	case !strings.Contains(err.Error(), c.h.UnknownTopic):
		t.Errorf("the error doesn't name the topic %q: %v", c.h.UnknownTopic, err)
	}
	var want []outbox.Message
	for i := range batch {
		if i%2 == 0 || i < 3 {
			want = append(want, batch[i])
			if errs[i] != nil {
				t.Errorf("message %d: %v", i, errs[i])
			}
		}
	}
	c.sees(want)
}

func repeatsCarryTheID(t *testing.T, c *brokerCase) {
	b := c.open()
	batch := numbered(c.h.Topics[0], "k", 50, 5)
	c.accepted(b, batch)
	c.accepted(b, batch)
	got := c.read()
	if c.h.Deduplicates && len(got) != len(batch) {
		t.Errorf("%d messages seen of %d published twice", len(got), len(batch))
	}
	c.seesInOrder(got, batch)
}

func endedContext(t *testing.T, c *brokerCase) {
	b := c.open()
	first := numbered(c.h.Topics[0], "k", 10, 2)
	c.accepted(b, first)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	batch := numbered(c.h.Topics[0], "k", 100, 2)
	for i, err := range c.publish(ctx, b, batch) {
		if err != nil && !outbox.IsUnavailable(err) && !errors.Is(err, outbox.ErrSkipped) {
			t.Errorf("message %d: %v", i, err)
		}
	}
	c.deliver(c.context(), b, batch)
	c.seesInOrder(c.read(), append(first, batch...))
}

func contextEndsAnywhere(t *testing.T, c *brokerCase) {
	b := c.open()
	var all []outbox.Message
	for i := range 20 {
		batch := numbered(c.h.Topics[i%2], fmt.Sprintf("round-%d", i), c.many(3000), 5)
		all = append(all, batch...)
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Millisecond)
		errs := c.publish(ctx, b, batch)
		cancel()
		var left []outbox.Message
		for j, err := range errs {
			if err == nil {
				continue
			}
			if !outbox.IsUnavailable(err) && !errors.Is(err, outbox.ErrSkipped) {
				t.Fatalf("round %d, message %d: %v", i, j, err)
			}
			left = append(left, batch[j])
		}
		c.deliver(c.context(), b, left)
	}
	c.seesInOrder(c.read(), all)
}

func closeTwice(t *testing.T, c *brokerCase) {
	unused := c.h.Open(t)
	used := c.h.Open(t)
	c.accepted(used, numbered(c.h.Topics[0], "k", 10, 2))
	for range 2 {
		if err := errors.Join(unused.Close(), used.Close()); err != nil {
			t.Errorf("close: %v", err)
		}
	}
}

func pingAnswers(t *testing.T, c *brokerCase) {
	p, ok := relay.As[relay.Pinger](c.open())
	if !ok {
		t.Skip("this broker isn't a relay.Pinger")
	}
	if err := p.Ping(c.context()); err != nil {
		t.Errorf("ping: %v", err)
	}
}

// identityLasts asks two brokers of one server, before and after use, and after the server has been killed.
func identityLasts(t *testing.T, c *brokerCase) {
	names := func(b relay.Broker) []string {
		t.Helper()
		var names []string
		if identifier, ok := relay.As[relay.Identifier](b); ok {
			var err error
			if names, err = identifier.Identity(c.context()); err != nil {
				t.Fatalf("identity: %v", err)
			}
		}
		if (len(names) == 0) != c.h.Anonymous || slices.Contains(names, "") {
			t.Fatalf("the identity is %q", names)
		}
		return names
	}
	first, second := c.open(), c.open()
	want := names(first)
	same := func(when string, b relay.Broker) {
		t.Helper()
		if got := names(b); !slices.Equal(got, want) {
			t.Errorf("%s the identity is %q, and it was %q", when, got, want)
		}
	}
	if !c.h.Apart {
		same("of another client", second)
	} else if got := names(second); slices.Equal(got, want) {
		t.Errorf("two brokers are both %q", got)
	}
	c.accepted(first, numbered(c.h.Topics[0], "k", 10, 2))
	same("after use", first)
	if f := c.h.Faults; f != nil {
		c.fault("kill", f.Kill)
		c.fault("restart", f.Restart)
		c.deliver(c.context(), first, numbered(c.h.Topics[0], "k", 10, 2))
		same("after a restart of the server", first)
		same("after a restart of the server, of another client,", c.open())
	}
}

// fault performs a step of BrokerFaults.
func (c *brokerCase) fault(name string, do func() error) {
	c.t.Helper()
	if err := do(); err != nil {
		c.t.Fatalf("%s: %v", name, err)
	}
}

// unavailable publishes batch for a short while and requires that there is no answer.
func (c *brokerCase) unavailable(b relay.Broker, batch []outbox.Message) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), await.Expiry(500*time.Millisecond))
	defer cancel()
	for i, err := range c.publish(ctx, b, batch) {
		if !outbox.IsUnavailable(err) && !errors.Is(err, outbox.ErrSkipped) {
			c.t.Fatalf("message %d was answered while the server couldn't: %v", i, err)
		}
	}
	if p, ok := relay.As[relay.Pinger](b); ok {
		ctx, cancel := context.WithTimeout(c.t.Context(), await.Expiry(500*time.Millisecond))
		defer cancel()
		if err := p.Ping(ctx); err == nil {
			c.t.Error("ping finds the server that doesn't answer")
		}
	}
}

func outageAtStart(t *testing.T, c *brokerCase) {
	c.fault("kill", c.h.Faults.Kill)
	b := c.open()
	batch := numbered(c.h.Topics[0], "k", 500, 10)
	c.unavailable(b, batch)
	c.unavailable(b, batch)
	c.fault("restart", c.h.Faults.Restart)
	c.deliver(c.context(), b, batch)
	c.seesInOrder(c.read(), batch)
}

func outage(t *testing.T, c *brokerCase) {
	b := c.open()
	before := numbered(c.h.Topics[0], "k", 500, 10)
	c.accepted(b, before)
	c.fault("kill", c.h.Faults.Kill)
	batch := numbered(c.h.Topics[0], "k", 500, 10)
	c.unavailable(b, batch)
	c.unavailable(b, batch)
	c.fault("restart", c.h.Faults.Restart)
	c.deliver(c.context(), b, batch)
	c.seesInOrder(c.read(), append(before, batch...))
}

func killedUnderLoad(t *testing.T, c *brokerCase) {
	b := c.open()
	all, parts := c.load(b, func(part int) {
		if part%24 == 12 {
			c.fault("kill", c.h.Faults.Kill)
			c.fault("restart", c.h.Faults.Restart)
		}
	})
	c.seesInOrder(c.read(), all)
	t.Logf("%d calls delivered", parts)
}

func frozen(t *testing.T, c *brokerCase) {
	b := c.open()
	before := numbered(c.h.Topics[0], "k", 500, 10)
	c.accepted(b, before)
	c.fault("freeze", c.h.Faults.Freeze)
	batch := numbered(c.h.Topics[0], "k", 500, 10)
	c.unavailable(b, batch)
	c.unavailable(b, batch)
	c.fault("thaw", c.h.Faults.Thaw)
	c.deliver(c.context(), b, batch)
	all, _ := c.load(b, func(part int) {
		if part%16 == 8 {
			c.fault("freeze", c.h.Faults.Freeze)
			c.fault("thaw", c.h.Faults.Thaw)
		}
	})
	c.seesInOrder(c.read(), slices.Concat(before, batch, all))
}

// load delivers from three goroutines at once. It calls after, in this goroutine, with the number of each call that was
// delivered, while the publishers continue.
func (c *brokerCase) load(b relay.Broker, after func(part int)) (all []outbox.Message, parts int) {
	const publishers, calls = 3, 16
	size := c.many(200)
	ctx, cancel := context.WithCancel(c.context())
	delivered := make(chan struct{}, publishers*calls)
	var wg sync.WaitGroup
	defer wg.Wait() // even if after ends the test
	defer cancel()
	for i := range publishers {
		mine := numbered(c.h.Topics[i%2], fmt.Sprintf("load-%d", i), calls*size, 20)
		all = append(all, mine...)
		wg.Go(func() {
			for part := range slices.Chunk(mine, size) {
				c.deliver(ctx, b, part)
				delivered <- struct{}{}
			}
		})
	}
	go func() {
		wg.Wait()
		close(delivered)
	}()
	for range delivered {
		parts++
		after(parts)
	}
	return all, parts
}

var _ relay.Identifier = (*Memory)(nil)
