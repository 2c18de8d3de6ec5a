package nats_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/nats"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
)

func TestAMessageArrivesWithAllItsFields(t *testing.T) {
	t.Parallel()
	s := newStream(t, servers.TestNATS(t).URL())
	b := s.broker("", nats.Config{Stream: s.name})
	m := &outbox.Message{
		ID: outbox.NewID(), Topic: "orders.created", Key: " 50% of\nit ", AggregateType: "order", AggregateID: "7/é",
		EventType: "OrderCreated", Payload: []byte("{\"n\":1}\x00\r\n"), ContentType: "application/json",
		Headers: []outbox.Header{{Name: "traceparent", Value: "00-ab-cd-01"},
			{Name: "X-Empty", Value: ""}, {Name: "x-text", Value: "grüße: 1%"}},
		CreatedAt: time.Date(2026, 1, 2, 3, 4, 5, 678000, time.FixedZone("", 3600)), Position: 42,
	}
	accepted(t, b.Publish(patient(t), []*outbox.Message{m}))

	stored := s.stored()
	if len(stored) != 1 {
		t.Fatalf("%d messages stored", len(stored))
	}
	got := stored[0]
	if got.Subject != s.name+".orders.created" || string(got.Data) != string(m.Payload) {
		t.Errorf("subject %q, body %q", got.Subject, got.Data)
	}
	want := map[string]string{
		"Nats-Msg-Id": m.ID.String(), "Nats-Expected-Stream": s.name, "Content-Type": "application/json",
		"Outbox-Topic": "orders.created", "Outbox-Key": "%2050%25 of%0Ait%20", "Outbox-Event-Type": "OrderCreated",
		"Outbox-Aggregate-Type": "order", "Outbox-Aggregate-Id": "7/é", "Outbox-Position": "42",
		"Outbox-Created-At": "2026-01-02T02:04:05.000678Z",
		"traceparent":       "00-ab-cd-01", "X-Empty": "", "x-text": "grüße: 1%",
	}
	for name, value := range want {
		if values := got.Header[name]; len(values) != 1 || values[0] != value {
			t.Errorf("header %s: %q, want %q", name, values, value)
		}
	}
	if len(got.Header) != len(want) {
		t.Errorf("headers %v", got.Header)
	}
}

func TestANullPayloadIsAnEmptyBodyThatSaysSo(t *testing.T) {
	t.Parallel()
	s := newStream(t, servers.TestNATS(t).URL())
	null, empty := message("k", 1), message("k", 2)
	null.Payload, empty.Payload = nil, []byte{}
	accepted(t, s.broker("", nats.Config{}).Publish(patient(t), []*outbox.Message{null, empty}))
	stored := s.stored()
	if len(stored) != 2 || len(stored[0].Data)+len(stored[1].Data) != 0 {
		t.Fatalf("stored %v", stored)
	}
	if stored[0].Header.Get("Outbox-Payload") != "null" || stored[1].Header.Get("Outbox-Payload") != "" {
		t.Errorf("headers %v and %v", stored[0].Header, stored[1].Header)
	}
}

func TestALargeBatchArrivesOnceAndInOrderPerKey(t *testing.T) {
	t.Parallel()
	s := newStream(t, servers.TestNATS(t).URL())
	b := s.broker("", nats.Config{MaxInFlight: 100})
	batch := messages(2000, 37)
	for i := range 200 {
		batch = append(batch, message("", i))
	}
	accepted(t, b.Publish(patient(t), batch))
	checkOrder(t, batch[:2000], s.stored())
	if got := len(s.storedIDs()); got != len(batch) {
		t.Errorf("%d stored for %d published", got, len(batch))
	}
}

func TestConcurrentCallsShareTheConnection(t *testing.T) {
	t.Parallel()
	s := newStream(t, servers.TestNATS(t).URL())
	b := s.broker("", nats.Config{MaxInFlight: 64, MaxInFlightBytes: 8 << 10})
	var all []*outbox.Message
	var calls sync.WaitGroup
	for n := range 8 {
		batch := messages(300, 11)
		for _, m := range batch {
			m.Key += fmt.Sprintf("-%d", n)
		}
		all = append(all, batch...)
		calls.Go(func() {
			for part := range slices.Chunk(batch, 75) {
				if errs := b.Publish(patient(t), part); errs != nil {
					t.Errorf("call %d: %v", n, errors.Join(errs...))
				}
			}
		})
	}
	calls.Wait()
	checkOrder(t, all, s.stored())
}

