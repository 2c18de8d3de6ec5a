package kafka_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/consume"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/internal/lanes/lanestest"
	"github.com/pgoutbox/outbox/broker/kafka"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestAKafkaConsumerDoesWhatAConsumerMust(t *testing.T) {
	t.Parallel()
	c := connect(t, servers.TestKafka(t).Addr())
	lanestest.Run(t, lanestest.Harness{Ordered: true, Prefix: true, Source: func(t *testing.T) lanestest.Source {
		topic := c.topic(6)
		b := connectionless(t, c.seeds, kafka.Config{})
		t.Cleanup(func() { b.Close() })
		return lanestest.Source{
			Topic:   topic,
			Publish: b.Publish,
			Foreign: func(t *testing.T, key, id string) {
				client, err := kgo.NewClient(kgo.SeedBrokers(c.seeds...), kgo.DisableClientMetrics())
				if err != nil {
					t.Fatal(err)
				}
				defer client.Close()
				r := &kgo.Record{Topic: topic, Key: []byte(key), Value: []byte("1")}
				if id != "" {
					r.Headers = []kgo.RecordHeader{{Key: "outbox-id", Value: []byte(id)}}
				}
				if err := client.ProduceSync(patient(t), r).FirstErr(); err != nil {
					t.Fatal(err)
				}
			},
			Open: func(t *testing.T, cfg consume.Config, handler consume.Handler) lanestest.Consumer {
				consumer, err := kafka.NewConsumer(kafka.Config{Brokers: c.seeds}, kafka.ConsumerConfig{
					Group: topic, Topics: []string{topic}, SessionTimeout: 6 * time.Second,
					CommitInterval: 50 * time.Millisecond, Handling: cfg,
				}, handler)
				if err != nil {
					t.Fatal(err)
				}
				return consumer
			},
		}
	}})
}

func TestAMemberThatHasLostItsPartitionsCutsItsHandlersOffAndCommitsNothing(t *testing.T) {
	t.Parallel()
	c := connect(t, servers.TestKafka(t).Addr())
	topic := c.topic(1)
	accepted(t, c.broker(kafka.Config{}).Publish(patient(t), brokertest.Messages(topic, 1, 1)))
	began, cut := make(chan struct{}, 10), make(chan struct{}, 10)
	var calls atomic.Int64
	consumer, err := kafka.NewConsumer(kafka.Config{Brokers: c.seeds}, kafka.ConsumerConfig{
		Group: topic, Topics: []string{topic}, SessionTimeout: 6 * time.Second, CommitInterval: 20 * time.Millisecond,
		Handling: consume.Config{DrainTimeout: await.Patience},
	}, func(ctx context.Context, _ *outbox.Message) error {
		if calls.Add(1) > 1 {
			return nil
		}
		began <- struct{}{}
		<-ctx.Done()
		cut <- struct{}{}
		return nil // whatever it says: the partition is somebody else's
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- consumer.Run(ctx) }()
	<-began
	client, err := kgo.NewClient(kgo.SeedBrokers(c.seeds...), kgo.DisableClientMetrics())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	c.await("the member is thrown out of its group", func(ctx context.Context) error {
		described, err := c.admin.DescribeGroups(ctx, topic)
		if err != nil {
			return err
		}
		for _, member := range described[topic].Members {
			request := kmsg.NewPtrLeaveGroupRequest()
			request.Group, request.MemberID = topic, member.MemberID
			one := kmsg.NewLeaveGroupRequestMember()
			one.MemberID = member.MemberID
			request.Members = append(request.Members, one)
			if _, err := request.RequestWith(ctx, client); err != nil {
				return err
			}
		}
		return nil
	})
	select {
	case <-cut:
	case <-patient(t).Done():
		t.Fatal("the handler runs on, and the partition is lost")
	}
	c.await("the message comes again", func(context.Context) error {
		if calls.Load() < 2 {
			return errNotYet
		}
		return nil
	})
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

var errNotYet = errors.New("not yet")
