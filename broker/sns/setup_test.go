package sns_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/amazon/amazontest"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/sns"
	"github.com/pgoutbox/outbox/internal/servers"
)

func TestMain(m *testing.M) { os.Exit(brokertest.Leaks(servers.Run(m))) }

// What the tests of all brokers share.
var (
	patient  = brokertest.Patient
	accepted = brokertest.Accepted
	contains = brokertest.Contains
)

// prefix is that of the ARNs of the server's only account.
const prefix = "arn:aws:sns:eu-central-1:123456789012:"

// account is a server with topics.
type account struct {
	t   testing.TB
	url string
	sns *sdk.Client
	sqs *sqs.Client
}

func connect(t testing.TB, url string) *account {
	t.Helper()
	cfg := amazontest.Client(t, url)
	return &account{t: t, url: url, sns: sdk.NewFromConfig(cfg), sqs: sqs.NewFromConfig(cfg)}
}

// topic creates a topic of the test's own and returns its name.
func (a *account) topic(end string) string {
	a.t.Helper()
	name := "t-" + outbox.NewID().String() + end
	attributes := map[string]string{}
	if end == ".fifo" {
		attributes["FifoTopic"] = "true"
	}
	if _, err := a.sns.CreateTopic(patient(a.t), &sdk.CreateTopicInput{Name: &name, Attributes: attributes}); err != nil {
		a.t.Fatal(err)
	}
	return name
}

// consumer receives what is published to one topic, all the time: the server is slow with full queues.
// The queue is a standard one, which this server keeps in order, and which shows repeats.
type consumer struct {
	account *account
	topic   string
	queue   *string
	reading sync.Mutex

	mu       sync.Mutex
	received []outbox.Message
	err      error
}

func (a *account) consume(topic string) *consumer {
	a.t.Helper()
	ctx := patient(a.t)
	queue := "t-" + outbox.NewID().String()
	created, err := a.sqs.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: &queue})
	if err != nil {
		a.t.Fatal(err)
	}
	_, err = a.sns.Subscribe(ctx, &sdk.SubscribeInput{
		TopicArn: aws.String(prefix + topic), Protocol: aws.String("sqs"),
		Endpoint:   aws.String(strings.Replace(prefix, "sns", "sqs", 1) + queue),
		Attributes: map[string]string{"RawMessageDelivery": "true"},
	})
	if err != nil {
		a.t.Fatal(err)
	}
	c := &consumer{account: a, topic: topic, queue: created.QueueUrl}
	stop, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for stop.Err() == nil {
			if n, err := c.step(stop); err != nil || n == 0 {
				select { // a pause of the consumer; a server that is down or frozen is tried again
				case <-stop.Done():
				case <-time.After(20 * time.Millisecond):
				}
			}
		}
	})
	a.t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return c
}

// step receives and removes up to ten messages.
func (c *consumer) step(ctx context.Context) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	got, err := c.account.sqs.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
		QueueUrl: c.queue, MaxNumberOfMessages: 10, MessageAttributeNames: []string{"All"}, VisibilityTimeout: 600,
	})
	if err != nil || len(got.Messages) == 0 {
		return 0, err
	}
	var done []types.DeleteMessageBatchRequestEntry
	for i := range got.Messages {
		m, err := amazontest.Message("", &got.Messages[i])
		c.mu.Lock()
		c.received = append(c.received, m)
		if err != nil {
			c.err = err
		}
		c.mu.Unlock()
		done = append(done,
			types.DeleteMessageBatchRequestEntry{Id: aws.String(fmt.Sprint(i)), ReceiptHandle: got.Messages[i].ReceiptHandle})
	}
	_, err = c.account.sqs.DeleteMessageBatch(ctx, &sqs.DeleteMessageBatchInput{QueueUrl: c.queue, Entries: done})
	return len(done), err
}

// read returns everything that was published by now.
func (c *consumer) read(ctx context.Context) ([]outbox.Message, error) {
	for {
		n, err := c.step(ctx)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			break
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.received), c.err
}

func open(t testing.TB, url string, cfg sns.Config) *sns.Broker {
	t.Helper()
	cfg.Endpoint = url
	if cfg.AWS == nil {
		cfg.AWS = amazontest.Anyone()
	}
	if cfg.Topic == "" {
		cfg.Topic = prefix + "{topic}.fifo"
	}
	b, err := sns.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (a *account) broker(cfg sns.Config) *sns.Broker {
	a.t.Helper()
	return brokertest.Opened(a.t, open(a.t, a.url, cfg), nil)
}
