package pubsub_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/pubsub"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// The client library that the benchmark compares with starts this one when it is imported.
	known := goleak.IgnoreTopFunction("go.opencensus.io/stats/view.(*worker).start")
	os.Exit(brokertest.Leaks(m.Run(), known))
}

// What the tests of all brokers share.
var (
	patient  = brokertest.Patient
	accepted = brokertest.Accepted
	contains = brokertest.Contains
)

const project = "shop-4711"

func path(topic string) string { return "projects/" + project + "/topics/" + topic }

// fake is the client library's own imitation of the service.
type fake struct {
	*pstest.Server
	t testing.TB
}

func newFake(t testing.TB, options ...pstest.ServerReactorOption) *fake {
	t.Helper()
	f := &fake{pstest.NewServer(options...), t}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// topic creates a topic of the test's own.
func (f *fake) topic() string {
	f.t.Helper()
	topic := "t-" + outbox.NewID().String()
	if _, err := f.GServer.CreateTopic(patient(f.t), &pubsubpb.Topic{Name: path(topic)}); err != nil {
		f.t.Fatal(err)
	}
	return topic
}

func open(t testing.TB, addr string, cfg pubsub.Config) *pubsub.Broker {
	t.Helper()
	cfg.Project, cfg.Endpoint, cfg.Insecure = project, addr, true
	b, err := pubsub.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (f *fake) broker(cfg pubsub.Config) *pubsub.Broker {
	f.t.Helper()
	return brokertest.Opened(f.t, open(f.t, f.Addr, cfg), nil)
}

// read returns everything that was published to topics, in order.
func (f *fake) read(topics ...string) ([]outbox.Message, error) {
	var all []outbox.Message
	for _, got := range f.Messages() {
		topic := strings.TrimPrefix(got.Topic, path(""))
		if !slices.Contains(topics, topic) {
			continue
		}
		m, err := message(topic, got)
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

// message undoes the wire format, as a consumer would who follows its documentation.
func message(topic string, got *pstest.Message) (outbox.Message, error) {
	m := outbox.Message{Topic: topic, Key: got.OrderingKey, Payload: got.Data}
	if m.Payload == nil {
		m.Payload = []byte{}
	}
	for name, value := range got.Attributes {
		if name == "outbox-payload" {
			m.Payload = nil
		} else if err := brokertest.Attribute(&m, name, value); err != nil {
			return m, err
		}
	}
	brokertest.SortHeaders(&m)
	return m, nil
}
