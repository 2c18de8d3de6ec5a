package nats_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/nats"
	"github.com/pgoutbox/outbox/internal/authority"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testnet"
)

func TestKillingTheServerLosesAndDisordersNothing(t *testing.T) {
	t.Parallel()
	server := servers.OwnNATS(t)
	s := newStream(t, server.URL())
	b := s.broker("", nats.Config{AckTimeout: await.Expiry(2 * time.Second)})
	all := messages(6000, 50)
	brokertest.DeliverDuring(patient(t), t, b, all, 200, brokertest.KillEvery(8, t, server))
	checkOrder(t, all, s.stored())
}

func TestAFrozenServerLeavesTheOutcomeUnknown(t *testing.T) {
	t.Parallel()
	server := servers.OwnNATS(t)
	s := newStream(t, server.URL())
	b := s.broker("", nats.Config{AckTimeout: await.Expiry(300 * time.Millisecond), ConnectTimeout: await.Expiry(300 * time.Millisecond)})
	brokertest.Deliver(patient(t), t, b, messages(10, 3))

	if err := server.Freeze(); err != nil {
		t.Fatal(err)
	}
	batch := messages(50, 5)
	for range 2 { // on the connection that was there, and without one
		brokertest.CheckFirst(t, b, batch, "unavailable")
	}
	brokertest.CheckPing(t, b)
	if err := server.Thaw(); err != nil {
		t.Fatal(err)
	}
	brokertest.Deliver(patient(t), t, b, batch)
	if got := len(s.storedIDs()); got != 60 {
		t.Errorf("%d stored", got)
	}
	checkOrder(t, batch, s.stored()[10:])
}

func TestTheEndOfTheContextInterruptsAWriteThatIsStuck(t *testing.T) {
	t.Parallel()
	server := servers.OwnNATS(t)
	s := newStream(t, server.URL())
	b := s.broker("", nats.Config{AckTimeout: time.Hour, MaxInFlightBytes: 1 << 30})
	accepted(t, b.Publish(patient(t), messages(1, 1)))
	if err := server.Freeze(); err != nil {
		t.Fatal(err)
	}
	defer server.Thaw()
	batch := messages(100, 100)
	for _, m := range batch {
		m.Payload = make([]byte, 900_000)
	}
	ctx, cancel := context.WithTimeout(t.Context(), await.Expiry(200*time.Millisecond))
	defer cancel()
	errs := b.Publish(ctx, batch)
	brokertest.CheckOutcomes(t, batch, errs)
	for i, err := range errs {
		if !outbox.IsUnavailable(err) {
			t.Errorf("message %d: %v", i, err)
		}
	}
}

func TestTheEndOfTheContextLeavesOtherCallsAlone(t *testing.T) {
	t.Parallel()
	server := servers.TestNATS(t)
	s := newStream(t, server.URL())
	p := testnet.New(t, server.Addr())
	b := s.broker("nats://"+p.Addr(), nats.Config{AckTimeout: time.Hour})
	accepted(t, b.Publish(patient(t), messages(1, 1)))

	p.Distance(200 * time.Millisecond)
	other := make(chan []error)
	go func() { other <- b.Publish(patient(t), messages(1, 1)) }()
	ctx, cancel := context.WithTimeout(t.Context(), await.Expiry(50*time.Millisecond))
	defer cancel()
	if errs := b.Publish(ctx, messages(1, 1)); len(errs) != 1 ||
		!outbox.IsUnavailable(errs[0]) || !errors.Is(errs[0], context.DeadlineExceeded) {
		t.Errorf("outcome %v", errs)
	}
	accepted(t, <-other)
}

func TestLostAnswersLeaveTheOutcomeUnknownAndARepeatIsRecognised(t *testing.T) {
	t.Parallel()
	server := servers.TestNATS(t)
	s := newStream(t, server.URL())
	p := testnet.New(t, server.Addr())
	b := s.broker("nats://"+p.Addr(), nats.Config{AckTimeout: await.Expiry(300 * time.Millisecond)})
	before, batch := messages(1, 1), messages(100, 10)
	// The first of each key is in flight.
	brokertest.LoseAnswers(t, b, p, before, batch, "no acknowledgement", func() bool { return len(s.storedIDs()) == 11 })
	brokertest.Deliver(patient(t), t, b, batch)
	checkOrder(t, batch, s.stored()[1:])
}

