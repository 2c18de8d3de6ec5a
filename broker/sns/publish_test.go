package sns_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/amazon/amazontest"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/sns"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testnet"
)

func TestASubscribedQueueGetsEveryFieldInOrder(t *testing.T) {
	t.Parallel()
	a := connect(t, servers.TestMoto(t).URL())
	topic := a.topic(".fifo")
	c := a.consume(topic)
	b := a.broker(sns.Config{})
	batch := brokertest.Messages(strings.TrimSuffix(topic, ".fifo"), 60, 7)
	full := batch[30]
	full.AggregateType, full.AggregateID, full.EventType, full.ContentType = "order", "4711", "OrderCreated", "application/json"
	full.Headers = []outbox.Header{{Name: "empty"}, {Name: "traceparent", Value: "00-1"},
		{Name: "x y", Value: "Größe"}, {Name: "z", Value: "a\tb\x01\uffff"}}
	full.CreatedAt = time.Date(2026, 2, 3, 4, 5, 6, 789012000, time.UTC)
	batch[31].Payload, batch[32].Payload, batch[33].Payload = nil, []byte{}, []byte{0, 1, 0xff}
	accepted(t, b.Publish(patient(t), batch))

	got, err := c.read(patient(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(batch) {
		t.Fatalf("%d messages received, want %d", len(got), len(batch))
	}
	next := map[string]int{}
	want := map[string][]*outbox.Message{}
	for _, m := range batch {
		want[m.Key] = append(want[m.Key], m)
	}
	for i := range got {
		m := &got[i]
		sent := *want[m.Key][next[m.Key]]
		next[m.Key]++
		brokertest.SortHeaders(&sent)
		if g, w := asText(t, m), asText(t, &sent); g != w {
			t.Errorf("received %s, want %s", g, w)
		}
	}
}

func asText(t *testing.T, m *outbox.Message) string {
	t.Helper()
	text, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestATopicIsCreatedWhenAsked(t *testing.T) {
	t.Parallel()
	a := connect(t, servers.TestMoto(t).URL())
	name := "t-" + outbox.NewID().String()
	batch := brokertest.Messages(name, 1, 1)
	brokertest.CheckFirst(t, a.broker(sns.Config{}), batch, "topic unavailable", name, "aws sns create-topic")
	if err := a.broker(sns.Config{Topic: prefix + name + ".fifo", CreateTopics: true}).Ping(patient(t)); err != nil {
		t.Errorf("a topic that the first message creates: %v", err)
	}
	contains(t, a.broker(sns.Config{Topic: prefix + name + ".fifo"}).Ping(patient(t)), "doesn't exist") // still
	accepted(t, a.broker(sns.Config{CreateTopics: true}).Publish(patient(t), batch))
}

func TestPingNamesAMissingTopic(t *testing.T) {
	t.Parallel()
	a := connect(t, servers.TestMoto(t).URL())
	brokertest.CheckPing(t, a.broker(sns.Config{Topic: prefix + "nowhere.fifo"}), "nowhere.fifo", "doesn't exist")
	if err := a.broker(sns.Config{}).Ping(patient(t)); err != nil {
		t.Errorf("ping: %v", err)
	}
}

func TestARefusedEntryStopsItsKeyAlone(t *testing.T) {
	t.Parallel()
	for code, kind := range map[string]func(error) bool{
		"InvalidParameter": outbox.IsPermanent,
		"AccessDenied":     func(err error) bool { return !outbox.IsPermanent(err) && !outbox.IsUnavailable(err) },
	} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			f.refuse = func(e *entry) (string, bool) {
				if e.group == "k-3" && e.message == "1" {
					return code, true
				}
				return "", false
			}
			topic := f.topic(256 << 10)
			batch := brokertest.Messages(topic, 40, 10)
			errs := f.account().broker(sns.Config{}).Publish(patient(t), batch)
			if len(errs) != len(batch) {
				t.Fatalf("outcomes %v", errs)
			}
			for i, err := range errs {
				switch {
				case i == 13 && (err == nil || !kind(err)):
					t.Errorf("the refused message was answered with: %v", err)
				case (i == 23 || i == 33) && !errors.Is(err, outbox.ErrSkipped):
					t.Errorf("message %d behind it was answered with: %v", i, err)
				case i%10 != 3 && err != nil:
					t.Errorf("message %d: %v", i, err)
				}
			}
			if got := len(f.read(topic)); got != 37 {
				t.Errorf("%d messages were accepted, want 37", got)
			}
		})
	}
}

