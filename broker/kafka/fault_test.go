package kafka_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/kafka"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// fake is a Kafka whose faults can be scripted.
type fake struct {
	*kfake.Cluster
	*cluster
}

func newFake(t testing.TB, options ...kfake.Opt) fake {
	t.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1)}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return fake{c, connect(t, c.ListenAddrs()...)}
}

var produce = []kmsg.Key{kmsg.Produce}

// carrying matches produce requests with a record that contains text.
func carrying(text string) func(kmsg.Request) bool {
	return func(req kmsg.Request) bool {
		for _, topic := range req.(*kmsg.ProduceRequest).Topics {
			for _, partition := range topic.Partitions {
				if bytes.Contains(partition.Records, []byte(text)) {
					return true
				}
			}
		}
		return false
	}
}

// deliver publishes batch again and again, as the engine does, until all of it is accepted. It checks
// that nothing is accepted behind a failed message of its key.
func deliver(ctx context.Context, t testing.TB, b *kafka.Broker, batch []*outbox.Message) {
	t.Helper()
	pending := slices.Clone(batch)
	for len(pending) > 0 {
		errs := b.Publish(ctx, pending)
		if errs == nil {
			return
		}
		failed := map[string]bool{}
		var left []*outbox.Message
		for i, err := range errs {
			if err != nil {
				failed[pending[i].Key] = true
				left = append(left, pending[i])
				if outbox.IsPermanent(err) {
					t.Fatalf("message %d was refused for good: %v", i, err)
				}
			} else if failed[pending[i].Key] {
				t.Fatalf("message %d was accepted behind a failed one", i)
			}
		}
		if pending = left; ctx.Err() != nil {
			t.Fatalf("%d messages not delivered: %v", len(pending),
				errs[slices.IndexFunc(errs, func(err error) bool { return err != nil })])
		}
	}
}

// inOrder requires that records of topics show the messages' first appearances in order of each key,
// and all of them.
func (c *cluster) inOrder(t testing.TB, batch []*outbox.Message, topics ...string) (repeats int) {
	t.Helper()
	got, err := c.messages(patient(t), topics...)
	if err != nil {
		t.Fatal(err)
	}
	repeats = brokertest.CheckOrder(t, batch, got)
	if len(got)-repeats != len(batch) {
		t.Fatalf("%d of %d messages seen", len(got)-repeats, len(batch))
	}
	return repeats
}

func TestABatchThatFailsForGoodStopsItsKeysAlone(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	topic := "orders"
	if err := f.CreateTopic(topic, 3, map[string]string{"max.message.bytes": "2000"}); err != nil { // many batches
		t.Fatal(err)
	}
	b := f.broker(kafka.Config{})
	first := brokertest.Messages(topic, 300, 12)
	accepted(t, b.Publish(patient(t), first))

	f.Fault(kfake.Fault{Keys: produce, Topic: topic, Partitions: []int32{1}, Err: kerr.PolicyViolation, When: skip(2)})
	second := brokertest.Messages(topic, 600, 12)
	errs := b.Publish(patient(t), second)
	failed, stored := map[string]error{}, 0
	for i, err := range errs {
		key := second[i].Key
		switch before := failed[key]; {
		case err == nil && before != nil:
			t.Fatalf("message %d was accepted behind one that failed with: %v", i, before)
		case err == nil:
			stored++
		case before == nil && !errors.Is(err, kerr.PolicyViolation):
			t.Fatalf("message %d: %v", i, err)
		case before != nil && !errors.Is(err, outbox.ErrSkipped):
			t.Fatalf("message %d is behind a failed one: %v", i, err)
		case before == nil:
			failed[key] = err
		}
	}
	if len(failed) == 0 || len(failed) == 12 || stored < 300 {
		t.Errorf("%d of 12 keys failed, %d of 600 messages were accepted", len(failed), stored)
	}
	var left []*outbox.Message
	for i, err := range errs {
		if err != nil {
			left = append(left, second[i])
		}
	}
	accepted(t, b.Publish(patient(t), left))
	if repeats := f.inOrder(t, append(first, second...), topic); repeats != 0 {
		t.Errorf("%d repeats, though every answer arrived", repeats)
	}
}

