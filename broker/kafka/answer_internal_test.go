package kafka

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestThePageHasTheKindOfEveryCode(t *testing.T) {
	t.Parallel()
	b, err := New(Config{Brokers: []string{"127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	answers := brokertest.Answers{
		"any other code": b.topicError("t", kerr.BrokerIDNotRegistered),
		"any other code that the protocol says to retry": outbox.Unavailable(b.down(kerr.NotEnoughReplicas)),
	}
	for code := int16(1); ; code++ {
		answer := kerr.TypedErrorForCode(code)
		if answer == kerr.UnknownServerError {
			break
		}
		name := fmt.Sprintf("`%s`", answer.Message)
		_, listed := verdicts[answer]
		own := slices.Contains([]*kerr.Error{kerr.TopicAuthorizationFailed, kerr.InvalidTopicException, kerr.PolicyViolation,
			kerr.UnsupportedForMessageFormat, kerr.InvalidConfig, kerr.InvalidTimestamp}, answer)
		if !listed && !own {
			if answer.Retriable && verdictOn(answer) != unknownOutcome {
				t.Errorf("%s is to be retried, and taken for a fault of a topic", name)
			}
			continue
		}
		switch verdictOn(answer) {
		case topicFailed, topicGone:
			answers[name] = b.topicError("t", answer)
		case batchRefused:
			answers[name] = outbox.Permanent(answer) // the record that the search finds
		case unknownOutcome:
			answers[name] = outbox.Unavailable(b.down(answer))
		}
	}
	answers["`UNKNOWN_SERVER_ERROR`"] = outbox.Unavailable(b.down(kerr.UnknownServerError))
	answers.Page(t, "../../docs/brokers", "kafka.md", "codes")
}

func TestTheAdviceFitsTheAnswer(t *testing.T) {
	t.Parallel()
	b := &cluster{cfg: Config{Brokers: []string{"kafka-1:9092"}}}
	for said, advice := range map[error]string{
		kerr.IllegalSaslState:           "port takes no authentication by SASL",
		kerr.ClusterAuthorizationFailed: "IdempotentWrite",
		fmt.Errorf("invalid large response size 1375731712 > limit 104857600"): "doesn't speak Kafka's protocol",
	} {
		brokertest.Contains(t, b.down(said), "kafka-1:9092", said.Error(), advice)
	}
	brokertest.Contains(t, b.topicError("orders", kerr.UnknownTopicOrPartition), "--create --topic orders --partitions 12")
	b.cfg.Partitions, b.cfg.ReplicationFactor = 3, 2
	brokertest.Contains(t, b.topicError("orders", kerr.UnknownTopicOrPartition), "--partitions 3 --replication-factor 2")
}

// withFake returns a broker for a cluster of this process, with the topic "orders".
func withFake(t *testing.T) (*Broker, *kfake.Cluster) {
	t.Helper()
	f, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	if err := f.CreateTopic("orders", 1, map[string]string{"max.message.bytes": "2000"}); err != nil {
		t.Fatal(err)
	}
	b, err := New(Config{Brokers: f.ListenAddrs()})
	return brokertest.Opened(t, b, err), f
}

func TestALimitIsReadAgainOnceForAllThatIsTooLarge(t *testing.T) {
	t.Parallel()
	b, f := withFake(t)
	brokertest.Accepted(t, b.Publish(brokertest.Patient(t), brokertest.Messages("orders", 1, 1)))
	old := *(*b.topics.Load())["orders"]
	old.checked = time.Now().Add(-time.Hour)
	b.topics.Store(&topics{"orders": &old})
	before := b.currentGeneration()
	looks := f.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.DescribeConfigs}, Observe: true, Count: -1})
	batch := brokertest.Messages("orders", 40, 40)
	for _, m := range batch[:30] {
		m.Payload = make([]byte, 3000)
	}
	for i, err := range b.Publish(brokertest.Patient(t), batch) {
		if i < 30 != outbox.IsPermanent(err) || i >= 30 && err != nil {
			t.Errorf("message %d: %v", i, err)
		}
	}
	if looks.Hits() != 1 || b.currentGeneration() != before {
		t.Errorf("the topic was looked up %d times, clients were given up: %v", looks.Hits(), b.currentGeneration() != before)
	}
}

// What one call finds out about a topic must not be lost because another one forgets it.
func TestATopicIsNotMissingBecauseAnotherCallForgetsIt(t *testing.T) {
	t.Parallel()
	b, _ := withFake(t)
	ctx, stop := context.WithCancel(brokertest.Patient(t))
	var forgetting sync.WaitGroup
	for range 4 {
		forgetting.Go(func() {
			for ctx.Err() == nil {
				b.forget("orders")
			}
		})
	}
	for range 3000 {
		c := call{seat: newSeat(&b.cluster), ctx: ctx, batch: brokertest.Messages("orders", 1, 1)}
		c.plan.reset(1)
		c.resolve()
		if err := c.unfit(0); err != nil {
			t.Errorf("the topic is there: %v", err)
			break
		}
	}
	stop()
	forgetting.Wait()
}
