package sqs_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	sdk "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/sqs"
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

func anyone() *aws.Config {
	return &aws.Config{Region: "eu-central-1", Credentials: credentials.NewStaticCredentialsProvider("x", "x", "")}
}

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
	cfg := anyone()
	cfg.BaseEndpoint = &url
	transport := &http.Transport{MaxIdleConnsPerHost: 16}
	t.Cleanup(transport.CloseIdleConnections)
	cfg.HTTPClient = &http.Client{Transport: transport}
	return &account{t: t, url: url, client: sdk.NewFromConfig(*cfg), received: map[string][]outbox.Message{}}
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
	b := open(a.t, a.url, cfg)
	a.t.Cleanup(func() {
		if err := b.Close(); err != nil {
			a.t.Error(err)
		}
	})
	return b
}

func open(t testing.TB, url string, cfg sqs.Config) *sqs.Broker {
	t.Helper()
	cfg.Endpoint = url
	if cfg.AWS == nil {
		cfg.AWS = anyone()
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
				QueueUrl: url.QueueUrl, MaxNumberOfMessages: 10, WaitTimeSeconds: wait,
				MessageAttributeNames:       []string{"All"},
				MessageSystemAttributeNames: []types.MessageSystemAttributeName{"All"},
			})
			if err != nil {
				return nil, err
			}
			if len(got.Messages) == 0 {
				// An answer that got lost on its way to the reader keeps its messages, and those behind them, out of sight.
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
				m, err := message(name, &got.Messages[i])
				if err != nil {
					return nil, err
				}
				a.received[name] = append(a.received[name], m)
				done = append(done, types.DeleteMessageBatchRequestEntry{Id: aws.String(fmt.Sprint(i)), ReceiptHandle: got.Messages[i].ReceiptHandle})
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
	all := []types.QueueAttributeName{types.QueueAttributeNameApproximateNumberOfMessages, types.QueueAttributeNameApproximateNumberOfMessagesNotVisible}
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

// message undoes the wire format, as a consumer would who follows its documentation.
func message(queue string, got *types.Message) (m outbox.Message, err error) {
	m.Topic = strings.TrimSuffix(queue, ".fifo")
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