// skip lets the first n requests pass.
func skip(n int) func(kmsg.Request) bool {
	seen := 0
	return func(kmsg.Request) bool { seen++; return seen > n }
}

func TestAFailureStopsItsKeyInOtherTopics(t *testing.T) {
	t.Parallel()
	f := newFake(t, kfake.SeedTopics(2, "a", "b"))
	b := f.broker(kafka.Config{})
	batch := brokertest.Messages("a", 40, 4)
	for i := range batch {
		if i >= 20 { // every key changes to b once
			batch[i].Topic = "b"
		}
	}
	f.Fault(kfake.Fault{Keys: produce, Topic: "a", Partitions: []int32{0}, Err: kerr.TopicAuthorizationFailed, Count: 1})
	errs := b.Publish(patient(t), batch)
	for i := range batch[:20] {
		for j := 20; j < 40; j++ {
			if batch[i].Key == batch[j].Key && (errs[i] == nil) != (errs[j] == nil) {
				t.Errorf("key %s: message %d of the first topic: %v; message %d of the second: %v", batch[i].Key, i, errs[i], j, errs[j])
			}
		}
	}
	deliver(patient(t), t, b, slices.DeleteFunc(slices.Clone(batch), func(m *outbox.Message) bool {
		return errs[slices.Index(batch, m)] == nil
	}))
	f.inOrder(t, batch[:20], "a")
	f.inOrder(t, batch[20:], "b")
}

func TestTheRecordThatAServerCallsInvalidIsFound(t *testing.T) {
	t.Parallel()
	f := newFake(t, kfake.SeedTopics(1, "orders"))
	b := f.broker(kafka.Config{})
	batch := brokertest.Messages("orders", 2000, 40)
	batch[700].Payload = []byte("poison")  // key k-20
	batch[1501].Payload = []byte("poison") // key k-21
	f.Fault(kfake.Fault{Keys: produce, Err: kerr.InvalidRecord, Count: -1, When: carrying("poison")})
	errs := b.Publish(patient(t), batch)
	var stored []*outbox.Message
	for i, m := range batch {
		switch behind := m.Key == "k-20" && i > 700 || m.Key == "k-21" && i > 1501; {
		case i == 700 || i == 1501:
			if !outbox.IsPermanent(errs[i]) {
				t.Errorf("message %d: %v", i, errs[i])
			}
			contains(t, errs[i], "orders", "INVALID_RECORD")
		case behind:
			if !errors.Is(errs[i], outbox.ErrSkipped) {
				t.Errorf("message %d: %v", i, errs[i])
			}
		case errs[i] != nil:
			t.Fatalf("message %d: %v", i, errs[i])
		default:
			stored = append(stored, m)
		}
	}
	f.inOrder(t, stored, "orders")
}

func TestTheSearchForInvalidRecordsIsBounded(t *testing.T) {
	t.Parallel()
	f := newFake(t, kfake.SeedTopics(1, "orders"))
	b := f.broker(kafka.Config{})
	batch := brokertest.Messages("orders", 400, 400)
	requests := f.Fault(kfake.Fault{Keys: produce, Err: kerr.InvalidRecord, Count: -1})
	refused := 0
	for i, err := range b.Publish(patient(t), batch) {
		switch {
		case outbox.IsPermanent(err):
			contains(t, err, "INVALID_RECORD")
			refused++
		case !errors.Is(err, outbox.ErrSkipped): // what is undecided costs no attempt
			t.Fatalf("message %d: %v", i, err)
		}
	}
	if refused == 0 || refused == len(batch) || requests.Hits() > 150 {
		t.Errorf("%d messages found by %d requests", refused, requests.Hits())
	}
}

