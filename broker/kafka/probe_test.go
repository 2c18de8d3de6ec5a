package kafka_test

import (
	"context"
	"net"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/kafka"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// only lets connections be made to these addresses.
func only(addresses ...string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		for _, a := range addresses {
			if a == address {
				var d net.Dialer
				return d.DialContext(ctx, network, address)
			}
		}
		host, _, _ := net.SplitHostPort(address)
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
}

func TestAProbeReachesTheServersThatTakeTheRecords(t *testing.T) {
	t.Parallel()
	f := newFake(t, kfake.NumBrokers(3), kfake.SeedTopics(6, "orders"))
	servers := f.ListenAddrs()
	for topic, test := range map[string]struct {
		reached []string
		fault   string
	}{
		"orders":  {servers[:1], "advertised.listeners"},
		"{topic}": {servers[:1], ""}, // one of the servers answers: topics may be there
	} {
		b := f.broker(kafka.Config{Brokers: servers[:1], Topic: topic, Dial: only(test.reached...)})
		err := b.Ping(patient(t))
		if test.fault == "" && err != nil || test.fault != "" && !outbox.IsUnavailable(err) {
			t.Errorf("%s: %v", topic, err)
		}
		if test.fault != "" {
			contains(t, err, test.fault, "no such host", "can be reached from here")
		}
	}
	for _, topic := range []string{"orders", "{topic}"} {
		if err := f.broker(kafka.Config{Brokers: servers[:1], Topic: topic}).Ping(patient(t)); err != nil {
			t.Errorf("%s, everything is there: %v", topic, err)
		}
	}
}

// The seed is the address of a proxy, and the cluster gives another one.
func TestAProbeNoticesAddressesThatNobodyKnows(t *testing.T) {
	t.Parallel()
	f := newFake(t, kfake.SeedTopics(1, "orders"))
	real := f.ListenAddrs()[0]
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		if address == "proxy:9092" {
			address = real
		} else {
			return only()(ctx, network, address)
		}
		return only(real)(ctx, network, address)
	}
	for _, topic := range []string{"orders", "{topic}"} {
		err := f.broker(kafka.Config{Brokers: []string{"proxy:9092"}, Topic: topic, Dial: dial}).Ping(patient(t))
		if !outbox.IsUnavailable(err) {
			t.Errorf("%s: %v", topic, err)
			continue
		}
		contains(t, err, real, "no such host", "advertised.listeners")
	}
}

func TestAProbeWantsTheTopicAndTheRightToWriteAndCreatesNothing(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	missing := f.broker(kafka.Config{Topic: "missing"})
	contains(t, missing.Ping(patient(t)), "missing", "doesn't exist", "--partitions 12")
	if err := f.broker(kafka.Config{Topic: "missing", CreateTopics: true}).Ping(patient(t)); err != nil {
		t.Errorf("a topic that the first message creates: %v", err)
	}
	if topics, err := f.admin.ListTopics(patient(t)); err != nil || topics.Has("missing") {
		t.Errorf("a probe has created a topic (%v)", err)
	}
	f.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		asked := req.(*kmsg.MetadataRequest)
		if len(asked.Topics) == 0 || !asked.IncludeTopicAuthorizedOperations {
			return nil, nil, false
		}
		resp := asked.ResponseKind().(*kmsg.MetadataResponse)
		topic := kmsg.NewMetadataResponseTopic()
		topic.Topic, topic.AuthorizedOperations = asked.Topics[0].Topic, 1<<kmsg.ACLOperationDescribe
		resp.Topics = append(resp.Topics, topic)
		return resp, nil, true
	})
	contains(t, f.broker(kafka.Config{Topic: "seen"}).Ping(patient(t)), "seen", "not permitted", "Write")
}