func TestARepeatedMessageIsStoredOnce(t *testing.T) {
	t.Parallel()
	s := newStream(t, servers.TestNATS(t).URL())
	b := s.broker("", nats.Config{})
	batch := messages(100, 10)
	for range 3 {
		accepted(t, b.Publish(patient(t), batch))
	}
	if got := s.storedIDs(); len(got) != len(batch) {
		t.Errorf("%d stored for %d published", len(got), len(batch))
	}
}

func TestARefusedMessageStopsItsKeyAlone(t *testing.T) {
	t.Parallel()
	s := newStream(t, servers.TestNATS(t).URL(), func(cfg *jetstream.StreamConfig) { cfg.MaxMsgSize = 4096 })
	b := s.broker("", nats.Config{})
	cases := map[string]func(*outbox.Message){
		"larger than the stream takes": func(m *outbox.Message) { m.Payload = make([]byte, 5000) },
		"larger than the server takes": func(m *outbox.Message) { m.Payload = make([]byte, 1<<20) },
		"headers larger than 64 KiB": func(m *outbox.Message) {
			m.Headers = []outbox.Header{{Name: "x", Value: strings.Repeat("x", 70_000)}}
		},
		"topic with a space":        func(m *outbox.Message) { m.Topic = "a b" },
		"topic with a wildcard":     func(m *outbox.Message) { m.Topic = "a.>" },
		"topic with an empty token": func(m *outbox.Message) { m.Topic = "a..b" },
		"empty topic":               func(m *outbox.Message) { m.Topic = "" },
		"header value with a line break": func(m *outbox.Message) {
			m.Headers = []outbox.Header{{Name: "x", Value: "a\r\nNats-Rollup: all"}}
		},
		"header name with a line break": func(m *outbox.Message) { m.Headers = []outbox.Header{{Name: "x\ny", Value: "a"}} },
		"header name with a colon":      func(m *outbox.Message) { m.Headers = []outbox.Header{{Name: "x:y", Value: "a"}} },
		"empty header name":             func(m *outbox.Message) { m.Headers = []outbox.Header{{Name: "", Value: "a"}} },
		"header that commands the server": func(m *outbox.Message) {
			m.Headers = []outbox.Header{{Name: "nats-rollup", Value: "all"}}
		},
		"header that pretends to be ours": func(m *outbox.Message) { m.Headers = []outbox.Header{{Name: "Outbox-Key", Value: "a"}} },
	}
	var batch []*outbox.Message
	for name, spoil := range cases {
		first, bad, last := message(name, 1), message(name, 2), message(name, 3)
		spoil(bad)
		batch = append(batch, first, bad, last)
	}
	errs := b.Publish(patient(t), batch)
	brokertest.CheckOutcomes(t, batch, errs)
	for i, m := range batch {
		switch err := errs[i]; i % 3 {
		case 0:
			if err != nil {
				t.Errorf("%s: the message before: %v", m.Key, err)
			}
		case 1:
			if !outbox.IsPermanent(err) {
				t.Errorf("%s: %v", m.Key, err)
			}
		case 2:
			if !errors.Is(err, outbox.ErrSkipped) {
				t.Errorf("%s: the message behind: %v", m.Key, err)
			}
		}
	}
	if got := len(s.storedIDs()); got != len(cases) {
		t.Errorf("%d stored, want %d", got, len(cases))
	}
}

func TestATopicCannotCommandTheServer(t *testing.T) {
	t.Parallel()
	url := servers.TestNATS(t).URL()
	s := newStream(t, url)
	for template, topics := range map[string][]string{
		"{topic}":        {"$JS.API.STREAM.DELETE." + s.name, "_INBOX.somebody.1", "_R_.x", "$KV.config.x"},
		"${topic}":       {"JS.API.STREAM.DELETE." + s.name},
		"$J{event_type}": {""}, // the message below has one
	} {
		b := newBroker(t, url, nats.Config{Subject: template})
		for _, topic := range topics {
			m := message("k", 1)
			m.Topic, m.EventType = topic, "S.API.STREAM.DELETE."+s.name
			brokertest.CheckFirst(t, b, []*outbox.Message{m}, "refused")
		}
	}
	if _, err := s.js.Stream(patient(t), s.name); err != nil {
		t.Error(err)
	}
}