func TestNothingIsLostOrInvertedByRandomFaults(t *testing.T) {
	t.Parallel()
	seeds := uint64(12)
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 4711))
			f := newFake(t)
			var topics []string
			for _, name := range []string{"a", "b"} {
				if err := f.CreateTopic(name, 2, map[string]string{"max.message.bytes": "3000"}); err != nil {
					t.Fatal(err)
				}
				topics = append(topics, name)
			}
			// Whether these mean stored, not stored or unknown is for the adapter and its library to know.
			kinds := []*kerr.Error{
				kerr.NotEnoughReplicas, kerr.NotEnoughReplicasAfterAppend, kerr.RequestTimedOut, kerr.NotLeaderForPartition,
				kerr.OutOfOrderSequenceNumber, kerr.UnknownProducerID, kerr.PolicyViolation, kerr.TopicAuthorizationFailed,
				kerr.KafkaStorageError, kerr.UnknownServerError, kerr.UnknownTopicOrPartition, kerr.InvalidProducerEpoch,
			}
			for _, kind := range kinds {
				sometimes := rand.New(rand.NewPCG(seed, uint64(kind.Code)))
				f.Fault(kfake.Fault{Keys: produce, Topic: topics[random.IntN(2)],
					Partitions: []int32{random.Int32N(2)}, Err: kind, Count: 6,
					When: func(kmsg.Request) bool { return sometimes.IntN(4) == 0 }})
			}
			cut := &cuts{chance: 0.02, random: random}
			b := f.broker(kafka.Config{Dial: cut.dial, Clients: 2, Unanswered: await.Expiry(2 * time.Second)})
			var wg sync.WaitGroup
			var sent [3][]*outbox.Message
			for i := range sent {
				for _, m := range brokertest.Messages(topics[i%2], 1200, 8) {
					m.Key = fmt.Sprintf("%d-%s", i, m.Key)
					sent[i] = append(sent[i], m)
				}
				wg.Go(func() {
					for part := range slices.Chunk(sent[i], 150) {
						deliver(patient(t), t, b, part)
					}
				})
			}
			wg.Wait()
			if t.Failed() {
				return
			}
			cut.stop.Store(true)
			f.inOrder(t, slices.Concat(sent[0], sent[2]), "a")
			f.inOrder(t, sent[1], "b")
		})
	}
}

// cuts breaks connections before answers are read that the server has sent: it has done what was asked.
type cuts struct {
	chance float64
	stop   atomic.Bool

	mu     sync.Mutex
	random *rand.Rand
}

func (c *cuts) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	return cutConn{conn, c}, err
}

type cutConn struct {
	net.Conn
	cuts *cuts
}

func (c cutConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.cuts.mu.Lock()
	now := c.cuts.random.Float64() < c.cuts.chance
	c.cuts.mu.Unlock()
	if now && err == nil && !c.cuts.stop.Load() {
		c.Conn.Close()
		return 0, io.EOF
	}
	return n, err
}

func TestACallEndsWhenNothingIsAcknowledged(t *testing.T) {
	t.Parallel()
	f := newFake(t, kfake.SeedTopics(1, "orders"))
	b := f.broker(kafka.Config{Unanswered: await.Expiry(time.Second)})
	deliver(patient(t), t, b, brokertest.Messages("orders", 10, 2))
	fault := f.Fault(kfake.Fault{Keys: produce, Err: kerr.NotEnoughReplicas, Count: -1})
	batch := brokertest.Messages("orders", 10, 2)
	for i, err := range b.Publish(patient(t), batch) {
		if !outbox.IsUnavailable(err) {
			t.Errorf("message %d: %v", i, err)
		}
		contains(t, err, f.seeds[0], "for 1s")
	}
	fault.Remove()
	deliver(patient(t), t, b, batch)
}

func TestCallsBeyondTheNumberOfClientsWait(t *testing.T) {
	t.Parallel()
	f := newFake(t, kfake.SeedTopics(1, "orders"))
	b := f.broker(kafka.Config{Clients: 1})
	accepted(t, b.Publish(patient(t), brokertest.Messages("orders", 1, 1)))
	fault := f.Fault(kfake.Fault{Keys: produce, Err: kerr.NotEnoughReplicas, Count: -1})
	first, second := brokertest.Messages("orders", 5, 1), brokertest.Messages("orders", 5, 1)
	done := make(chan []error, 1)
	go func() { done <- b.Publish(patient(t), first) }()
	if err := fault.Wait(patient(t), 1); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), await.Expiry(50*time.Millisecond))
	defer cancel()
	for _, err := range b.Publish(ctx, second) {
		if !outbox.IsUnavailable(err) {
			t.Errorf("while the only client is taken: %v", err)
		}
		contains(t, err, "not sent", "other calls")
	}
	fault.Remove()
	accepted(t, <-done)
	accepted(t, b.Publish(patient(t), second))
}

