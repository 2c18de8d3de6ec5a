package rabbitmq_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/rabbitmq"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testnet"
)

// through returns the server's URL by way of p.
func through(url string, server *servers.RabbitMQ, p *testnet.Proxy) string {
	return strings.Replace(url, server.Addr(), p.Addr(), 1)
}

// checkOrder is brokertest.CheckOrder of what the queue has.
func checkOrder(t testing.TB, q *queue, batch []*outbox.Message) (repeats int) {
	t.Helper()
	stored, err := q.messages(patient(t))
	if err != nil {
		t.Fatal(err)
	}
	return brokertest.CheckOrder(t, batch, stored)
}

func TestAReturnedMessageIsAFailureOfItsTopicThoughItIsConfirmed(t *testing.T) {
	t.Parallel()
	server := servers.TestRabbitMQ(t)
	q := newQueue(t, server.URL(), nil)
	b := newBroker(t, server.URL(), rabbitmq.Config{})
	batch := []*outbox.Message{brokertest.Message(q.name, "a", 0),
		brokertest.Message("nowhere", "b", 0), brokertest.Message(q.name, "b", 1), brokertest.Message(q.name, "a", 1)}
	errs := b.Publish(patient(t), batch)
	brokertest.CheckOutcomes(t, batch, errs)
	if errs == nil || !outbox.IsTopicUnavailable(errs[1]) || errs[0] != nil || errs[3] != nil {
		t.Errorf("outcomes %v", errs)
	}
	contains(t, errs[1], "nowhere", "does not exist")
}

func TestAFullQueueRefusesAndKeepsTheOrder(t *testing.T) {
	t.Parallel()
	server := servers.TestRabbitMQ(t)
	q := newQueue(t, server.URL(), amqp091.Table{"x-max-length": 20, "x-overflow": "reject-publish"})
	b := newBroker(t, server.URL(), rabbitmq.Config{})
	all := brokertest.Messages(q.name, 300, 3)
	left, refusals := all, 0
	for ctx := patient(t); len(left) > 0; {
		if ctx.Err() != nil {
			t.Fatalf("%d left", len(left))
		}
		errs := b.Publish(patient(t), left)
		brokertest.CheckOutcomes(t, left, errs)
		var rest []*outbox.Message
		for i, err := range errs {
			if err != nil {
				rest = append(rest, left[i])
				if !errors.Is(err, outbox.ErrSkipped) {
					refusals++
					contains(t, err, "refused")
					if !outbox.IsUnavailable(err) || strings.Contains(err.Error(), "unknown") {
						t.Fatalf("a refusal is known and no fault of the message: %v", err)
					}
				}
			}
		}
		left = rest
		if len(left) > 0 { // a consumer makes room
			ask(t, server.URL(), func(ch *amqp091.Channel) error {
				for range 10 {
					d, ok, err := ch.Get(q.name, true)
					if err != nil || !ok {
						return err
					}
					q.seen = append(q.seen, d)
				}
				return nil
			})
		}
	}
	if refusals == 0 {
		t.Error("the queue was never full")
	}
	q.drain(t)
	stored, err := q.decoded()
	if err != nil {
		t.Fatal(err)
	}
	if repeats := brokertest.CheckOrder(t, all, stored); repeats > 0 {
		t.Errorf("%d repeats without a fault", repeats)
	}
}

// drain takes the rest out of a queue that would refuse the reader's own message.
func (q *queue) drain(t testing.TB) {
	t.Helper()
	ask(t, q.url, func(ch *amqp091.Channel) error {
		for {
			d, ok, err := ch.Get(q.name, true)
			if err != nil || !ok {
				return err
			}
			q.seen = append(q.seen, d)
		}
	})
}

