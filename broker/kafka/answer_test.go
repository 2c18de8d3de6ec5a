package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/kafka"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The clock of this machine or of a server is wrong, or a topic has a small limit: no message is at fault, and other
// topics go on.
func TestAClockThatIsWrongIsAnOutageOfTheTopicsThatMindIt(t *testing.T) {
	t.Parallel()
	f := newFake(t, kfake.SeedTopics(2, "orders", "minutes"))
	b := f.broker(kafka.Config{})
	batch, others := brokertest.Messages("minutes", 50, 10), brokertest.Messages("orders", 10, 10)
	for i, m := range others {
		m.Key = fmt.Sprint("other ", i)
	}
	fault := f.Fault(kfake.Fault{Keys: produce, Topic: "minutes", Err: kerr.InvalidTimestamp, Count: -1})
	errs := b.Publish(patient(t), slices.Concat(batch, others))
	for i, err := range errs {
		switch kind := brokertest.Kind(err); {
		case i >= len(batch) && err != nil:
			t.Errorf("message %d of another topic: %v", i, err)
		case i < len(batch) && kind != "topic unavailable" && kind != "skipped":
			t.Errorf("message %d: %v", i, err)
		}
	}
	contains(t, errs[0], "INVALID_TIMESTAMP", "set both clocks right", "limit")
	if !outbox.IsUnavailable(errors.Unwrap(errs[0])) {
		t.Error("the message may be at fault")
	}
	if fault.Hits() > 4 {
		t.Errorf("%d requests to find out about a clock", fault.Hits())
	}
	fault.Remove()
	deliver(patient(t), t, b, batch)
	f.inOrder(t, batch, "minutes")
}

func TestAClockThatARealServerRefusesIsAnOutageOfItsTopic(t *testing.T) {
	t.Parallel()
	c := realCluster(t)
	topic := c.topic(1, "message.timestamp.before.max.ms", "1", "message.timestamp.after.max.ms", "1")
	b := c.broker(kafka.Config{Topic: topic, Dial: slow})
	for _, err := range b.Publish(patient(t), brokertest.Messages(topic, 20, 20)) {
		if !outbox.IsTopicUnavailable(err) {
			t.Fatalf("%v, want an outage of the topic", err)
		}
		contains(t, err, "clock")
	}
}

// slow makes records arrive some time after they were made.
func slow(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return slowConn{conn}, nil
}

type slowConn struct{ net.Conn }

func (c slowConn) Write(p []byte) (int, error) {
	time.Sleep(30 * time.Millisecond) // on the way
	return c.Conn.Write(p)
}

// Each record that a server refuses costs the client that sent it. So the adapter must know what is too large, though
// it may not read the limit, and must not look up the topic for each of them.
func TestRecordsThatAreTooLargeCostOneRefusal(t *testing.T) {
	t.Parallel()
	f := newFake(t, kfake.SeedTopics(1, "orders"))
	f.ControlKey(int16(kmsg.DescribeConfigs), func(req kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		resp := req.ResponseKind().(*kmsg.DescribeConfigsResponse)
		for _, asked := range req.(*kmsg.DescribeConfigsRequest).Resources {
			r := kmsg.NewDescribeConfigsResponseResource()
			r.ResourceName, r.ResourceType, r.ErrorCode = asked.ResourceName, asked.ResourceType, kerr.TopicAuthorizationFailed.Code
			resp.Resources = append(resp.Resources, r)
		}
		return resp, nil, true
	})
	refusals := f.Fault(kfake.Fault{Keys: produce, Err: kerr.MessageTooLarge, Count: -1, When: carrying("large")})
	b := f.broker(kafka.Config{})
	var stored []*outbox.Message
	for call := range 20 {
		batch := brokertest.Messages("orders", 20, 20)
		batch[call].Payload = fmt.Appendf(nil, "large %0*d", 3000+call, call)
		brokertest.CheckRefused(t, batch, b.Publish(patient(t), batch), call)
		for i, m := range batch {
			if i != call {
				stored = append(stored, m)
			}
		}
	}
	if n := refusals.Hits(); n > 15 {
		t.Errorf("the server was asked %d times about records that are too large", n)
	}
	got, err := f.messages(patient(t), "orders")
	if err != nil || len(got) != len(stored) {
		t.Errorf("%d of %d messages, %v", len(got), len(stored), err)
	}
}