func TestAnUnreachableClusterIsNamedWithTheCause(t *testing.T) {
	t.Parallel()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	b := connectionless(t, []string{address}, kafka.Config{Unanswered: await.Expiry(3 * time.Second)})
	defer b.Close()
	brokertest.CheckOutage(t, b, brokertest.Messages("orders", 2, 2), address, "connection refused")
}

func TestATopicThatGoesAwayIsAnErrorUntilItIsBack(t *testing.T) {
	t.Parallel()
	f := newFake(t, kfake.SeedTopics(2, "orders", "other"))
	b := f.broker(kafka.Config{})
	batch := append(brokertest.Messages("orders", 10, 5), brokertest.Messages("other", 10, 10)[5:]...)
	accepted(t, b.Publish(patient(t), batch))
	if err := f.DeleteTopic("orders"); err != nil {
		t.Fatal(err)
	}
	for range 2 { // found while sending, and then before
		errs := b.Publish(patient(t), batch)
		if len(errs) != len(batch) {
			t.Fatalf("result %v", errs)
		}
		for i, m := range batch {
			if m.Topic == "other" {
				if errs[i] != nil {
					t.Errorf("message %d to the other topic: %v", i, errs[i])
				}
			} else if i < 5 && !outbox.IsTopicUnavailable(errs[i]) {
				t.Errorf("message %d: %v", i, errs[i])
			} else if i < 5 {
				contains(t, errs[i], "orders", "doesn't exist", "--bootstrap-server", "--create --topic", "create_topics: true")
			}
		}
	}
	if err := f.CreateTopic("orders", 2, nil); err != nil {
		t.Fatal(err)
	}
	deliver(patient(t), t, b, batch)
	f.inOrder(t, batch[:10], "orders")
}

func TestMissingRightsAreNamed(t *testing.T) {
	t.Parallel()
	allow := func(name string, operation kmsg.ACLOperation) kfake.ACL {
		return kfake.ACL{Resource: kmsg.ACLResourceTypeTopic,
			Name: name, Pattern: kmsg.ACLResourcePatternTypeLiteral, Operation: operation, Allow: true}
	}
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "mine", "readonly", "secret"),
		kfake.EnableSASL(), kfake.EnableACLs(),
		kfake.Superuser("PLAIN", "admin", "admin-password"),
		kfake.User("PLAIN", "relay", "relay-password",
			allow("mine", kmsg.ACLOperationWrite), allow("mine", kmsg.ACLOperationDescribe), allow("readonly", kmsg.ACLOperationDescribe)))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b := connectionless(t, c.ListenAddrs(), kafka.Config{SASL: &kafka.SASL{Mechanism: "plain", User: "relay", Password: "relay-password"}})
	defer b.Close()
	batch := append(brokertest.Messages("mine", 4, 4), brokertest.Messages("readonly", 8, 8)[4:]...)
	batch = append(batch, brokertest.Messages("secret", 12, 12)[8:]...)
	for i, err := range b.Publish(patient(t), batch) {
		switch topic := batch[i].Topic; {
		case topic == "mine":
			if err != nil {
				t.Errorf("message %d to %s: %v", i, topic, err)
			}
		case err == nil || outbox.IsPermanent(err) || outbox.IsUnavailable(err):
			t.Errorf("message %d to %s: %v", i, topic, err)
		default:
			contains(t, err, topic)
		}
	}
}