func TestAnAlarmEndsCallsAndDeliveryGoesOnAfterIt(t *testing.T) {
	t.Parallel()
	server := servers.OwnRabbitMQ(t)
	q := newQueue(t, server.URL(), nil)
	b := newBroker(t, server.URL(), rabbitmq.Config{AckTimeout: await.Expiry(time.Second)})
	before := brokertest.Messages(q.name, 10, 2)
	brokertest.Deliver(patient(t), t, b, before)
	if err := server.Control(patient(t), "set_vm_memory_high_watermark", "absolute", "1MB"); err != nil {
		t.Fatal(err)
	}
	batch := brokertest.Messages(q.name, 500, 20)
	var errs []error
	await.Until(t, "the alarm is noticed", func() bool {
		errs = b.Publish(patient(t), batch)
		brokertest.CheckOutcomes(t, batch, errs)
		return errs != nil && strings.Contains(errs[0].Error(), "blocked")
	})
	if !outbox.IsUnavailable(errs[0]) {
		t.Errorf("outcome %v", errs[0])
	}
	// Nothing more is sent on a blocked connection, which would be taken as repeats later.
	errs = b.Publish(patient(t), batch)
	if errs == nil || !strings.Contains(errs[0].Error(), "blocked") || strings.Contains(errs[0].Error(), "unknown") {
		t.Errorf("outcomes %v", errs)
	}
	contains(t, b.Ping(patient(t)), "blocked")
	if err := server.Control(patient(t), "set_vm_memory_high_watermark", "absolute", "1GB"); err != nil {
		t.Fatal(err)
	}
	brokertest.Deliver(patient(t), t, b, batch)
	checkOrder(t, q, slices.Concat(before, batch))
}

func TestWhatTheServerRefusesForItsSizeIsRefusedForGood(t *testing.T) {
	t.Parallel()
	server := servers.OwnRabbitMQ(t, servers.RabbitMQConfig{Settings: []string{"max_message_size = 100000"}})
	q := newQueue(t, server.URL(), nil)
	b := newBroker(t, server.URL(), rabbitmq.Config{})
	batch := brokertest.Messages(q.name, 30, 3)
	batch[4].Payload = make([]byte, 200_000)
	ctx := patient(t)
	left, refused := batch, 0
	for len(left) > 0 && ctx.Err() == nil {
		errs := b.Publish(ctx, left)
		brokertest.CheckOutcomes(t, left, errs)
		var rest []*outbox.Message
		for i, err := range errs {
			switch {
			case outbox.IsPermanent(err):
				refused++
				contains(t, err, "200000", "100000")
			case err != nil:
				rest = append(rest, left[i])
			}
		}
		left = rest
	}
	if refused != 1 {
		t.Errorf("%d refused", refused)
	}
	checkOrder(t, q, slices.Delete(slices.Clone(batch), 4, 5))
}

func TestAMissingOrForbiddenExchangeIsTheFaultOfItsTopic(t *testing.T) {
	t.Parallel()
	server := servers.OwnRabbitMQ(t)
	q := newQueue(t, server.URL(), nil)
	good, forbidden := newName(), newName()
	ask(t, server.URL(), func(ch *amqp091.Channel) error {
		return errors.Join(ch.ExchangeDeclare(good, "fanout", true, false, false, false, nil), ch.QueueBind(q.name, "", good, false, nil),
			ch.ExchangeDeclare(forbidden, "fanout", true, false, false, false, nil))
	})
	if err := errors.Join(server.Control(patient(t), "add_user", "relay", "secret"),
		server.Control(patient(t), "set_permissions", "relay", "^$", "^"+good+"$", "^$")); err != nil {
		t.Fatal(err)
	}
	b := newBroker(t, server.URL(), rabbitmq.Config{Exchange: "{topic}", User: "relay", Password: "secret"})
	batch := []*outbox.Message{brokertest.Message(good, "a", 0), brokertest.Message("missing", "b", 0),
		brokertest.Message(forbidden, "c", 0), brokertest.Message(good, "c", 1), brokertest.Message(good, "a", 1)}
	var errs []error
	await.Until(t, "the forbidden exchange is known", func() bool {
		errs = b.Publish(patient(t), batch)
		brokertest.CheckOutcomes(t, batch, errs)
		return errs != nil && !outbox.IsUnavailable(errs[2])
	})
	if errs[0] != nil || errs[4] != nil {
		t.Errorf("others: %v, %v", errs[0], errs[4])
	}
	for i, part := range map[int]string{1: "does not exist", 2: "ACCESS_REFUSED"} {
		contains(t, errs[i], part)
		if !outbox.IsTopicUnavailable(errs[i]) {
			t.Errorf("message %d: %v", i, errs[i])
		}
	}
	internal := good + "-internal"
	ask(t, server.URL(), func(ch *amqp091.Channel) error {
		return ch.ExchangeDeclare(internal, "fanout", true, false, true, false, nil)
	})
	inside := newBroker(t, server.URL(), rabbitmq.Config{Exchange: internal})
	contains(t, inside.Ping(patient(t)), internal, "from other exchanges only")
	contains(t, inside.Publish(patient(t), batch[:1])[0], internal, "from other exchanges only")
	for exchange, fault := range map[string]string{good: "", forbidden: "allow the user to write to it"} {
		err := newBroker(t, server.URL(), rabbitmq.Config{Exchange: exchange, User: "relay", Password: "secret"}).Ping(patient(t))
		if fault != "" {
			contains(t, err, exchange, fault)
		} else if err != nil {
			t.Errorf("an exchange that may be written to: %v", err)
		}
	}
	wrong := newBroker(t, server.URL(), rabbitmq.Config{User: "relay", Password: "guess"})
	contains(t, wrong.Ping(patient(t)), "refused the credentials")
}