func TestASubjectThatNoStreamTakesIsUnavailableAndSaysHowToCreateOne(t *testing.T) {
	t.Parallel()
	url := servers.TestNATS(t).URL()
	s := newStream(t, url)
	b := newBroker(t, url, nats.Config{})
	good, bad, behind := message("a", 1), message("b", 1), message("b", 2)
	good.Topic, bad.Topic, behind.Topic = s.name+".t", "no-such."+s.name, s.name+".t"
	errs := b.Publish(patient(t), []*outbox.Message{good, bad, behind})
	if len(errs) != 3 || errs[0] != nil || !errors.Is(errs[2], outbox.ErrSkipped) {
		t.Fatalf("outcomes %v", errs)
	}
	if err := errs[1]; !outbox.IsTopicUnavailable(err) || !strings.Contains(err.Error(), bad.Topic) ||
		!strings.Contains(err.Error(), "nats stream add") {
		t.Errorf("outcome %v", err)
	}
}

func TestAnotherStreamThanTheExpectedOneRefuses(t *testing.T) {
	t.Parallel()
	url := servers.TestNATS(t).URL()
	s, other := newStream(t, url), newStream(t, url)
	errs := s.broker("", nats.Config{Stream: other.name}).Publish(patient(t), messages(1, 1))
	if len(errs) != 1 || errs[0] == nil || outbox.IsPermanent(errs[0]) || outbox.IsUnavailable(errs[0]) {
		t.Errorf("outcome %v", errs)
	}
}

func TestSomebodyElsesReplyIsNotAnAcknowledgement(t *testing.T) {
	t.Parallel()
	url := servers.TestNATS(t).URL()
	nc, err := natsgo.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	subject := fmt.Sprintf("service.%d", streams.Add(1))
	if _, err := nc.Subscribe(subject, func(m *natsgo.Msg) { m.Respond([]byte("ok")) }); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	m := message("k", 1)
	m.Topic = subject
	errs := newBroker(t, url, nats.Config{}).Publish(patient(t), []*outbox.Message{m})
	if len(errs) != 1 || errs[0] == nil || outbox.IsUnavailable(errs[0]) || outbox.IsPermanent(errs[0]) {
		t.Errorf("outcome %v", errs)
	}
}

// A stream at its limit refuses messages and takes later ones when a consumer has made room: the case for
// which a key has only one message in flight.
func TestAFullStreamKeepsTheOrderOfEachKey(t *testing.T) {
	t.Parallel()
	s := newStream(t, servers.TestNATS(t).URL(), func(cfg *jetstream.StreamConfig) {
		cfg.MaxMsgs = 20
		cfg.Discard = jetstream.DiscardNew
		cfg.Retention = jetstream.WorkQueuePolicy
		cfg.Storage = jetstream.MemoryStorage
	})
	b := s.broker("", nats.Config{})
	batch := messages(1000, 7)
	ctx := patient(t)

	consumer, err := s.js.CreateConsumer(ctx, s.name, jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 5})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var seen []*jetstream.RawStreamMsg
	consume, err := consumer.Consume(func(m jetstream.Msg) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, &jetstream.RawStreamMsg{Header: m.Headers(), Data: m.Data()})
		m.Ack()
	})
	if err != nil {
		t.Fatal(err)
	}
	defer consume.Stop()

	refused := 0
	for rest := batch; len(rest) > 0; {
		errs := b.Publish(ctx, rest)
		brokertest.CheckOutcomes(t, rest, errs)
		var next []*outbox.Message
		for i, err := range errs {
			if err == nil {
				continue
			}
			if !outbox.IsUnavailable(err) && !errors.Is(err, outbox.ErrSkipped) {
				t.Fatalf("message %d: %v", i, err)
			}
			refused++
			next = append(next, rest[i])
		}
		rest = next
		if ctx.Err() != nil {
			t.Fatal("the stream stays full")
		}
	}
	if refused == 0 {
		t.Error("the stream was never full, so this test shows nothing")
	}
	await.Until(t, "everything is consumed", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(seen) >= len(batch)
	})
	mu.Lock()
	defer mu.Unlock()
	checkOrder(t, batch, seen)
}