func TestCredentialsAreCheckedAndKeptSecret(t *testing.T) {
	t.Parallel()
	for i, mechanism := range []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"} {
		t.Run(mechanism, func(t *testing.T) {
			t.Parallel()
			c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders"), kfake.EnableSASL(),
				kfake.Superuser("PLAIN", "relay", "right-1"), kfake.Superuser("SCRAM-SHA-256", "relay", "right-2"),
				kfake.Superuser("SCRAM-SHA-512", "relay", "right-3"))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			right := &kafka.SASL{Mechanism: mechanism, User: "relay", Password: fmt.Sprint("right-", i+1)}
			wrong := &kafka.SASL{Mechanism: mechanism, User: "relay", Password: "wr0ng-secret"}
			good := connectionless(t, c.ListenAddrs(), kafka.Config{SASL: right})
			defer good.Close()
			accepted(t, good.Publish(patient(t), brokertest.Messages("orders", 3, 1)))
			bad := connectionless(t, c.ListenAddrs(), kafka.Config{SASL: wrong, Unanswered: 10 * time.Second})
			defer bad.Close()
			for _, err := range append(bad.Publish(patient(t), brokertest.Messages("orders", 3, 3)), bad.Ping(patient(t))) {
				if !outbox.IsUnavailable(err) {
					t.Errorf("not unavailable: %v", err)
				}
				contains(t, err, "credentials")
				if strings.Contains(err.Error(), "wr0ng") {
					t.Errorf("the password is in the error: %v", err)
				}
			}
			for _, shown := range []string{fmt.Sprint(*wrong), fmt.Sprintf("%+v %#v", wrong, wrong), wrong.LogValue().String()} {
				if strings.Contains(shown, "wr0ng") {
					t.Errorf("the password is shown: %s", shown)
				}
			}
		})
	}
}

// late is a context whose deadline has passed and that hasn't noticed yet.
type late struct{ context.Context }

func (late) Deadline() (time.Time, bool) { return time.Unix(1, 0), true }

func TestRefusedCredentialsAreNamedAlthoughTheCallEndsWhileItConnects(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.EnableSASL(), kfake.Superuser("PLAIN", "relay", "right"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, noticed := range []bool{true, false} {
		var dials atomic.Int32
		ctx, end := context.WithCancel(patient(t))
		defer end()
		b := connectionless(t, c.ListenAddrs(), kafka.Config{
			SASL: &kafka.SASL{Mechanism: "PLAIN", User: "relay", Password: "wr0ng"},
			Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
				if dials.Add(1) == 1 {
					return new(net.Dialer).DialContext(context.WithoutCancel(ctx), network, address)
				}
				if noticed {
					end()
					<-ctx.Done()
				}
				return nil, &net.OpError{Op: "dial", Net: network, Err: os.ErrDeadlineExceeded}
			}})
		defer b.Close()
		call := ctx
		if !noticed {
			call = late{ctx}
		}
		contains(t, b.Ping(call), "credentials")
	}
}

func TestAServerThatRefusesCredentialsIsQuoted(t *testing.T) {
	t.Parallel()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders"),
		kfake.EnableSASL(), kfake.Superuser("PLAIN", "relay", "right"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// As Kafka does it; kfake itself closes the connection.
	c.ControlKey(int16(kmsg.SASLAuthenticate), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		resp := req.ResponseKind().(*kmsg.SASLAuthenticateResponse)
		resp.ErrorCode = kerr.SaslAuthenticationFailed.Code
		return resp, nil, true
	})
	b := connectionless(t, c.ListenAddrs(),
		kafka.Config{SASL: &kafka.SASL{Mechanism: "PLAIN", User: "relay", Password: "wr0ng-secret"}, Unanswered: 10 * time.Second})
	defer b.Close()
	brokertest.CheckOutage(t, b, brokertest.Messages("orders", 3, 3), "SASL_AUTHENTICATION_FAILED")
}

func TestTLSIsUsedWhenConfigured(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	web := httptest.NewUnstartedServer(nil) // for its certificate
	web.StartTLS()
	defer web.Close()
	trusted := x509.NewCertPool()
	trusted.AddCert(web.Certificate())
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders"), kfake.TLS(web.TLS))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b := connectionless(t, c.ListenAddrs(), kafka.Config{TLS: &tls.Config{RootCAs: trusted}})
	defer b.Close()
	accepted(t, b.Publish(patient(t), brokertest.Messages("orders", 3, 3)))
	for name, cfg := range map[string]kafka.Config{
		"none at our side":    {},
		"unknown certificate": {TLS: &tls.Config{}},
	} {
		b := connectionless(t, c.ListenAddrs(), cfg)
		defer b.Close()
		for _, err := range b.Publish(patient(t), brokertest.Messages("orders", 3, 3)) {
			if !outbox.IsUnavailable(err) {
				t.Errorf("%s: %v", name, err)
			}
			contains(t, err, map[bool]string{true: "TLS", false: "certificate"}[cfg.TLS == nil])
		}
	}
}