func TestTopologyIsCreatedOnlyWhenAskedAndNeverChanged(t *testing.T) {
	t.Parallel()
	server := servers.TestRabbitMQ(t)
	exchange, name := newName(), newName()
	cfg := rabbitmq.Config{Exchange: exchange}
	contains(t, newBroker(t, server.URL(), cfg).Ping(patient(t)), exchange, "does not exist")
	cfg.CreateExchange = "topic"
	cfg.CreateQueues = []rabbitmq.Queue{{Name: name, Bindings: []string{"orders.#"}, MaxLength: 1000}}
	if err := newBroker(t, server.URL(), cfg).Ping(patient(t)); err != nil {
		t.Errorf("what the first message creates: %v", err)
	}
	contains(t, newBroker(t, server.URL(), rabbitmq.Config{Exchange: exchange}).Ping(patient(t)), "does not exist") // still
	accepted(t, newBroker(t, server.URL(), cfg).Publish(patient(t), []*outbox.Message{brokertest.Message("orders.created", "k", 0)}))
	cfg.CreateExchange, cfg.CreateQueues[0].MaxLength = "fanout", 5 // it is there, and stays as it is
	accepted(t, newBroker(t, server.URL(), cfg).Publish(patient(t), []*outbox.Message{brokertest.Message("orders.paid", "k", 1)}))
	ask(t, server.URL(), func(ch *amqp091.Channel) error {
		if n, err := ch.QueuePurge(name, false); err != nil || n != 2 {
			t.Errorf("%d messages, %v", n, err)
		}
		_, err := ch.QueueDelete(name, false, false, false)
		return errors.Join(err, ch.ExchangeDelete(exchange, false, false))
	})
}

func TestCutConnectionsLeaveTheOutcomeUnknown(t *testing.T) {
	t.Parallel()
	server := servers.TestRabbitMQ(t)
	q := newQueue(t, server.URL(), nil)
	p := testnet.New(t, server.Addr())
	b := newBroker(t, through(server.URL(), server, p), rabbitmq.Config{AckTimeout: 5 * time.Second})
	all := brokertest.Messages(q.name, 1500, 50)
	cuts := 0
	for part := range slices.Chunk(all, 250) {
		p.CutAfter(8000)
		errs := b.Publish(patient(t), part)
		brokertest.CheckOutcomes(t, part, errs)
		var left []*outbox.Message
		for i, err := range errs {
			if err != nil {
				left = append(left, part[i])
				if !outbox.IsUnavailable(err) && !errors.Is(err, outbox.ErrSkipped) {
					t.Fatalf("message %d: %v", i, err)
				}
			}
		}
		if left != nil {
			cuts++
		}
		p.CutAfter(0)
		brokertest.Deliver(patient(t), t, b, left)
	}
	if cuts == 0 {
		t.Error("no connection was cut")
	}
	checkOrder(t, q, all)
}

