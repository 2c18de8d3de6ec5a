package nats_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
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

func TestMain(m *testing.M) { os.Exit(brokertest.Leaks(servers.Run(m))) }

// What the tests of all brokers share.
var (
	patient  = brokertest.Patient
	accepted = brokertest.Accepted
)

// message returns a message of the topic "t" with n as payload.
func message(key string, n int) *outbox.Message { return brokertest.Message("t", key, n) }

// messages returns n messages of the topic "t" that go round over keys.
func messages(n, keys int) []*outbox.Message { return brokertest.Messages("t", n, keys) }

// stream is a stream of a test's own, with the subjects "<name>.>".
type stream struct {
	t    testing.TB
	url  string
	name string
	js   jetstream.JetStream
}

var streams atomic.Int64

func newStream(t testing.TB, url string, change ...func(*jetstream.StreamConfig)) *stream {
	t.Helper()
	s := &stream{t: t, url: url, name: fmt.Sprintf("S%d_%d", os.Getpid(), streams.Add(1)), js: jetStream(t, url)}
	cfg := jetstream.StreamConfig{Name: s.name, Subjects: []string{s.name + ".>"}, Duplicates: time.Minute * 2}
	for _, c := range change {
		c(&cfg)
	}
	if _, err := s.js.CreateStream(patient(t), cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), await.Expiry(5*time.Second))
		defer cancel()
		s.js.DeleteStream(ctx, s.name) // the server may be gone on purpose
	})
	return s
}

func jetStream(t testing.TB, url string, options ...natsgo.Option) jetstream.JetStream {
	t.Helper()
	nc, err := natsgo.Connect(url,
		append([]natsgo.Option{natsgo.MaxReconnects(-1), natsgo.ReconnectWait(20 * time.Millisecond)}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// broker publishes to s, through url if that is not empty.
func (s *stream) broker(url string, cfg nats.Config) *nats.Broker {
	s.t.Helper()
	if url == "" {
		url = s.url
	}
	cfg.Subject = s.name + ".{topic}"
	return newBroker(s.t, url, cfg)
}

func newBroker(t testing.TB, url string, cfg nats.Config) *nats.Broker {
	t.Helper()
	b, err := nats.New(url, cfg)
	return brokertest.Opened(t, b, err)
}

// stored returns everything in the stream, in order.
func (s *stream) stored() []*jetstream.RawStreamMsg {
	s.t.Helper()
	ctx := patient(s.t)
	st, err := s.js.Stream(ctx, s.name)
	if err != nil {
		s.t.Fatal(err)
	}
	state := st.CachedInfo().State
	var all []*jetstream.RawStreamMsg
	for seq := state.FirstSeq; seq <= state.LastSeq; seq++ {
		m, err := st.GetMsg(ctx, seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		if err != nil {
			s.t.Fatal(err)
		}
		all = append(all, m)
	}
	return all
}

// storedIDs returns the message ids in the stream, in order.
func (s *stream) storedIDs() []string {
	s.t.Helper()
	var ids []string
	for _, m := range s.stored() {
		ids = append(ids, m.Header.Get(natsgo.MsgIdHdr))
	}
	return ids
}

func ids(batch []*outbox.Message) []string {
	var ids []string
	for _, m := range batch {
		ids = append(ids, m.ID.String())
	}
	return ids
}

// checkOrder verifies that of every key the messages were first stored in the order of batch, none is
// missing, and none stored twice.
func checkOrder(t testing.TB, batch []*outbox.Message, stored []*jetstream.RawStreamMsg) {
	t.Helper()
	var all []outbox.Message
	for _, m := range stored {
		id, err := outbox.ParseID(m.Header.Get(natsgo.MsgIdHdr))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, outbox.Message{ID: id, Key: m.Header.Get("Outbox-Key"), Payload: m.Data})
	}
	if repeats := brokertest.CheckOrder(t, batch, all); repeats > 0 {
		t.Errorf("%d messages are stored twice", repeats)
	}
}

// startServer runs a nats-server with a configuration of the test's own.
func startServer(t testing.TB, config string) (url string) {
	t.Helper()
	url, _ = startProcess(t, config)
	return url
}

func startProcess(t testing.TB, config string) (url string, process *os.Process) {
	t.Helper()
	path, err := servers.FindNATS()
	if err != nil {
		servers.TestNATS(t) // says what to install, and skips or fails
		t.Fatal(err)
	}
	dir := t.TempDir()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := listener.Addr().String()
	listener.Close()
	file := filepath.Join(dir, "nats.conf")
	config = fmt.Sprintf("listen: %q\nlogfile: %q\n%s\n", addr, filepath.Join(dir, "log"), config)
	config = os.Expand(config, func(name string) string { return map[string]string{"DIR": dir}[name] })
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "-c", file)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	await.Until(t, "the server listens", func() bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return "nats://" + addr, cmd.Process
}