func TestTheServicesTroubleAndThrottlingStallTheDestination(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"InternalError", "Throttled"} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			f.refuse = func(e *entry) (string, bool) {
				if e.message == "1" {
					return code, false
				}
				return "", false
			}
			topic := f.topic(256 << 10)
			errs := f.account().broker(sns.Config{Requests: 1}).Publish(patient(t), brokertest.Messages(topic, 600, 200))
			unavailable := 0
			for i, err := range errs {
				if outbox.IsUnavailable(err) {
					unavailable++
				} else if err != nil && !errors.Is(err, outbox.ErrSkipped) {
					t.Fatalf("message %d: %v", i, err)
				}
			}
			if calls := f.requests(); unavailable == 0 || calls > 21 {
				t.Errorf("%d unavailable errors after %d requests: nothing should be sent after the first", unavailable, calls)
			}
		})
	}
}

func TestARequestThatIsRefusedAsAWholeIsDivided(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.refuse = func(e *entry) (string, bool) {
		if e.group == "k-4" {
			return "request", true
		}
		return "", false
	}
	topic := f.topic(256 << 10)
	batch := brokertest.Messages(topic, 20, 10)
	for i, err := range f.account().broker(sns.Config{}).Publish(patient(t), batch) {
		if wrong := i%10 == 4; wrong != (err != nil) {
			t.Errorf("message %d: %v", i, err)
		}
	}
	if got := len(f.read(topic)); got != 18 {
		t.Errorf("%d messages were accepted, want 18", got)
	}
}

func TestARequestStaysWithinTheTopicsLimit(t *testing.T) {
	t.Parallel()
	f := newFake(t) // refuses larger requests
	topic := f.topic(50_000)
	batch := brokertest.Messages(topic, 30, 30)
	for _, m := range batch {
		m.Payload = []byte(strings.Repeat("x", 20_000))
	}
	accepted(t, f.account().broker(sns.Config{}).Publish(patient(t), batch))
	if calls := f.requests(); calls != 15 {
		t.Errorf("%d requests, want 15 of two messages each", calls)
	}
	batch = brokertest.Messages(topic, 1, 1)
	batch[0].Payload = []byte(strings.Repeat("x", 50_000))
	brokertest.CheckFirst(t, f.account().broker(sns.Config{}), batch, "refused")
}

func TestLostAnswersLeaveUnknownOutcomesAndNothingIsLostOrInverted(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	topic := f.topic(256 << 10)
	p := testnet.New(t, f.Listener.Addr().String())
	b := connect(t, "http://"+p.Addr()).broker(sns.Config{Timeout: 5 * time.Second})
	repeats := brokertest.CutAnswers(t, b, p, brokertest.Messages(topic, 1, 1), brokertest.Messages(topic, 100, 10),
		func() ([]outbox.Message, error) { return f.read(topic), nil })
	if repeats != 0 {
		t.Errorf("%d were accepted again", repeats)
	}
}

func TestFaultsOfTheConfigurationAreReportedTogether(t *testing.T) {
	t.Parallel()
	_, err := sns.New(sns.Config{
		Topic: prefix + "{topic}", Topics: map[string]string{"a": "orders"},
		Payload: "xml", Requests: -1, Timeout: -1, Endpoint: "x", AWS: amazontest.Anyone(),
	})
	contains(t, err, "standard topic", `"orders"`, "ARN", `"xml"`, "Requests: ", "Timeout: ", "Endpoint: ")
	_, err = sns.New(sns.Config{AWS: amazontest.Anyone()})
	contains(t, err, "Topic: not given")
	_, err = sns.New(sns.Config{AWS: amazontest.Anyone(), Topic: prefix + "{key}.fifo"})
	contains(t, err, "{key}")
	if _, err := sns.New(sns.Config{AWS: amazontest.Anyone(), Topic: prefix + "{topic}", Unordered: true}); err != nil {
		t.Error(err)
	}
}

// account is the fake as the tests' other server is seen.
func (f *fake) account() *account { return connect(f.t, f.URL) }