func TestAFullSubjectIsRetryable(t *testing.T) {
	t.Parallel()
	s := newStream(t, servers.TestNATS(t).URL(), func(cfg *jetstream.StreamConfig) {
		cfg.MaxMsgsPerSubject = 1
		cfg.Discard = jetstream.DiscardNew
		cfg.DiscardNewPerSubject = true
	})
	errs := s.broker("", nats.Config{}).Publish(patient(t), messages(2, 1))
	if len(errs) != 2 || errs[0] != nil || errs[1] == nil || outbox.IsUnavailable(errs[1]) || outbox.IsPermanent(errs[1]) {
		t.Errorf("outcomes %v", errs)
	}
}

func TestAStreamIsCreatedWhenAskedAndLeftAloneWhenThere(t *testing.T) {
	t.Parallel()
	url := servers.TestNATS(t).URL()
	js := jetStream(t, url)
	name := fmt.Sprintf("CREATED_%d", streams.Add(1))
	t.Cleanup(func() { js.DeleteStream(context.Background(), name) })
	for i, window := range []time.Duration{time.Hour, time.Minute} {
		b := newBroker(t, url,
			nats.Config{Subject: name + ".{topic}", Stream: name, CreateStream: &nats.StreamSettings{DuplicateWindow: window}})
		if err := b.Ping(patient(t)); err != nil {
			t.Fatal(err)
		}
		if _, err := js.Stream(patient(t), name); i == 0 && !errors.Is(err, jetstream.ErrStreamNotFound) {
			t.Fatalf("a probe has created the stream: %v", err)
		}
		accepted(t, b.Publish(patient(t), messages(3, 1)))
		stream, err := js.Stream(patient(t), name)
		if err != nil {
			t.Fatal(err)
		}
		cfg, state := stream.CachedInfo().Config, stream.CachedInfo().State
		if cfg.Duplicates != time.Hour || !slices.Equal(cfg.Subjects, []string{name + ".>"}) || state.Msgs != uint64(3*i+3) {
			t.Errorf("round %d: %+v, %d messages", i, cfg, state.Msgs)
		}
	}
}

func TestPingNamesASubjectThatNoStreamTakes(t *testing.T) {
	t.Parallel()
	s := newStream(t, servers.TestNATS(t).URL())
	if err := newBroker(t, s.url, nats.Config{Subject: s.name + ".orders"}).Ping(patient(t)); err != nil {
		t.Errorf("a stream takes it: %v", err)
	}
	brokertest.CheckPing(t, newBroker(t, s.url, nats.Config{Subject: "nobody.takes.this"}), "nats stream add")
}

func TestPingNamesAMissingStream(t *testing.T) {
	t.Parallel()
	b := newBroker(t, servers.TestNATS(t).URL(), nats.Config{Stream: "NO_SUCH"})
	brokertest.CheckPing(t, b, `"NO_SUCH" does not exist`)
}

func TestNothingOfABatchIsKept(t *testing.T) {
	t.Parallel()
	s := newStream(t, servers.TestNATS(t).URL())
	b := s.broker("", nats.Config{})
	m := message("k", 0)
	m.Payload = make([]byte, 8)
	var want []string
	for i := range 200 {
		m.ID = outbox.NewID()
		copy(m.Payload, fmt.Sprintf("%08d", i))
		want = append(want, string(m.Payload))
		accepted(t, b.Publish(patient(t), []*outbox.Message{m}))
		clear(m.Payload)
	}
	for i, stored := range s.stored() {
		if string(stored.Data) != want[i] {
			t.Fatalf("message %d has the body %q", i, stored.Data)
		}
	}
}

func TestFaultsOfTheConfigurationAreReportedTogether(t *testing.T) {
	t.Parallel()
	_, err := nats.New("http://user:secret@host", nats.Config{
		Subject: "{nonsense}", Stream: "a b", Token: "x", User: "y", AckTimeout: -1, MaxInFlight: -1,
		CreateStream: &nats.StreamSettings{Replicas: 9},
	})
	brokertest.Contains(t, err, "scheme", "{nonsense}", `"a b"`, "token and user are given", "AckTimeout", "MaxInFlight", "Replicas")
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("the password is in: %v", err)
	}
	for _, subject := range []string{"$JS.API.{topic}", "a b.{topic}", "a..{topic}", "{topic", "a.>"} {
		if _, err := nats.New("nats://127.0.0.1", nats.Config{Subject: subject}); err == nil {
			t.Errorf("subject template %q was accepted", subject)
		}
	}
	for _, servers := range []string{"", "nats://", "nats://a,,nats://b"} {
		if _, err := nats.New(servers, nats.Config{}); err == nil {
			t.Errorf("servers %q were accepted", servers)
		}
	}
}
