package pubsub_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/pubsub"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		// The client library that the benchmark compares with starts this one when it is imported.
		if err := goleak.Find(goleak.IgnoreTopFunction("go.opencensus.io/stats/view.(*worker).start")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// patience bounds what a test waits for. Nothing asserts that things are faster.
const patience = 2 * time.Minute

func patient(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

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
	b := open(f.t, f.Addr, cfg)
	f.t.Cleanup(func() {
		if err := b.Close(); err != nil {
			f.t.Error(err)
		}
	})
	return b
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
		var err error
		switch name {
		case "outbox-id":
			m.ID, err = outbox.ParseID(value)
		case "outbox-payload":
			m.Payload = nil
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
			return m, fmt.Errorf("attribute %s: %w", name, err)
		}
	}
	sortHeaders(&m)
	return m, nil
}

func sortHeaders(m *outbox.Message) {
	m.Headers = slices.Clone(m.Headers)
	slices.SortFunc(m.Headers, func(a, b outbox.Header) int { return strings.Compare(a.Name, b.Name) })
}

// numbered returns count messages to topic, dealt to keys in turn.
func numbered(topic string, count, keys int) []*outbox.Message {
	batch := make([]*outbox.Message, count)
	for i := range batch {
		batch[i] = &outbox.Message{
			ID:      outbox.NewID(),
			Topic:   topic,
			Key:     fmt.Sprintf("k-%d", i%keys),
			Payload: fmt.Appendf(nil, "%d", i/keys),
		}
	}
	return batch
}

func accepted(t testing.TB, errs []error) {
	t.Helper()
	for i, err := range errs {
		if err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
	}
}

func contains(t testing.TB, err error, parts ...string) {
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
