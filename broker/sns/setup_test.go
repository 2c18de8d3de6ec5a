package sns_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	sdk "github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/sns"
	"github.com/pgoutbox/outbox/internal/servers"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	code := servers.Run(m)
	if code == 0 {
		if err := goleak.Find(); err != nil {
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

// prefix is that of the ARNs of the server's only account.
const prefix = "arn:aws:sns:eu-central-1:123456789012:"

func anyone() *aws.Config {
	return &aws.Config{Region: "eu-central-1", Credentials: credentials.NewStaticCredentialsProvider("x", "x", "")}
}

// account is a server with topics.
type account struct {
	t   testing.TB
	url string
	sns *sdk.Client
	sqs *sqs.Client
}

func connect(t testing.TB, url string) *account {
	t.Helper()
	cfg := anyone()
	cfg.BaseEndpoint = &url
	transport := &http.Transport{MaxIdleConnsPerHost: 16}
	t.Cleanup(transport.CloseIdleConnections)
	cfg.HTTPClient = &http.Client{Transport: transport}
	return &account{t: t, url: url, sns: sdk.NewFromConfig(*cfg), sqs: sqs.NewFromConfig(*cfg)}
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
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	got, err := c.account.sqs.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
		QueueUrl: c.queue, MaxNumberOfMessages: 10, MessageAttributeNames: []string{"All"}, VisibilityTimeout: 600,
	})
	if err != nil || len(got.Messages) == 0 {
		return 0, err
	}
	var done []types.DeleteMessageBatchRequestEntry
	for i := range got.Messages {
		m, err := message(&got.Messages[i])
		c.mu.Lock()
		c.received = append(c.received, m)
		if err != nil {
			c.err = err
		}
		c.mu.Unlock()
		done = append(done, types.DeleteMessageBatchRequestEntry{Id: aws.String(fmt.Sprint(i)), ReceiptHandle: got.Messages[i].ReceiptHandle})
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
		cfg.AWS = anyone()
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
	b := open(a.t, a.url, cfg)
	a.t.Cleanup(func() {
		if err := b.Close(); err != nil {
			a.t.Error(err)
		}
	})
	return b
}

// message undoes the wire format, as a consumer would who follows its documentation.
func message(got *types.Message) (m outbox.Message, err error) {
	m.Payload = []byte(aws.ToString(got.Body))
	all := map[string]string{}
	for name, value := range got.MessageAttributes {
		if name != "outbox-headers" {
			all[name] = aws.ToString(value.StringValue)
		} else if err := json.Unmarshal([]byte(aws.ToString(value.StringValue)), &all); err != nil {
			return m, err
		}
	}
	for name, value := range all {
		var err error
		switch name {
		case "outbox-id":
			m.ID, err = outbox.ParseID(value)
		case "outbox-payload":
			switch value {
			case "base64":
				m.Payload, err = base64.StdEncoding.DecodeString(string(m.Payload))
			case "empty":
				m.Payload = []byte{}
			case "null":
				m.Payload = nil
			}
		case "content-type":
			m.ContentType = value
		case "outbox-topic":
			m.Topic = value
		case "outbox-key":
			m.Key = value
		case "outbox-event-type":
			m.EventType = value
		case "outbox-aggregate-type":
			m.AggregateType = value
		case "outbox-aggregate-id":
			m.AggregateID = value
		case "outbox-created-at":
			m.CreatedAt, err = time.Parse(time.RFC3339Nano, value)
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