func TestSilenceEndsACallAndItsConnection(t *testing.T) {
	t.Parallel()
	server := servers.TestRabbitMQ(t)
	q := newQueue(t, server.URL(), nil)
	p := testnet.New(t, server.Addr())
	b := newBroker(t, through(server.URL(), server, p), rabbitmq.Config{AckTimeout: await.Expiry(500 * time.Millisecond)})
	batch := brokertest.Messages(q.name, 50, 5)
	brokertest.Deliver(patient(t), t, b, batch[:1])
	p.SwallowAnswers(true)
	brokertest.CheckFirst(t, b, batch[1:], "unavailable", "no confirmation within", "outcome unknown")
	p.SwallowAnswers(false)
	brokertest.Deliver(patient(t), t, b, batch[1:])
	checkOrder(t, q, batch)
}

func TestWhatAMQPCantCarryIsRefusedBeforeItIsSent(t *testing.T) {
	t.Parallel()
	server := servers.TestRabbitMQ(t)
	q := newQueue(t, server.URL(), nil)
	b := newBroker(t, server.URL(), rabbitmq.Config{})
	long := strings.Repeat("x", 256)
	batch := []*outbox.Message{brokertest.Message(q.name, "fine", 0)}
	for _, spoil := range []func(*outbox.Message){
		func(m *outbox.Message) { m.Topic = long },
		func(m *outbox.Message) { m.Topic = "" },
		func(m *outbox.Message) { m.ContentType = long },
		func(m *outbox.Message) { m.EventType = long },
		func(m *outbox.Message) { m.Headers = []outbox.Header{{Name: long}} },
		func(m *outbox.Message) { m.Headers = []outbox.Header{{Name: "CC", Value: "elsewhere"}} },
		func(m *outbox.Message) { m.Topic = "amq.rabbitmq.reply-to.somebody" },
		func(m *outbox.Message) { m.Topic = "amq.gen-somebody" },
		func(m *outbox.Message) { m.Headers = []outbox.Header{{Name: "Outbox-Key", Value: "x"}} },
		func(m *outbox.Message) {
			m.Headers = []outbox.Header{{Name: "large", Value: strings.Repeat("x", 140_000)}}
		},
	} {
		m := brokertest.Message(q.name, "", len(batch))
		spoil(m)
		batch = append(batch, m)
	}
	errs := b.Publish(patient(t), batch)
	if errs == nil || errs[0] != nil {
		t.Fatalf("outcomes %v", errs)
	}
	for i, err := range errs[1:] {
		if !outbox.IsPermanent(err) {
			t.Errorf("message %d: %v", i+1, err)
		}
	}
	checkOrder(t, q, batch[:1])
}

func TestTheEndOfTheContextInterruptsAStuckWrite(t *testing.T) {
	t.Parallel()
	server := servers.OwnRabbitMQ(t)
	q := newQueue(t, server.URL(), nil)
	b := newBroker(t, server.URL(), rabbitmq.Config{AckTimeout: time.Minute, MaxInFlightBytes: 1 << 30})
	accepted(t, b.Publish(patient(t), brokertest.Messages(q.name, 1, 1)))
	if err := server.Freeze(); err != nil {
		t.Fatal(err)
	}
	defer server.Thaw()
	batch := brokertest.Messages(q.name, 100, 100)
	for _, m := range batch {
		m.Payload = make([]byte, 900_000)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(200*time.Millisecond, cancel)
	errs := b.Publish(ctx, batch)
	brokertest.CheckOutcomes(t, batch, errs)
	for i, err := range errs {
		if !outbox.IsUnavailable(err) {
			t.Errorf("message %d: %v", i, err)
		}
	}
}

func TestCloseEndsAPingThatDials(t *testing.T) {
	t.Parallel()
	brokertest.ClosesWhileItDials(t, func(address string) (brokertest.Pinger, error) {
		return rabbitmq.New("amqp://"+address, rabbitmq.Config{ConnectTimeout: time.Hour})
	})
}