func TestACutConnectionLeavesTheOutcomeUnknown(t *testing.T) {
	t.Parallel()
	server := servers.TestNATS(t)
	s := newStream(t, server.URL())
	p := testnet.New(t, server.Addr())
	b := s.broker("nats://"+p.Addr(), nats.Config{AckTimeout: time.Hour})
	all := messages(3000, 100)
	cuts := 0
	for part := range slices.Chunk(all, 500) {
		p.CutAfter(50_000) // inside a message, most likely
		errs := b.Publish(patient(t), part)
		brokertest.CheckOutcomes(t, part, errs)
		if errs != nil {
			cuts++
		}
		p.CutAfter(0)
		brokertest.Deliver(patient(t), t, b, part)
	}
	if cuts == 0 {
		t.Error("no call was cut, so this test shows nothing")
	}
	checkOrder(t, all, s.stored())
}

func TestASlowNetworkIsNoFault(t *testing.T) {
	t.Parallel()
	server := servers.TestNATS(t)
	s := newStream(t, server.URL())
	p := testnet.New(t, server.Addr())
	p.Distance(20 * time.Millisecond)
	b := s.broker("nats://"+p.Addr(), nats.Config{MaxInFlight: 16})
	batch := messages(200, 40)
	accepted(t, b.Publish(patient(t), batch))
	checkOrder(t, batch, s.stored())
}

func TestNobodyListening(t *testing.T) {
	t.Parallel()
	b := newBroker(t, "nats://127.0.0.1:1", nats.Config{})
	brokertest.CheckOutage(t, b, messages(5, 2), "check address and port")
}

const accounts = `
jetstream { store_dir: "$DIR/js" }
accounts {
  APP {
    jetstream: enabled
    users: [
      { user: admin, password: secret }
      { user: writer, password: secret, permissions: { publish: ["ok.>"], subscribe: ["_INBOX.>"] } }
      { user: deaf, password: secret, permissions: { subscribe: ["nothing"] } }
      { user: own, password: secret, permissions: { subscribe: ["_INBOX_own.>"] } }
    ]
  }
  BARE { users: [ { user: bare, password: secret } ] }
}`

func TestAWrongPasswordIsUnavailableAndNamed(t *testing.T) {
	t.Parallel()
	b := newBroker(t, startServer(t, accounts), nats.Config{User: "admin", Password: "wr0ng"})
	errs := b.Publish(patient(t), messages(1, 1))
	for _, err := range append(errs, b.Ping(patient(t))) {
		if !outbox.IsUnavailable(err) || !strings.Contains(err.Error(), "refused the credentials") ||
			strings.Contains(err.Error(), "wr0ng") {
			t.Errorf("outcome %v", err)
		}
	}
}

// The ack timeout is far beyond the test's patience: only the server's word ends the calls.
func TestADeniedSubjectIsRetryableAtOnce(t *testing.T) {
	t.Parallel()
	url := startServer(t, accounts)
	js := jetStream(t, url, natsgo.UserInfo("admin", "secret"))
	s := newStream(t, strings.Replace(url, "://", "://admin:secret@", 1))
	if _, err := js.UpdateStream(patient(t), jetstream.StreamConfig{Name: s.name, Subjects: []string{"ok.>", "denied.>"}}); err != nil {
		t.Fatal(err)
	}
	b := newBroker(t, url, nats.Config{User: "writer", Password: "secret", AckTimeout: time.Hour})
	good, bad, behind := message("a", 1), message("b", 1), message("b", 2)
	good.Topic, bad.Topic, behind.Topic = "ok.1", "denied.1", "ok.2"
	errs := b.Publish(patient(t), []*outbox.Message{good, bad, behind})
	if len(errs) != 3 || errs[0] != nil || !errors.Is(errs[2], outbox.ErrSkipped) {
		t.Fatalf("outcomes %v", errs)
	}
	if err := errs[1]; !outbox.IsTopicUnavailable(err) || !strings.Contains(err.Error(), `may not publish to "denied.1"`) {
		t.Errorf("outcome %v", err)
	}
	// The same user may not ask JetStream anything, which must not get in the way.
	unknown := message("c", 1)
	unknown.Topic = "ok"
	if errs := b.Publish(patient(t), []*outbox.Message{good}); errs != nil {
		t.Errorf("outcomes %v", errs)
	}
	if got := s.storedIDs(); !slices.Equal(got, ids([]*outbox.Message{good})) {
		t.Errorf("stored %v", got)
	}
}

func TestAUserWhoMayNotReceiveAcknowledgementsIsTold(t *testing.T) {
	t.Parallel()
	url := startServer(t, accounts)
	b := newBroker(t, url, nats.Config{User: "deaf", Password: "secret", AckTimeout: time.Hour})
	brokertest.CheckPing(t, b, "inbox prefix")
	b = newBroker(t, url, nats.Config{User: "own", Password: "secret", InboxPrefix: "_INBOX_own"})
	if err := b.Ping(patient(t)); err != nil {
		t.Errorf("ping: %v", err)
	}
}

