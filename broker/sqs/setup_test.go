package sqs_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/amazon/amazontest"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/sqs"
	"github.com/pgoutbox/outbox/internal/servers"
)

func TestMain(m *testing.M) { os.Exit(brokertest.Leaks(servers.Run(m))) }

// What the tests of all brokers share.
var (
	patient  = brokertest.Patient
	accepted = brokertest.Accepted
	contains = brokertest.Contains
)

// account is a server with queues, seen by a consumer.
type account struct {
	t      testing.TB
	url    string
	client *sdk.Client

	mu       sync.Mutex
	received map[string][]outbox.Message // by queue
}

func connect(t testing.TB, url string) *account {
	t.Helper()
	cfg := amazontest.Client(t, url)
	return &account{t: t, url: url, client: sdk.NewFromConfig(cfg), received: map[string][]outbox.Message{}}
}

// queue creates a queue of the test's own and returns its name.
func (a *account) queue(end string, settings ...string) string {
	a.t.Helper()
	name := "t-" + outbox.NewID().String() + end
	attributes := map[string]string{"VisibilityTimeout": "600"}
	if end == ".fifo" {
		attributes["FifoQueue"] = "true"
	}
	for i := 0; i < len(settings); i += 2 {
		attributes[settings[i]] = settings[i+1]
	}
	if _, err := a.client.CreateQueue(patient(a.t), &sdk.CreateQueueInput{QueueName: &name, Attributes: attributes}); err != nil {
		a.t.Fatal(err)
	}
	return name
}

func (a *account) broker(cfg sqs.Config) *sqs.Broker {
	a.t.Helper()
	return brokertest.Opened(a.t, open(a.t, a.url, cfg), nil)
}

func open(t testing.TB, url string, cfg sqs.Config) *sqs.Broker {
	t.Helper()
	cfg.Endpoint = url
	if cfg.AWS == nil {
		cfg.AWS = amazontest.Anyone()
	}
	b, err := sqs.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// read receives what is in the queues, removes it, and returns everything that was received so far.
func (a *account) read(ctx context.Context, queues ...string) ([]outbox.Message, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []outbox.Message
	for _, name := range queues {
		url, err := a.client.GetQueueUrl(ctx, &sdk.GetQueueUrlInput{QueueName: &name})
		if err != nil {
			return nil, err
		}
		for wait := int32(0); ; {
			got, err := a.client.ReceiveMessage(ctx, &sdk.ReceiveMessageInput{
				QueueUrl: url.QueueUrl, MaxNumberOfMessages: 10, WaitTimeSeconds: wait, VisibilityTimeout: 20,
				MessageAttributeNames:       []string{"All"},
				MessageSystemAttributeNames: []types.MessageSystemAttributeName{"All"},
			})
			if err != nil {
				return nil, err
			}
			if len(got.Messages) == 0 {
				// An answer that got lost on its way to the reader keeps its messages, and those behind them, out of
				// sight for 20 s.
				if left, err := a.left(ctx, url.QueueUrl); err != nil {
					return nil, err
				} else if left > 0 {
					wait = 1
					continue
				}
				break
			}
			var done []types.DeleteMessageBatchRequestEntry
			for i := range got.Messages {
				m, err := amazontest.Message(strings.TrimSuffix(name, ".fifo"), &got.Messages[i])
				if err != nil {
					return nil, err
				}
				a.received[name] = append(a.received[name], m)
				done = append(done,
					types.DeleteMessageBatchRequestEntry{Id: aws.String(fmt.Sprint(i)), ReceiptHandle: got.Messages[i].ReceiptHandle})
			}
			if _, err := a.client.DeleteMessageBatch(ctx, &sdk.DeleteMessageBatchInput{QueueUrl: url.QueueUrl, Entries: done}); err != nil {
				return nil, err
			}
		}
		all = append(all, a.received[name]...)
	}
	return all, nil
}

// left returns how many messages the queue has, also those that were received and not removed.
func (a *account) left(ctx context.Context, url *string) (left int, err error) {
	all := []types.QueueAttributeName{types.QueueAttributeNameApproximateNumberOfMessages,
		types.QueueAttributeNameApproximateNumberOfMessagesNotVisible}
	got, err := a.client.GetQueueAttributes(ctx, &sdk.GetQueueAttributesInput{QueueUrl: url, AttributeNames: all})
	if err != nil {
		return 0, err
	}
	for _, name := range all {
		n, err := strconv.Atoi(got.Attributes[string(name)])
		if err != nil {
			return 0, fmt.Errorf("attribute %s: %w", name, err)
		}
		left += n
	}
	return left, nil
}