func TestAMissingJetStreamIsUnavailable(t *testing.T) {
	t.Parallel()
	b := newBroker(t, startServer(t, accounts), nats.Config{User: "bare", Password: "secret"})
	brokertest.CheckOutage(t, b, messages(1, 1), "JetStream must be enabled")
}

func TestAServerThatShutsDownPolitelyIsLeft(t *testing.T) {
	t.Parallel()
	server := servers.OwnNATS(t)
	s := newStream(t, server.URL())
	b := s.broker("", nats.Config{})
	batch := messages(10, 2)
	accepted(t, b.Publish(patient(t), batch))
	if err := server.Restart(patient(t)); err != nil {
		t.Fatal(err)
	}
	more := messages(10, 2)
	brokertest.Deliver(patient(t), t, b, more)
	checkOrder(t, append(batch, more...), s.stored())
}

func TestAServerThatAnnouncesItsShutdownGetsNoNewCalls(t *testing.T) {
	t.Parallel()
	url, process := startProcess(t, "jetstream { store_dir: \"$DIR/js\" }\nlame_duck_duration: \"60s\"\nlame_duck_grace_period: \"30s\"")
	b := newBroker(t, url, nats.Config{Subject: "lame.{topic}", Stream: "LAME", CreateStream: &nats.StreamSettings{}})
	accepted(t, b.Publish(patient(t), messages(10, 2)))
	if err := process.Signal(syscall.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	// The old connection stays for 30 s, but a new one is tried, and there is no other server.
	await.Until(t, "the broker leaves", func() bool {
		batch := messages(10, 2)
		errs := b.Publish(patient(t), batch)
		brokertest.CheckOutcomes(t, batch, errs)
		for _, err := range errs {
			// The shutdown may come in the middle of a call: what was accepted before it was accepted.
			if err != nil && !errors.Is(err, outbox.ErrSkipped) && !outbox.IsUnavailable(err) {
				t.Fatalf("outcomes %v", errs)
			}
		}
		return errs != nil && errs[0] != nil && strings.Contains(errs[0].Error(), "connect")
	})
}

func TestTLSNeedsATrustedServer(t *testing.T) {
	t.Parallel()
	ours := authority.New(t)
	shown := ours.Server(t, "127.0.0.1")
	url := startServer(t,
		fmt.Sprintf("jetstream { store_dir: \"$DIR/js\" }\ntls { cert_file: %q, key_file: %q }", shown.File, shown.KeyFile))
	b := newBroker(t, url, nats.Config{})
	brokertest.CheckPing(t, b, "ca_file")
	b = newBroker(t, url, nats.Config{
		TLS: &tls.Config{RootCAs: ours.Pool()}, Subject: "tls.{topic}", Stream: "TLS", CreateStream: &nats.StreamSettings{},
	})
	accepted(t, b.Publish(patient(t), messages(200, 10)))
}

func TestRiskyStreamsAreNamedInTheLog(t *testing.T) {
	t.Parallel()
	s := newStream(t, servers.TestNATS(t).URL(), func(cfg *jetstream.StreamConfig) { cfg.Duplicates = time.Second })
	var log await.Buffer
	b := s.broker("", nats.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	accepted(t, b.Publish(patient(t), messages(1, 1)))
	await.Until(t, "the warnings are there", func() bool {
		text := log.String()
		return strings.Contains(text, "one replica") && strings.Contains(text, "duplicate window is short") &&
			strings.Contains(text, s.name)
	})
}

func TestFieldsOfTheSubject(t *testing.T) {
	t.Parallel()
	s := newStream(t, servers.TestNATS(t).URL())
	b := newBroker(t, s.url, nats.Config{Subject: s.name + ".{aggregate_type}.{aggregate_id}.{event_type}.{topic}.{key}"})
	m := message("", 1)
	m.AggregateType, m.AggregateID, m.EventType = "order", "7", "created"
	bad := message("", 1)
	errs := b.Publish(patient(t), []*outbox.Message{m, bad})
	if len(errs) != 2 || errs[0] != nil || !outbox.IsPermanent(errs[1]) {
		t.Fatalf("outcomes %v", errs)
	}
	if got := s.stored()[0].Subject; got != s.name+".order.7.created.t.7" {
		t.Errorf("subject %q", got)
	}
}

func TestCloseEndsAPingThatDials(t *testing.T) {
	t.Parallel()
	brokertest.ClosesWhileItDials(t, func(address string) (brokertest.Pinger, error) {
		return nats.New("nats://"+address, nats.Config{ConnectTimeout: time.Hour})
	})
}
